"""Snapshots that fit a slot: all tables as of one position of the log, for readers in any process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from ..errors import SourceError
from .base import Snapshot
from .pg_connect import Session, asking, connect, literal, lsn, position_at, quoted, quoted_table

MOST = 63  # bytes of a PostgreSQL name
_TRIES = 10


class SlotSnapshot:
    """A slot just made, with the snapshot its making exported: good until this connection is closed.

    Args:
        url: the server.
        slot: its name.
        temporary: the slot goes with the connection.
    """

    def __init__(self, url: str, slot: str, *, temporary: bool = False, where: str = "") -> None:
        self._session = connect(url, replication="database")
        kind = "TEMPORARY " if temporary else ""
        export = "(SNAPSHOT 'export')" if self._session.info.server_version >= 150000 else "EXPORT_SNAPSHOT"
        try:
            with asking(where):
                row = self._session.execute(
                    f"CREATE_REPLICATION_SLOT {quoted(slot)} {kind}LOGICAL pgoutput {export}"
                ).fetchone()
        except BaseException:
            self._session.close()
            raise
        if row is None:
            raise SourceError("the server made no slot", where=where, hint="see the server's log")
        self.snapshot = Snapshot(row[2], position_at(lsn(row[1])))

    def close(self) -> None:
        """Gives up the snapshot, and the slot when it is temporary."""
        self._session.close()


_MOVED = """
select count(*) from pg_class c
where c.relkind = 'r' and pg_relation_filenode(c.oid) is distinct from c.relfilenode
  and c.oid in (select relid from unnest(%s::text[]) name, pg_partition_tree(name::regclass)
                union select name::regclass from unnest(%s::text[]) name)
"""
"""Tables whose file is another one than the snapshot knows (pg_class is read in the snapshot, the function is
not): truncated or rewritten since, they look empty in it."""


def held(url: str, snapshot: str, tables: Sequence[str], where: str) -> Session | None:
    """A session that keeps tables as the snapshot sees them, until it is closed; None when it is too late.

    TRUNCATE and rewriting ALTER TABLE do not honour snapshots. A lock (ACCESS SHARE, as pg_dump takes it)
    keeps them out; one that came before the lock is noticed.
    """
    session = connect(url)
    names = [quoted_table(table) for table in tables]
    try:
        with asking(where):
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            session.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
            if names:
                session.execute(f"LOCK TABLE {', '.join(names)} IN ACCESS SHARE MODE")
            moved = session.execute(_MOVED, (names, names)).fetchone()
    except BaseException:
        session.close()
        raise
    if moved and moved[0]:
        session.close()
        return None
    return session


@contextmanager
def temporary_snapshot(url: str, slot: str, tables: Sequence[str], where: str) -> Iterator[Snapshot]:
    """A snapshot at a position of the log, by a slot that lives no longer than the context."""
    suffix = f"_tmp_{secrets.token_hex(4)}"
    for _ in range(_TRIES):
        made = SlotSnapshot(url, slot[: MOST - len(suffix)] + suffix, temporary=True, where=where)
        try:
            keeper = held(url, made.snapshot.name, tables, where)
            if keeper is None:
                continue
            with closing(keeper):
                yield made.snapshot
            return
        finally:
            made.close()
    raise SourceError(
        f"tables were truncated or rewritten each of {_TRIES} times that they were to be read",
        where=where,
        hint="try again when such statements come less often",
    )
