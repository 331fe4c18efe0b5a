"""The publication and the replication slot of a task."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Sequence

import psycopg

from ...errors import PositionError, SourceError, TableMovedError
from ..base import OF_TABLE
from . import locks
from .connect import ANEW, Session, lsn, quoted, quoted_table
from .publication import publication_query

MOST = 63
"""The maximum bytes of a PostgreSQL name."""
IN_USE, IN_USE_S = "55006", 10.0
"""SQL state of a slot in use, and seconds for which it is requested again: the server needs a moment to
notice that a reader has ended."""
KINDS_LEFT_OUT = "the publication leaves out kinds of changes: targets would differ from the source"
_KINDS = "select pubinsert and pubupdate and pubdelete and pubtruncate from pg_publication where pubname = %s"
_ENTRIES = """
select s.nspname || '.' || c.relname, concat_ws(' ', p.oid, p.xmin, {entry}) || '{of_table}' || c.oid
from pub p cross join members m
join pg_class c on c.oid = m.oid join pg_namespace s on s.oid = c.relnamespace
left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid {join}"""
_PUBLISHED = """
select s.nspname || '.' || c.relname from members m
join pg_class c on c.oid = m.oid join pg_namespace s on s.oid = c.relnamespace"""
_NAMED = """
select s.nspname || '.' || c.relname from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
join pg_class c on c.oid = r.prrelid join pg_namespace s on s.oid = c.relnamespace where p.pubname = %s"""
_SCHEMAS = "left join pg_publication_namespace n on n.pnpubid = p.oid and n.pnnspid = s.oid"
_FILTERS = """
select r.prrelid::bigint, pg_get_expr(r.prqual, r.prrelid) from pg_publication_rel r
  join pg_publication p on p.oid = r.prpubid join pg_class c on c.oid = r.prrelid
where p.pubname = %s and r.prrelid = any(%s::oid[]) and r.prqual is not null and not p.puballtables
  and not exists (
    select from pg_publication_namespace n where n.pnpubid = p.oid and n.pnnspid = c.relnamespace)
"""
"""No rows are filtered if a publication has the table's whole schema."""


def name_of(task: str) -> str:
    """Returns the name of a task's publication and slot; unique per task, even if characters are replaced or
    cut.

    >>> name_of("shop_eu"), name_of("shop-eu")
    ('tailrace_shop_eu', 'tailrace_shop_eu_8c4e0485')
    """
    name = "tailrace_" + re.sub("[^a-z0-9_]", "_", task.lower())
    if name == f"tailrace_{task}" and len(name) <= MOST:
        return name
    digest = "_" + hashlib.sha256(task.encode()).hexdigest()[:8]
    return name[: MOST - len(digest)] + digest


def begins(session: Session, slot: str) -> int | None:
    """Returns the LSN at which a slot's changes begin; None without the slot."""
    row = session.execute(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", (slot,)
    ).fetchone()
    return None if row is None else lsn(row[0] or "0/0")


def retained(session: Session, slot: str) -> tuple[int, int | None, int | None]:
    """Returns the log's end (LSN), the bytes that a slot retains, and the bytes until the server discards
    them.

    The second is None without the slot, the third if the server never discards them (`max_slot_wal_keep_size`
    is -1).
    """
    row = session.execute(
        "select pg_current_wal_flush_lsn() - '0/0', pg_current_wal_flush_lsn() - restart_lsn, safe_wal_size "
        "from (values (1)) one left join pg_replication_slots on slot_name = %s",
        (slot,),
    ).fetchone()
    end, kept, left = row or (0, None, None)
    return int(end), None if kept is None else max(0, int(kept)), None if left is None else int(left)


def published(session: Session, publication: str) -> set[str] | None:
    """Returns the tables (`schema.table`) in a publication; None without the publication."""
    if not session.execute("select 1 from pg_publication where pubname = %s", (publication,)).fetchone():
        return None
    rows = session.execute(publication_query(session, _PUBLISHED), (publication,))
    return {name for (name,) in rows}


def still_published(session: Session, publication: str, where: str) -> None:
    """Raises PositionError if the publication does not exist."""
    if published(session, publication) is None:
        what = "the publication is gone: changes made without it cannot be read"
        raise PositionError(what, where=f"{where}, publication {publication}", hint=ANEW)


def entries(session: Session, publication: str) -> dict[str, str] | None:
    """Returns the tables in a publication, each with the catalog rows that include it, and its oid; None
    without the publication.

    Altering the publication, or its options for a table, creates other rows, even if it is altered back.
    Adding and removing other tables does not change them. In a publication of all tables, or of a schema, a
    table that is created again has the same rows.

    Raises:
        SourceError: it leaves out kinds of changes.
    """
    row = session.execute(_KINDS, (publication,)).fetchone()
    if row is None:
        return None
    if not row[0]:
        raise SourceError(KINDS_LEFT_OUT, where=f"publication {publication}", hint=all_kinds(publication))
    schemas = session.info.server_version >= 150000
    entry = "coalesce(r.oid, n.oid)" if schemas else "r.oid"
    query = _ENTRIES.format(entry=entry, of_table=OF_TABLE, join=_SCHEMAS if schemas else "")
    return dict(session.execute(publication_query(session, query), (publication,)).fetchall())


def all_kinds(publication: str) -> str:
    """Returns the statement that makes a publication send all changes."""
    return f"ALTER PUBLICATION {quoted(publication)} SET (publish = 'insert, update, delete, truncate')"


