"""Maps the columns of a source table to those of its history, by column number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from ...engine.history_updates import HistoryRules
from ...lake import delta as lake
from ...lake.opened import open_table
from ...model.positions import ChangeSeq
from .table import HistoryTable

_PROPERTY = "tailrace.columns"


class Numbered(Protocol):
    """A table whose columns have numbers."""

    def column_numbers(self, layout: ChangeSeq | None) -> dict[str, int]:
        """Returns the column numbers by name in a layout (None: the newest)."""


@dataclass(frozen=True)
class HistoryColumns:
    """Names of a history's columns: those that the source columns had when they were added to the history.

    Attributes:
        names: these names by column number.
        now: the numbers of the source table's columns by current name.
        taken: why a new column cannot be added to the history, or None.
    """

    names: Mapping[int, str]
    now: Mapping[str, int]
    taken: str | None = None

    @staticmethod
    def of(table: Numbered, path: str, layout: ChangeSeq | None) -> HistoryColumns:
        """Returns the columns of the history at a path; `layout` is that of its last change."""
        now = table.column_numbers(None)
        if not lake.exists(path):
            return HistoryColumns({n: name for name, n in now.items()}, now)
        said = open_table(path).metadata().configuration.get(_PROPERTY)
        have = HistoryTable.open(path).rules.columns
        known = json.loads(said) if said else table.column_numbers(layout)
        names = {n: name for name, n in known.items() if name in have}
        for name, n in now.items():
            if n not in names and name in have:
                why = f"the column {name} was replaced by another column of that name, which the history has"
                return HistoryColumns(names, now, why)
            names.setdefault(n, name)
        return HistoryColumns(names, now)

    def called(self, name: str) -> str:
        """Returns the history's name for a column with a current name."""
        return self.names[self.now[name]] if name in self.now else name

    def rules(self, rules: HistoryRules) -> HistoryRules:
        """Returns rules with the history's column names."""
        tracked = None if rules.tracked is None else tuple(map(self.called, rules.tracked))
        key, columns = tuple(map(self.called, rules.key)), tuple(map(self.called, rules.columns))
        return replace(rules, key=key, columns=columns, tracked=tracked)

    def values(self, defaults: Mapping[int, pa.Array]) -> dict[str, pa.Array]:
        """Returns values by the history's names, given values by column number."""
        return {self.names[n]: value for n, value in defaults.items() if n in self.names}

    def note(self, path: str) -> None:
        """Stores the column numbers in the properties of the history's table."""
        text = json.dumps({name: n for n, name in self.names.items()}, sort_keys=True)
        delta = open_table(path)
        if self.names and delta.metadata().configuration.get(_PROPERTY) != text:
            delta.alter.set_table_properties({_PROPERTY: text}, raise_if_not_exists=False)
