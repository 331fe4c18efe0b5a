"""Checks before every start whether capture will work; each finding has its meaning and the SQL that fixes
it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg

from ..base import NEW_TASK, SET_BACK, Finding, PassingFinding
from . import catalog, connection_limits
from . import slot as pg_slot
from .connect import ANEW, Session, lsn, lsn_text, quoted, quoted_table
from .rights import rights
from .slot import published
from .table_checks import Question, error, tables, warning

OLDEST = 140000
_GOING_S = 2.0
_NEAR = 0.25
"""The remaining share of `max_slot_wal_keep_size` below which a slot is near its limit."""
_KEEPS = {
    "idle_timeout": "then set idle_replication_slot_timeout to 0: it invalidates slots that are not read for "
    "that long",
    "wal_level_insufficient": "wal_level was below logical: set it back first",
}
"""Settings that protect the next slot, by the reason for which a slot was invalidated."""
_READER = "select active_pid from pg_replication_slots where slot_name = %s"
_SLOT = "select to_jsonb(s) from pg_replication_slots s where slot_name = %s"


def identity(session: Session, slot: str) -> dict[str, str]:
    """Returns the identity of server, database and slot: a position is only meaningful there."""
    row = session.execute(
        "select system_identifier::text, current_database()::text from pg_control_system()"
    ).fetchone()
    system, database = row or ("", "")
    return {"system_identifier": system, "database": database, "slot": slot}


def check(question: Question, stored: Mapping[str, Any] | None = None) -> list[Finding]:
    """Returns all findings, errors first; empty if capture can start.

    Args:
        question: the context of the check.
        stored: the `identity` when the task was created.
    """
    if question.session.info.server_version < OLDEST:
        version = question.session.info.parameter_status("server_version")
        return [
            error(f"PostgreSQL {version} is too old", question.server, "upgrade to PostgreSQL 14 or newer")
        ]
    found = [*_identity(question, stored or {})]
    for look in LOOKS:
        found += look(question)
    return sorted(found, key=lambda finding: finding.rank)


def _identity(q: Question, stored: Mapping[str, Any]) -> Iterator[Finding]:
    words = {
        "system_identifier": "another server (a restored copy, or a new cluster)",
        "database": "another database",
        "slot": "another slot",
    }
    now = identity(q.session, q.slot)
    for name, word in words.items():
        if name in stored and str(stored[name]) != now[name]:
            so = f"({name} was {stored[name]}, is {now[name]})"
            what = f"this is {word} than the task was created with: its positions are not valid here {so}"
            cure = "point the task at the right server, or start a new task with a new baseline"
            if stored.get("begin") == "":
                cure += "; if it has read nothing yet, `tailrace drop` it with the old address, then start"
            yield error(what, q.server, cure)


def _server(q: Question) -> Iterator[Finding]:
    if q.value("select pg_is_in_recovery()"):
        yield error(
            "the server is a standby: the task's slot cannot be created there", q.server, "use the primary"
        )
    if (level := q.value("show wal_level")) != "logical":
        yield error(
            f"wal_level is {level}: the log does not contain row changes",
            q.server,
            "ALTER SYSTEM SET wal_level = logical; then restart the server",
        )
    if q.value("show server_encoding") == "SQL_ASCII":
        yield warning(
            "the database's encoding is SQL_ASCII: it accepts any bytes as text, and a value that is not "
            "UTF-8 stops capture",
            q.server,
            "find and correct such values: docs/operating.md, Text that is not UTF-8",
        )
    used, most = q.value("select count(*) from pg_stat_replication"), int(q.value("show max_wal_senders"))
    if used >= most and q.settled:
        yield error(
            f"all {most} max_wal_senders are in use: no connection is left for the stream",
            q.server,
            f"ALTER SYSTEM SET max_wal_senders = {most + 5}; then restart the server",
        )
    free = most - used
    if free == 1:
        yield warning(
            "only one of max_wal_senders is left: a baseline while the stream runs needs two",
            q.server,
            f"ALTER SYSTEM SET max_wal_senders = {most + 5}; then restart the server",
        )


def _connections(q: Question) -> Iterator[Finding]:
    """Warns if limits are below what a baseline needs, while the task itself has no connections."""
    if not q.settled or not q.workers:
        return
    left, why = connection_limits.free(q.session)
    needed = q.workers + connection_limits.OWN
    if left + 1 < needed:  # this check's connection will be free
        yield warning(
            f"capture with a baseline uses up to {needed} connections (`baseline.workers` is {q.workers}), "
            f"and {why}: fewer parts of tables are read in parallel",
            q.server,
            f"`baseline: {{workers: {max(connection_limits.LEAST, left + 1 - connection_limits.OWN)}}}`, or "
            "raise the limit",
        )


def _publication(q: Question) -> Iterator[Finding]:
    row = q.session.execute(
        "select pubviaroot, pubinsert and pubupdate and pubdelete and pubtruncate"
        " from pg_publication where pubname = %s",
        (q.publication,),
    ).fetchone()
    if row is None:
        if q.begun and q.value("select 1 from pg_replication_slots where slot_name = %s", q.slot):
            yield error(
                "the publication is gone: changes made without it cannot be read",
                f"{q.server}, publication {q.publication}",
                ANEW,
            )
        return
    via_root, everything = row
    where = f"{q.server}, publication {q.publication}"
    if not via_root:
        yield error(
            "the publication names leaf partitions, not their root",
            where,
            f"ALTER PUBLICATION {quoted(q.publication)} SET (publish_via_partition_root = true)",
        )
    if not everything:
        yield error(pg_slot.KINDS_LEFT_OUT, where, pg_slot.all_kinds(q.publication))
    if extra := sorted((published(q.session, q.publication) or set()) - set(q.tables)):
        names = ", ".join(quoted_table(table) for table in extra)
        cure = f"ALTER PUBLICATION {quoted(q.publication)} DROP TABLE {names}; or add them to the task"
        if not pg_slot.named(q.session, q.publication).issuperset(extra):
            cure = "add them to the task; a publication of all tables, or of a schema, cannot leave out any"
        then = "they are captured too"
        if pg_slot.owned(q.session, q.publication):
            then = "those that the task had before are removed when capture starts, others are captured too"
        yield warning(
            f"the publication has more tables than the task: {', '.join(extra)}; {then}",
            where,
            cure,
        )
    yield from _filters(q)


def _filters(q: Question) -> Iterator[Finding]:
    """Yields the tables of which the publication sends only some rows."""
    try:
        found = pg_slot.row_filters(q.session, q.publication, catalog.oids(q.session, q.tables))
    except psycopg.errors.LockNotAvailable:
        return  # `check` names the table that is locked
    for relid, table in catalog.names(q.session, [*found]).items():
        yield warning(
            f"the publication sends only rows where {found[relid]}: the target has no other rows",
            f"{q.server}, {table}",
            f"to capture all: ALTER PUBLICATION {quoted(q.publication)} SET TABLE ... without WHERE, "
            f"then `tailrace resync TASK {table}`",
            table,
        )


def _idle_timeout(q: Question, where: str) -> Iterator[Finding]:
    """Warns of the setting that invalidates slots which are not read (PostgreSQL 18)."""
    timeout = q.value("select current_setting('idle_replication_slot_timeout', true)")
    if timeout not in (None, "0"):
        yield warning(
            f"idle_replication_slot_timeout is {timeout}: if capture does not run for that long, the server "
            "invalidates the slot, and changes are lost",
            where,
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
        )


def _slot(q: Question) -> Iterator[Finding]:
    slot = q.value(_SLOT, q.slot)
    where = f"{q.server}, slot {q.slot}"
    yield from _set_back(q)
    yield from _idle_timeout(q, where)
    if slot is None:
        if q.begun:
            yield error("the slot is gone: changes since then are lost", where, ANEW)
        yield from _room(q)
        return
    if not q.settled:
        yield from _retained(q, slot, where)
        return  # it may advance, or be dropped, during the check
    ours = slot["plugin"] == "pgoutput" and slot["database"] == q.value("select current_database()")
    if not (ours and q.begun):
        other = f"give this task another slot, `source: {{slot: {q.slot[:60]}_2}}` in the task file"
        read = "a process reads it" if slot["active"] else "no process reads it"
        drop = (
            f"; if the slot in database {slot['database']} is no longer needed: "
            f"SELECT pg_drop_replication_slot('{q.slot}')"
        )
        yield error(
            f"a slot with this name exists that this task did not create: plugin {slot['plugin']}, "
            f"database {slot['database']}, {read}; reading it would take its changes from its owner",
            where,
            other if slot["active"] else other + drop,
        )
        return
    reason = slot.get("invalidation_reason")
    if slot["wal_status"] == "lost" or reason:
        yield error(
            f"the server invalidated the slot ({reason or 'its log was removed'}): changes are lost",
            where,
            f"{ANEW}; {_KEEPS.get(reason or '', 'a larger max_slot_wal_keep_size keeps more log')}",
        )
        return
    yield from _retained(q, slot, where)
    if slot["active"] and (reader := _reader(q)):
        yield PassingFinding(  # a reader on a lost host stays until wal_sender_timeout has passed
            "error",
            f"process {reader} is already reading the slot",
            where,
            f"stop the other capture, or SELECT pg_terminate_backend({reader})",
        )
    confirmed = lsn(slot["confirmed_flush_lsn"] or "0/0")
    if q.after is not None and confirmed > q.after:
        yield error(
            f"the slot is at {slot['confirmed_flush_lsn']}, this task has read up to "
            f"{lsn_text(q.after)}: changes in between are lost (another client has read or recreated the "
            "slot)",
            where,
            ANEW,
        )


def _retained(q: Question, slot: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Warns of log that the server keeps for the slot if its disk may fill, or the slot may soon be
    invalidated."""
    if slot["wal_status"] not in ("extended", "unreserved") and slot["safe_wal_size"] is None:
        return
    _, kept, left = pg_slot.retained(q.session, q.slot)
    size, limit = (kept or 0) >> 20, q.value("show max_slot_wal_keep_size")
    idle = "" if slot["active"] else ", and no process reads it"
    page = "see docs/operating.md for the settings"
    if not slot["active"]:
        page = f"start capture, or end the task with `tailrace drop`; {page}"
    if left is not None and (slot["wal_status"] == "unreserved" or left < _NEAR * (left + (kept or 0))):
        then = f"the server invalidates it after {max(left, 0) >> 20:,} MiB more, and changes are lost"
        what = f"the slot keeps {size:,} MiB of log{idle}; {then} (max_slot_wal_keep_size is {limit})"
        yield warning(what, where, page)
    elif slot["wal_status"] == "extended":
        what = f"the slot keeps {size:,} MiB of log{idle}: more than max_wal_size"
        yield warning(f"{what}, and the server's disk may fill", where, page)