def options(session: Session) -> str:
    """Returns the options of a publication that tailrace creates."""
    said = "publish_via_partition_root = true"
    if session.info.server_version >= 180000:
        # Without it, PostgreSQL 18 refuses updates of tables with REPLICA IDENTITY FULL and such a column.
        said += ", publish_generated_columns = stored"
    return f"WITH ({said})"


def owned(session: Session, publication: str) -> bool:
    """Returns whether the role may alter a publication; False if it does not exist."""
    row = session.execute(
        "select pg_has_role(pubowner, 'USAGE') from pg_publication where pubname = %s", (publication,)
    ).fetchone()
    return bool(row and row[0])


def publish(
    session: Session, publication: str, tables: Sequence[str], lacking: Collection[str] | None = None
) -> dict[str, str]:
    """Creates the publication, or adds missing tables; removes none.

    Returns the tables that are still missing because they are locked, with the lock holders.

    Raises:
        TableMovedError: a table is missing that was not among those `lacking` before (None: unknown): it was
            dropped and created again since, and has lost changes.
    """
    there = published(session, publication)
    lost = [table for table in tables if table not in (there or ())]
    if there is not None and not lost:
        return {}
    if there is not None and lacking is not None and (new := sorted(set(lost) - set(lacking))):
        raise TableMovedError(f"{', '.join(new)} left the publication", where=publication)
    if there is None:
        session.execute(f"CREATE PUBLICATION {quoted(publication)} {options(session)}")
    return _altered(session, publication, "ADD", lost)


def _altered(session: Session, publication: str, how: str, tables: Sequence[str]) -> dict[str, str]:
    """Adds tables to a publication or drops them, except locked ones; returns these with the lock holders.

    A lock of an autovacuum does not count, because it is cancelled.
    """
    held = locks.holders(session, {t: quoted_table(t) for t in tables}, locks.PUBLISH)
    waits = {t: locks.said(by) for t, by in held.items() if not all(one.vacuums for one in by)}
    free = [t for t in tables if t not in waits]
    if free and not _alter(session, publication, how, free):
        for table in free:
            if not _alter(session, publication, how, [table]):
                waits[table] = locks.locked_by(session, quoted_table(table), locks.PUBLISH)
    return waits


def _alter(session: Session, publication: str, how: str, tables: Sequence[str]) -> bool:
    """Returns whether the locks of all tables were available."""
    names = ", ".join(f"ONLY {quoted_table(table)}" for table in tables)  # without ONLY: with children
    statement = f"ALTER PUBLICATION {quoted(publication)} {how} TABLE {names}"
    try:
        session.execute(f"set local lock_timeout = '{locks.PUBLISH_PATIENCE}'; {statement}".encode())
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def named(session: Session, publication: str) -> set[str]:
    """Returns the tables (`schema.table`) that a publication lists explicitly."""
    return {name for (name,) in session.execute(_NAMED, (publication,))}


def row_filters(session: Session, publication: str, relids: Sequence[int]) -> dict[int, str]:
    """Returns the conditions on the rows that a publication sends, by table oid; waits for locks of these
    tables.

    Tables without a condition are missing (PostgreSQL 14 has no filters).
    """
    if session.info.server_version < 150000:
        return {}
    return dict(session.execute(_FILTERS, (publication, list(relids))).fetchall())


def withdraw(session: Session, publication: str, tables: Sequence[str]) -> dict[str, str]:
    """Removes tables from the publication if it lists them; returns those that stay because they are locked,
    with the lock holders.

    A publication of another owner is not changed. In one of all tables, or of a schema, tables stay.
    """
    if not owned(session, publication):
        return {}
    there = named(session, publication)
    return _altered(session, publication, "DROP", [t for t in tables if t in there])


def next_transaction(session: Session) -> int:
    """Returns an id greater than those of all transactions that have written by now. The id is consumed.

    A snapshot only has the successor of the greatest ended id, and open transactions may have that or greater
    ones.
    """
    row = session.execute("select pg_current_xact_id()::text::bigint").fetchone()
    return int(row[0]) if row else 0


def oldest_transaction(session: Session) -> int:
    """Returns the id of the oldest open transaction that has written, or the next id."""
    row = session.execute("select pg_snapshot_xmin(pg_current_snapshot())::text::bigint").fetchone()
    return int(row[0]) if row else 0


def log_end(session: Session) -> int:
    """Returns an LSN after everything committed by now, which the stream will reach without further writes.

    The stream reads flushed log. Commits that did not wait for the flush (synchronous_commit off) are flushed
    within three wal_writer_delays. Records that are not flushed after a second belong to no commit.
    """
    row = session.execute(
        "select pg_current_wal_insert_lsn() - '0/0', current_setting('wal_block_size')"
    ).fetchone()
    inserted, page = (int(row[0]), int(row[1])) if row else (0, 8192)
    if inserted % page <= 40:  # directly after a page header: the last record ended at the page boundary
        inserted -= inserted % page
    deadline = time.monotonic() + 1.0
    while True:
        row = session.execute("select pg_current_wal_flush_lsn() - '0/0'").fetchone()
        flushed = int(row[0]) if row else 0
        if flushed >= inserted or time.monotonic() > deadline:
            return flushed
        time.sleep(0.02)


def drop(session: Session, slot: str) -> None:
    """Drops a slot if it exists; waits a moment if its reader has just ended."""
    end = time.monotonic() + IN_USE_S
    while True:
        try:
            session.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s",
                (slot,),
            )
            return
        except psycopg.Error as error:
            if error.sqlstate != IN_USE or time.monotonic() > end:
                raise
        time.sleep(0.05)
