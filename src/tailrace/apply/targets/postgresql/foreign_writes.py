"""What others do to a target's rows between the look at them and the batch's transaction.

A look is a table of the keys that were looked at, with the place and the version that the database gives the
row of each. The transaction that writes compares them with those of its own snapshot; whoever changes a row
that it writes after that makes it fail by itself. So a batch is applied to the rows that it was made from, or
not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from ....errors import ConcurrentCommitError
from ....model.change import Relation
from ....sources.postgresql.connect import Session, quoted
from .place import holds
from .stage import Staged

_PLACE, _VERSION = quoted("header__place"), quoted("header__version")


@dataclass(frozen=True)
class Looked:
    """A look at the rows of `target` under keys, kept in `table`; both quoted SQL."""

    table: str
    target: str
    relation: Relation

    def take(self, on: Session, keys: Staged) -> None:
        """Looks, at staged keys (one each)."""
        cells = ", ".join(f"s.c{i}" for i in range(len(self.relation.key)))
        found = f"SELECT {cells}, t.ctid AS {_PLACE}, t.xmin AS {_VERSION} FROM {keys.source}"
        on.execute(f"DROP TABLE IF EXISTS {self.table}".encode())
        on.execute(
            f"CREATE UNLOGGED TABLE {self.table} WITH (autovacuum_enabled = false)"
            f" AS {found} LEFT JOIN {self.target} t ON {self._same('s')}".encode()
        )
        on.execute(f"ANALYZE {self.table}".encode())

    @property
    def rows(self) -> str:
        """FROM item of the rows as they were, alias t."""
        seen = f"t.ctid = l.{_PLACE} AND t.xmin = l.{_VERSION}"
        return f"{self.target} t JOIN {self.table} l ON {self._same('l')} AND {seen}"

    def differs(self, on: Session) -> bool:
        """Whether a row is another one by now, gone or new."""
        return holds(
            on,
            f"SELECT EXISTS (SELECT FROM {self.table} l LEFT JOIN {self.target} t ON {self._same('l')}"
            f" WHERE t.ctid IS DISTINCT FROM l.{_PLACE} OR t.xmin IS DISTINCT FROM l.{_VERSION})",
        )

    def _same(self, of: str) -> str:
        return " AND ".join(f"t.{quoted(k)} = {of}.c{i}" for i, k in enumerate(self.relation.key))


@contextmanager
def unchanged(on: Session, looks: list[Looked], where: str, target: str | None = None) -> Iterator[None]:
    """The transaction's statements, when the rows are as they were looked at; first of all in it. `target`
    (quoted SQL): the statements are about one state of it, looks or not.

    Raises:
        ConcurrentCommitError: they are not, or others change them before it ends; or a look is gone: nobody
            has the table between it and the transaction, so maintenance may take it for what a crash left.
    """
    target = looks[0].target if looks else target
    if target is None:
        yield
        return
    on.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    # Before the snapshot: rows of a table that is written anew after it would not be seen.
    on.execute(f"LOCK TABLE {target} IN ROW EXCLUSIVE MODE".encode())
    try:
        differ = any(look.differs(on) for look in looks)
    except psycopg.errors.UndefinedTable as error:  # the target is locked: it is there
        raise overtaken(where, "the look at rows of the batch is gone") from error
    if differ:
        raise overtaken(where)
    yield


def overtaken(
    where: str, what: str = "somebody else changed rows of the batch after they were read"
) -> ConcurrentCommitError:
    """The error for rows that others changed meanwhile, or may have changed."""
    return ConcurrentCommitError(what, where=where, hint="nothing was written; it begins anew")


@contextmanager
def naming_conflicts(where: str) -> Iterator[None]:
    """Turns what the database says of others' changes into ConcurrentCommitError; around a transaction."""
    try:
        yield
    except psycopg.errors.SerializationFailure as error:
        raise overtaken(where) from error
