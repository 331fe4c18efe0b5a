"""Provides `pyspark.sql.functions` and `Window`; imports them on first use.

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
        """A proxy for a module, or for one of its classes, that imports it on first use."""

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
