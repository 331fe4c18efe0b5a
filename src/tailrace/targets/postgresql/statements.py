"""The statements that merge staged rows into a target, in the transaction of the batch."""

from __future__ import annotations

from collections.abc import Collection

from ...engine.columns import ADD, KEPT, OP, TAKE
from ...model.change import Relation
from ...sources.postgresql.connect import Session, quoted
from .staging import StagingTable
from .types import ambiguous_texts, as_text

_OP, _KEPT, _TAKE, _ADD = map(quoted, (OP, KEPT, TAKE, ADD))
_SIGNED_ZERO = ("float", "double")
_GIVEN = "OVERRIDING SYSTEM VALUE"
"""Makes PostgreSQL use the source's values for identity columns, too."""


class MergeStatements:
    """The statements for the rows of one staging table and one target."""

    def __init__(self, session: Session, target: str, relation: Relation, staged: StagingTable) -> None:
        self._session, self.target, self._staged = session, target, staged
        self.names = [quoted(c.name) for c in relation.columns]
        self._texts = [
            as_text(f"t.{quoted(c.name)}", c.type, staged.casts.get(i))
            for i, c in enumerate(relation.columns)
        ]
        self.key = [(quoted(c.name), f"c{i}") for i, c in enumerate(relation.columns) if c.key]
        # An equal key may have another text, and a zero another sign.
        respelled = ambiguous_texts(staged.casts) | {
            i for i, c in enumerate(relation.columns) if c.type in _SIGNED_ZERO
        }
        self.set = [
            (i, quoted(c.name)) for i, c in enumerate(relation.columns) if not c.key or i in respelled
        ]
        """Index and name of each column that an update sets."""
        self._cells = ", ".join(f"s.c{i}" for i in range(len(self.names)))

    def delete(self) -> None:
        """Deletes the rows with deleted keys and old keys, except keys that are equal to a written key with
        another text (1.00 and 1.0): the columns that its image leaves out are still needed."""
        which = f"s.{_OP} = 'D'"
        if any(f"c{i}" == cell for i in ambiguous_texts(self._staged.casts) for _, cell in self.key):
            equal = " AND ".join(f"u.{cell} = s.{cell}" for _, cell in self.key)
            which += (
                f" AND NOT EXISTS (SELECT FROM {self._staged.source('u')} WHERE u.{_OP} = 'U' AND {equal})"
            )
        self._run(
            f"DELETE FROM {self.target} t USING {self._staged.source()} WHERE {which} AND {self.same_key}"
        )

    def update_partly(self) -> None:
        """Updates rows of which the batch does not have all columns. The other columns stay; large values are
        not even read."""
        if not self.set:
            return  # the table has key columns only
        cells = ", ".join(
            f"{name} = CASE WHEN substr(s.{_KEPT}, {i + 1}, 1) = '1' THEN t.{name} ELSE s.c{i} END"
            for i, name in self.set
        )
        self._run(
            f"UPDATE {self.target} t SET {cells} FROM {self._staged.source()}"
            f" WHERE s.{_OP} = 'U' AND s.{_KEPT} IS NOT NULL AND {self.same_key}"
        )

    def upsert(self, *, partial: bool) -> None:
        """Inserts or updates rows by key; with `partial`, except rows that `update_partly` has updated."""
        which = f"s.{_OP} = 'U'"
        if partial:
            which += (
                f" AND (s.{_KEPT} IS NULL OR NOT EXISTS (SELECT FROM {self.target} t WHERE {self.same_key}))"
            )
        self._run(f"{self.insert} FROM {self._staged.source()} WHERE {which} {self.on_conflict()}")

    def append(self) -> None:
        """Adds every staged row."""
        self._run(f"{self.insert} FROM {self._staged.source()}")

    def take_copies(self) -> None:
        """Deletes the removed copies of rows of a keyless table, as far as they exist."""
        copies = (
            "SELECT t.tableoid AS part, t.ctid AS row_id, row_number() OVER (PARTITION BY s.id) AS nth,"
            f" s.{_TAKE} AS most FROM {self.target} t JOIN {self._staged.texts} ON {self.same_row}"
            f" WHERE s.{_TAKE} > 0"
        )
        # Rows of different partitions may have the same ctid.
        self._run(
            f"WITH c AS MATERIALIZED (SELECT part, row_id FROM ({copies}) f WHERE nth <= most)"
            f" DELETE FROM {self.target} t USING c WHERE t.ctid = c.row_id AND t.tableoid = c.part"
        )

    def add_copies(self) -> None:
        """Inserts the added copies of rows of a keyless table."""
        self._run(
            f"{self.insert} FROM {self._staged.source()}, generate_series(1, s.{_ADD}) WHERE s.{_ADD} > 0"
        )

    @property
    def same_row(self) -> str:
        """SQL condition: a row t of the target is a copy of s, a row of `StagingTable.texts`.

        Rows are matched by a hash of the whole row, then value by value. NULLs are equal here; a join on that
        condition alone would compare all pairs of rows. Columns of other types are compared in the type of
        the changes, because equal values of two types may have different hashes.
        """
        equal = " AND ".join(f"{cell} IS NOT DISTINCT FROM s.c{i}" for i, cell in enumerate(self._texts))
        staged_hash, target_hash = (
            f"hash_record_extended(ROW({c}), 0)" for c in (self._cells, ", ".join(self._texts))
        )
        return f"{target_hash} = {staged_hash} AND {equal}"

    @property
    def same_key(self) -> str:
        """SQL condition: a row t of the target has the key of s."""
        return " AND ".join(f"t.{name} = s.{cell}" for name, cell in self.key)

    @property
    def insert(self) -> str:
        """INSERT of the columns of s, up to its FROM item."""
        return f"{self.into} SELECT {self._cells}"

    @property
    def into(self) -> str:
        """INSERT up to its query."""
        return f"INSERT INTO {self.target} ({', '.join(self.names)}) {_GIVEN}"

    def on_conflict(self, columns: Collection[int] | None = None) -> str:
        """Returns the end of an INSERT that updates an existing row with the key; `columns`: the indices of
        the columns that it sets, None: all."""
        names = [name for i, name in self.set if columns is None or i in columns]
        # Without columns to set, an existing row is updated with its own key, so that it counts as updated.
        cells = ", ".join(f"{name} = EXCLUDED.{name}" for name in names or [self.key[0][0]])
        return f"ON CONFLICT ({', '.join(name for name, _ in self.key)}) DO UPDATE SET {cells}"

    def _run(self, statement: str) -> None:
        self._session.execute(statement.encode())