def _reader(q: Question) -> int | None:
    """Returns the process that reads the slot, if it stays; a server needs a moment to notice that a reader
    has ended."""
    end = time.monotonic() + _GOING_S
    while (reader := q.value(_READER, q.slot)) and time.monotonic() < end:
        time.sleep(0.1)
    return int(reader) if reader else None


def _set_back(q: Question) -> Iterator[Finding]:
    """Finds a server that was restored from a backup and reuses positions, at which the stream would skip new
    changes.

    Once its log has grown past the task's position, the log itself shows this (`resent`).
    """
    end = q.value(
        "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()"
        " else pg_current_wal_flush_lsn() end::text"
    )
    if q.after is not None and end is not None and lsn(end) < q.after:
        yield error(
            f"the server's log ends at {end}, and this task has read up to {lsn_text(q.after)}: {SET_BACK}",
            q.server,
            NEW_TASK,
        )


def _room(q: Question) -> Iterator[Finding]:
    most = int(q.value("show max_replication_slots"))
    if q.value("select count(*) from pg_replication_slots") >= most:
        yield error(
            f"all {most} max_replication_slots are in use",
            q.server,
            f"SELECT pg_drop_replication_slot(...) an unused one, or ALTER SYSTEM SET "
            f"max_replication_slots = {most + 5}; then restart the server",
        )
    row = q.session.execute(
        "select pid, extract(epoch from now() - xact_start)::int from pg_stat_activity"
        " where backend_xid is not null and now() - xact_start > interval '1 minute' order by 2 desc limit 1"
    ).fetchone()
    if row:
        yield warning(
            f"process {row[0]} has had a transaction open for {row[1]} s: creating the slot waits until "
            "it ends",
            q.server,
            f"end the transaction, or SELECT pg_terminate_backend({row[0]})",
        )


LOOKS: tuple[Callable[[Question], Iterator[Finding]], ...] = (
    _server, rights, _connections, _publication, _slot, tables
)  # fmt: skip
"""The checks in order; each yields findings."""
