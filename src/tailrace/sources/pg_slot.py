"""What capture keeps at the source: a publication and a replication slot."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from .pg_connect import Session, quoted, quoted_table

_MOST = 63  # bytes of a PostgreSQL name


def name_of(task: str) -> str:
    """The name of a task's publication and slot.

    >>> name_of("Shop-EU")
    'tailrace_shop_eu'
    """
    return ("tailrace_" + re.sub("[^a-z0-9_]", "_", task.lower()))[:_MOST]


def published(session: Session, publication: str) -> set[str] | None:
    """Tables (`schema.table`) in a publication; None when there is no such publication."""
    if not session.execute("select 1 from pg_publication where pubname = %s", (publication,)).fetchone():
        return None
    rows = session.execute(
        "select schemaname || '.' || tablename from pg_publication_tables where pubname = %s", (publication,)
    )
    return {name for (name,) in rows}


def publish(session: Session, publication: str, tables: Sequence[str]) -> None:
    """Makes the publication, or adds the tables it lacks; takes none out."""
    there = published(session, publication)
    lacking = [table for table in tables if table not in (there or ())]
    if there is not None and not lacking:
        return
    names = ", ".join(f"ONLY {quoted_table(table)}" for table in lacking)  # without ONLY: its children too
    if there is None:
        options = "publish_via_partition_root = true"
        if session.info.server_version >= 180000:
            # Without it, 18 refuses updates of tables with REPLICA IDENTITY FULL and such a column.
            options += ", publish_generated_columns = stored"
        of = f"FOR TABLE {names} " if names else ""
        session.execute(f"CREATE PUBLICATION {quoted(publication)} {of}WITH ({options})")
    else:
        session.execute(f"ALTER PUBLICATION {quoted(publication)} ADD TABLE {names}")


def withdraw(session: Session, publication: str, tables: Sequence[str]) -> None:
    """Takes tables out of the publication, as far as they are in it."""
    there = published(session, publication) or set()
    names = ", ".join(f"ONLY {quoted_table(table)}" for table in tables if table in there)
    if names:
        session.execute(f"ALTER PUBLICATION {quoted(publication)} DROP TABLE {names}")


def next_transaction(session: Session) -> int:
    """The number that the next transaction which writes will have."""
    row = session.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    return int(row[0]) if row else 0


def oldest_transaction(session: Session) -> int:
    """The number of the oldest transaction that has written and goes on; the next one's when none does."""
    row = session.execute("select pg_snapshot_xmin(pg_current_snapshot())::text::bigint").fetchone()
    return int(row[0]) if row else 0


def log_end(session: Session) -> int:
    """An LSN behind everything committed by now that the stream will reach without further writes.

    The stream goes as far as the log is flushed. Commits that did not wait for that (synchronous_commit off)
    are flushed within three wal_writer_delays; what is not after a second belongs to nobody's commit.
    """
    row = session.execute(
        "select pg_current_wal_insert_lsn() - '0/0', current_setting('wal_block_size')"
    ).fetchone()
    inserted, page = (int(row[0]), int(row[1])) if row else (0, 8192)
    if inserted % page <= 40:  # right behind a page's header: the last record ended at the page's border
        inserted -= inserted % page
    deadline = time.monotonic() + 1.0
    while True:
        row = session.execute("select pg_current_wal_flush_lsn() - '0/0'").fetchone()
        flushed = int(row[0]) if row else 0
        if flushed >= inserted or time.monotonic() > deadline:
            return flushed
        time.sleep(0.02)


def drop(session: Session, slot: str, publication: str) -> None:
    """Takes away slot and publication, where they are there."""
    session.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", (slot,)
    )
    session.execute(f"DROP PUBLICATION IF EXISTS {quoted(publication)}")
