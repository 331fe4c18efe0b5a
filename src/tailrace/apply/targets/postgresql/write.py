"""The statements that bring staged rows into a target. All of them run in the batch's one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ....engine.columns import ADD, KEPT, OP, TAKE
from ....model.change import Relation
from ....sources.postgresql.connect import Session, quoted
from .stage import Staged
from .types import as_text, varied

_OP, _KEPT, _TAKE, _ADD = map(quoted, (OP, KEPT, TAKE, ADD))
_ANEW = "pg_temp.tailrace_anew"
_THEIRS = """
SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
    AND attgenerated = '' AND attname <> ALL (%s::text[])
"""
"""The columns that others added to a target, but for generated ones."""
_IN_PARTS = "SELECT FROM pg_class WHERE oid = %s::regclass AND (relkind = 'p' OR relhassubclass)"
_FOLLOWS = (
    "SELECT FROM pg_constraint WHERE confrelid = %s::regclass AND confdeltype IN ('c', 'n', 'd') LIMIT 1"
)
_SIGNED_ZERO = ("float", "double")
GIVEN = "OVERRIDING SYSTEM VALUE"
"""Values come from the source also where somebody gave the target an identity column."""


class StagedWriter:
    """Writes one batch's staged rows into one target; every method gives exact counts of rows."""

    def __init__(self, session: Session, target: str, relation: Relation, staged: Staged) -> None:
        self._session, self.target, self._staged = session, target, staged
        self._columns = [c.name for c in relation.columns]
        self._names = [quoted(n) for n in self._columns]
        self._texts = [
            as_text(f"t.{quoted(c.name)}", c.type, staged.casts.get(i))
            for i, c in enumerate(relation.columns)
        ]
        self._key = [(quoted(c.name), f"c{i}") for i, c in enumerate(relation.columns) if c.key]
        # A key that is equal may have another text by now, a zero another sign.
        anew = varied(staged.casts) | {i for i, c in enumerate(relation.columns) if c.type in _SIGNED_ZERO}
        self._rest = [(quoted(c.name), i) for i, c in enumerate(relation.columns) if not c.key or i in anew]
        self._cells = ", ".join(f"s.c{i}" for i in range(len(self._names)))

    def delete(self) -> int:
        """Takes away the rows of deleted and of old keys; not of one that is equal to a key that has a row,
        with another text (1.00 to 1.0): what its image lacks, and what others added, is still there."""
        which = f"s.{_OP} = 'D'"
        if any(f"c{i}" == cell for i in varied(self._staged.casts) for _, cell in self._key):
            equal = " AND ".join(f"u.{cell} = s.{cell}" for _, cell in self._key)
            which += (
                f" AND NOT EXISTS (SELECT FROM {self._staged.source_as('u')} WHERE u.{_OP} = 'U' AND {equal})"
            )
        return self._rows(
            f"DELETE FROM {self.target} t USING {self._staged.source} WHERE {which} AND {self._same}"
        )

    def update_partly(self) -> int:
        """Changes rows of which the batch has not every column: what it has not stays as it is (a large
        value that stays is not even read)."""
        if not self._rest:
            return 0  # nothing but its key: there is nothing it could lack
        cells = ", ".join(
            f"{name} = CASE WHEN substr(s.{_KEPT}, {i + 1}, 1) = '1' THEN t.{name} ELSE s.c{i} END"
            for name, i in self._rest
        )
        return self._rows(
            f"UPDATE {self.target} t SET {cells} FROM {self._staged.source}"
            f" WHERE s.{_OP} = 'U' AND s.{_KEPT} IS NOT NULL AND {self._same}"
        )

    def upsert(self, *, partial: bool) -> tuple[int, int]:
        """Writes rows by key; gives how many were inserted and updated. With `partial`, rows that
        `update_partly` has found are done already."""
        which = f"s.{_OP} = 'U'"
        if partial:
            there = f"EXISTS (SELECT FROM {self.target} t WHERE {self._same})"
            which += f" AND (s.{_KEPT} IS NULL OR NOT {there})"
        # A table of nothing but its key: a row that is there is "updated" to itself, as elsewhere.
        written = self._rest or [(self._key[0][0], 0)]
        cells = ", ".join(f"{name} = EXCLUDED.{name}" for name, _ in written)
        key = ", ".join(name for name, _ in self._key)
        inserted, updated = self._counts(
            f"WITH w AS (INSERT INTO {self.target} AS t ({', '.join(self._names)}) {GIVEN}"
            f" SELECT {self._cells} FROM {self._staged.source} WHERE {which}"
            f" ON CONFLICT ({key}) DO UPDATE SET {cells} RETURNING {self._fresh} AS fresh)"
            " SELECT count(*) FILTER (WHERE fresh), count(*) FILTER (WHERE NOT fresh) FROM w"
        )
        return inserted, updated

    def anew(self, *, partial: bool) -> tuple[int, int, int]:
        """Takes away all rows under the batch's keys, then writes those that are to be there: what others
        made unique may pass from one row to another. Columns that others added keep their values. Gives how
        many were inserted, updated, deleted."""
        cells = [
            f"CASE WHEN substr(s.{_KEPT}, {i + 1}, 1) = '1' THEN t.{n} ELSE s.c{i} END AS c{i}"
            if partial
            else f"s.c{i}"
            for i, n in enumerate(self._names)
        ]
        theirs = [quoted(name) for (name,) in self._all(_THEIRS, (self.target, self._columns))]
        cells += [f"t.{n} AS t{i}" for i, n in enumerate(theirs)]
        there = f"(t.{self._key[0][0]} IS NOT NULL) AS there"
        self._session.execute(
            f"CREATE TEMP TABLE {_ANEW} ON COMMIT DROP AS SELECT {', '.join(cells)}, {there} FROM"
            f" {self._staged.source} LEFT JOIN {self.target} t ON {self._same} WHERE s.{_OP} = 'U'".encode()
        )
        gone = self._rows(f"DELETE FROM {self.target} t USING {self._staged.source} WHERE {self._same}")
        names = ", ".join([*self._names, *theirs])
        kept = ", ".join([self._cells, *(f"s.t{i}" for i in range(len(theirs)))])
        updated = self._rows(
            f"INSERT INTO {self.target} ({names}) {GIVEN} SELECT {kept} FROM {_ANEW} s WHERE s.there"
        )
        inserted = self._rows(f"{self._insert} FROM {_ANEW} s WHERE NOT s.there")
        return inserted, updated, gone - updated

    @property
    def followed(self) -> bool:
        """Whether rows of other tables go, or lose their values, with rows of this one (ON DELETE)."""
        return bool(self._all(_FOLLOWS, (self.target,)))

    def append(self) -> int:
        """Adds every staged row."""
        return self._rows(f"{self._insert} FROM {self._staged.source}")

    def take_copies(self) -> int:
        """Takes away as many copies of full rows as changes say, as far as they are there; gives how many."""
        copies = (
            "SELECT t.ctid AS place, t.tableoid AS part, row_number() OVER (PARTITION BY s.id) AS nth,"
            f" s.{_TAKE} AS most FROM {self.target} t JOIN {self._staged.texts} ON {self.same_row}"
            f" WHERE s.{_TAKE} > 0"
        )
        gone = f"SELECT place, part FROM ({copies}) f WHERE nth <= most"
        if not self._in_parts:
            return self._rows(
                f"DELETE FROM {self.target} WHERE ctid = ANY (ARRAY(SELECT place FROM ({gone}) c))"
            )
        # Rows of two partitions may have one ctid.
        return self._rows(
            f"WITH c AS MATERIALIZED ({gone})"
            f" DELETE FROM {self.target} t USING c WHERE t.ctid = c.place AND t.tableoid = c.part"
        )

    def copies_to_take(self) -> int:
        """How many copies changes say."""
        return self._counts(f"SELECT coalesce(sum(s.{_TAKE}), 0) FROM {self._staged.source}")[0]

    def add_copies(self) -> int:
        """Adds as many copies of full rows as changes say."""
        return self._rows(
            f"{self._insert} FROM {self._staged.source}, generate_series(1, s.{_ADD}) WHERE s.{_ADD} > 0"
        )

    @property
    def same_row(self) -> str:
        """SQL: whether a row t of the target is a copy of s, one of `Staged.texts`.

        They are matched by a hash of the whole row, then value by value: NULLs are equal here, and a join on
        that alone would compare each row with each. What others gave another type is compared in that of the
        changes: values of two types may be equal, and their hashes not.
        """
        there = self._texts
        equal = " AND ".join(f"{cell} IS NOT DISTINCT FROM s.c{i}" for i, cell in enumerate(there))
        mine, theirs = (f"hash_record_extended(ROW({c}), 0)" for c in (self._cells, ", ".join(there)))
        return f"{theirs} = {mine} AND {equal}"

    @cached_property
    def _in_parts(self) -> bool:
        """Whether rows of the target are in several tables: it is partitioned, or has tables that inherit."""
        return bool(self._all(_IN_PARTS, (self.target,)))

    @property
    def _fresh(self) -> str:
        """SQL: whether a row t that an upsert gives back was inserted."""
        if not self._in_parts:
            return "t.xmax = 0"  # it is in a row version that this very statement made anew
        # Rows of partitions give no system columns back; a look does not see what its own statement wrote.
        same = " AND ".join(f"was.{name} = t.{name}" for name, _ in self._key)
        return f"NOT EXISTS (SELECT FROM {self.target} was WHERE {same})"

    @property
    def _same(self) -> str:
        return " AND ".join(f"t.{name} = s.{cell}" for name, cell in self._key)

    @property
    def _insert(self) -> str:
        return f"INSERT INTO {self.target} ({', '.join(self._names)}) {GIVEN} SELECT {self._cells}"

    def _rows(self, statement: str) -> int:
        return self._session.execute(statement.encode()).rowcount

    def _all(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return self._session.execute(query.encode(), values).fetchall()

    def _counts(self, query: str) -> tuple[int, ...]:
        row = self._session.execute(query.encode()).fetchone()
        return tuple(int(n) for n in row or ())
