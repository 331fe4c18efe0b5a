"""tailrace: an open change-table engine on Spark. Public names; nothing heavy is imported before it is used.

    import tailrace

    task = tailrace.open("shop.yaml")
    task.table("shop.item").net("2026-11-22T10:00:00Z").pandas()

`__init__.pyi` declares the same names for type checkers.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from .errors import TailraceError

__version__ = "0.1.0"
if sys.platform == "linux":
    # For this process, unless pyarrow is loaded already, and for its children: see docs/performance.md.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
_PLACES = {
    "ChangeTable": "model.change",
    "Column": "model.change",
    "HistoryFlow": "query.history.flow",
    "HistoryRules": "engine.history_updates",
    "HistoryTable": "query.history.table",
    "OpenTask": "library.open_task",
    "Relation": "model.change",
    "Result": "query.result",
    "TableChanges": "query.table_changes",
    "TaskTable": "library.task_table",
    "apply": "library.change_tables",
    "columns_changed": "library.change_tables",
    "convert": "library.change_tables",
    "inspect": "library.change_tables",
    "open": "library.open_task",
    "read": "library.change_tables",
    "watching": "query.watch",
}
_NAMES = {"open": "OpenTask"}
__all__ = [
    "ChangeTable", "Column", "HistoryFlow", "HistoryRules", "HistoryTable", "OpenTask", "Relation", "Result",
    "TableChanges", "TailraceError", "TaskTable", "__version__", "apply", "columns_changed", "convert",
    "errors", "inspect", "open", "pipelines", "read", "watching",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "pipelines":
        return import_module(".pipelines", __name__)
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), _NAMES.get(name, name))


class _Callable(ModuleType):
    """The package `tailrace.apply`: `tailrace.apply(...)` is the library's function, imported or not."""

    @property
    def _function(self) -> Any:
        return import_module(".library.change_tables", __name__).apply

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(self._function)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._function(*given, **named)


class _Library(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "apply" and isinstance(value, ModuleType):  # Python binds a package that is imported
            value.__class__ = _Callable
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library


def __dir__() -> list[str]:
    return __all__
