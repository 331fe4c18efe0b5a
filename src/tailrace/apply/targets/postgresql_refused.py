"""Rows that a database refuses because of what others gave to its table: constraints, narrower types,
triggers.

The staged rows of a batch are tried in a transaction that is rolled back. When they are refused, halves of
them are, until single rows are left: with few such rows that takes few tries, and the database's own words
say why.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg

from ...change import Relation
from ...errors import ApplyError
from ...sources.pg_connect import Session, literal
from .postgresql_layout import sql_type
from .postgresql_stage import Staged

MOST = 1000
"""With more such rows, something else is wrong: the batch is refused as a whole."""
_DATA = ("22", "23")
"""Classes of SQLSTATE: data exceptions, and violations of integrity."""

_OTHERS = """
SELECT EXISTS (SELECT FROM pg_constraint c WHERE conrelid = t.id AND contype NOT IN ('p', 'n'))
    OR EXISTS (SELECT FROM pg_index WHERE indrelid = t.id AND indisunique AND NOT indisprimary)
    OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = t.id AND NOT tgisinternal)
    OR EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = t.id AND a.attnum > 0 AND NOT a.attisdropped AND (
            a.attnotnull AND NOT EXISTS (
                SELECT FROM pg_index WHERE indrelid = t.id AND indisprimary AND a.attnum = ANY (indkey))
            OR format_type(a.atttypid, a.atttypmod) <> coalesce((%s::jsonb) ->> a.attname, '')))
FROM (SELECT %s::regclass AS id) t
"""
_NAMES = {"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone"}


def refuses(session: Session, target: str, layout: Relation) -> bool:
    """Whether a table may refuse rows: others changed what tailrace made."""
    kinds = {c.name: _NAMES.get(kind := sql_type(c.type), kind) for c in layout.columns}
    row = session.execute(_OTHERS, (json.dumps(kinds), target)).fetchone()
    return bool(row and row[0])


@dataclass(frozen=True)
class Sieve:
    """Finds staged rows that are refused.

    Attributes:
        attempt: writes staged rows to the target.
        into: a table for their keys (c0, c1, ...) and `why`, as quoted SQL; made here.
    """

    session: Session
    staged: Staged
    relation: Relation
    attempt: Callable[[Staged], object]
    into: str

    def run(self) -> int:
        """Fills `into`; gives how many there are.

        Raises:
            ApplyError: more than `MOST`.
        """
        key = [(i, c) for i, c in enumerate(self.relation.columns) if c.key]
        self.session.execute(f"DROP TABLE IF EXISTS {self.into}".encode())
        columns = ", ".join(f"c{n} {sql_type(c.type)}" for n, (_, c) in enumerate(key))
        self.session.execute(f"CREATE UNLOGGED TABLE {self.into} ({columns}, why text)".encode())
        waiting, found = ["true"], 0
        while waiting:
            only = waiting.pop()
            if (why := self._refused(only)) is None:
                continue
            low, middle = self._halves(only)
            if middle is not None:
                waiting += [f"{only} AND ctid < '{middle}'", f"{only} AND ctid >= '{middle}'"]
                continue
            found += 1
            if found > MOST:
                raise ApplyError(
                    f"the target refuses more than {MOST} rows of a batch: {why}",
                    where=self.relation.table,
                    hint="see what was done to the target",
                )
            cells = ", ".join(f"c{i}" for i, _ in key)
            one = f"SELECT {cells}, {literal(why)} FROM {self.staged.table} WHERE ctid = '{low}'"
            self.session.execute(f"INSERT INTO {self.into} {one}".encode())
        return found

    def _refused(self, only: str) -> str | None:
        try:
            with self.session.transaction(force_rollback=True):
                self.session.execute("SET CONSTRAINTS ALL IMMEDIATE")
                self.attempt(replace(self.staged, only=only))
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in _DATA:
                raise
            return str(error.diag.message_primary or error).strip()
        return None

    def _halves(self, only: str) -> tuple[str, str | None]:
        """The first row, and the one in the middle; None: there is one only."""
        rows = self.session.execute(
            f"SELECT min(ctid)::text, (array_agg(ctid ORDER BY ctid))[count(*) / 2 + 1]::text, count(*)"
            f" FROM {self.staged.table} WHERE {replace(self.staged, only=only).which}".encode()
        ).fetchone()
        assert rows is not None  # noqa: S101 - an aggregate
        return str(rows[0]), str(rows[1]) if rows[2] > 1 else None
