"""A table without key in the transaction of an audited merge: how many copies it has of the rows that changes
name, and copies that come or go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....engine.batch import split
from ....engine.columns import ADD, TAKE
from ....engine.keys import Places
from ....engine.source import Source
from ....model.change import Relation
from ....sources.postgresql.connect import Session, quoted
from .copying import Sending
from .place import Place
from .stage import Staged
from .types import casts
from .write import StagedWriter

_NAMED, _CHANGED, _NUMBER = "pg_temp.tailrace_named", "pg_temp.tailrace_changed", "header__number"


@dataclass(frozen=True)
class Copies:
    """Rows that changes name, and their copies in a target.

    Attributes:
        on: the connection, in its transaction.
        place: its database.
        target: the table, as quoted SQL.
        relation: its layout.
        source: the changes.
    """

    on: Session
    place: Place
    target: str
    relation: Relation
    source: Source

    def there(self) -> Places:
        """Of each different row, by its number, how many copies the target has."""
        last = self.source.last
        found = np.zeros(len(last), np.int64)
        if not len(last):
            return found
        staged = self._staged(_NAMED, {_NUMBER: np.arange(len(last))}, last)
        same = StagedWriter(self.on, self.target, self.relation, staged).same_row
        query = f"SELECT s.{_NUMBER}, count(*) FROM {staged.texts} JOIN {self.target} t ON {same} GROUP BY 1"
        rows = Sending(self.on, self.relation.table).numbers(query, "number", "copies")
        found[rows["number"].astype(np.int64)] = rows["copies"]
        return found

    def write(self, net: Places) -> tuple[int, int]:
        """Adds or takes away that many copies of each different row; gives how many rows came and went."""
        changed = np.flatnonzero(net)
        if not len(changed):
            return 0, 0
        take, add = split(net[changed])
        staged = self._staged(_CHANGED, {TAKE: take, ADD: add}, self.source.last[changed])
        to = StagedWriter(self.on, self.target, self.relation, staged)
        deleted = to.take_copies()
        return to.add_copies(), deleted

    def _staged(self, table: str, numbers: dict[str, Places], rows: Places) -> Staged:
        """Sends rows of the changes, by their places, with numbers of each."""
        columns = self.relation.columns
        data = self.source.rows.select([c.name for c in columns]).take(pa.array(rows))
        marks = pa.repeat(pa.scalar(1, pa.int64()), len(rows))
        sent = Sending(self.on, self.relation.table)
        extras = ", ".join(["mark bigint", *(f"{quoted(n)} bigint" for n in numbers)])
        sent.copy(table, extras, [marks, *map(pa.array, numbers.values()), *data.columns], columns)
        into = casts(self.on, self.target, columns)
        return Staged(table, (1,), len(rows), tuple(numbers), len(columns), into)
