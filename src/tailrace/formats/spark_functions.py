"""`pyspark.sql.functions` and `Window`, imported when one of them is first used.

Formats are declared, named and recognised without Spark, which takes a while to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Window
    from pyspark.sql import functions as F
else:

    class _Late:
        """The attributes of a module, or of one of its classes."""

        def __init__(self, module: str, name: str | None = None) -> None:
            self._of = module, name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            module, inside = self._of
            found = import_module(module)
            value = getattr(found if inside is None else getattr(found, inside), name)
            self.__dict__[name] = value
            return value

    F = _Late("pyspark.sql.functions")
    Window = _Late("pyspark.sql", "Window")

__all__ = ["F", "Window"]
