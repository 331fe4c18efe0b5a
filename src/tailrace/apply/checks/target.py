"""Checks of a target that is a database: whether it answers, whether its changes would be captured again, and
the rights of its role.

A source and a target with different addresses may be the same database: the servers are asked, as addresses
do not show it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ...config import addresses
from ...config.task import Task
from ...errors import ApplyError, TailraceError, TargetLostError
from ...sources.base import Finding
from ...sources.postgresql import connect as pg_source
from ...sources.postgresql.address import address
from ...sources.postgresql.checks import identity
from ...sources.postgresql.connect import Session
from ...state import streams
from ...state.baselines import read_baselines
from ...state.ledger import APPLIED_APP
from ...state.progress import Progress
from ...targets.postgresql.connection import SCHEMES, UNICODE, Database, answered, holds, open_session
from ...targets.postgresql.progress import TABLE
from ...targets.task_tables import iceberg_tables
from ..mapping.table_map import applied_places
from .rights import rights_findings

_ELSE = (
    "put the targets into another database, or into a schema that the task does not capture: `?schema=NAME` "
    "at the end of the target's address, and `source: {exclude: [NAME.*]}` if `source.tables` selects it"
)


def target_findings(task: Task, tables: Sequence[str]) -> list[Finding]:
    """Findings about the target's database: it cannot be reached or written to, its changes would be captured
    again, or rights of its role are missing; or about the catalog of Iceberg tables. Delta targets have
    none."""
    if task.target.type == "iceberg":
        return _catalog_findings(task)
    if not task.target.database:
        return []
    database = Database.of(task.target.database)
    try:
        with open_session(database, database.label) as mine:
            if mine.execute("select pg_is_in_recovery()").fetchone() == (True,):
                what = "the target's server is a standby: it takes no writes"
                hint = "use the primary's address (`target.database`)"
                return [Finding("error", what, database.label, hint)]
            if feeding := _feeding(task, database, mine, tables):
                return feeding  # the targets need another database or schema
            targets = [database.split(at.target) for at in applied_places(task, tables).values()]
            rights = rights_findings(mine, database, [t for t in targets if t[0]])
            return [*_encoding(mine, database), *rights]
    except ApplyError as error:
        waiting = isinstance(error, TargetLostError) and waits(task)
        what = f"{error.what}; the task waits for it" if waiting else error.what
        return [
            Finding("warning" if waiting else "error", what, error.where or database.label, error.hint or "")
        ]


def _encoding(on: Session, database: Database) -> Iterator[Finding]:
    """A warning about a database whose encoding does not have all characters. That a batch has such a
    character is known only when it is written."""
    (encoding,) = on.execute("show server_encoding").fetchone() or ("",)
    if encoding not in ("UTF8", "SQL_ASCII"):
        yield Finding(
            "warning",
            f"the target's database has the encoding {encoding}: a batch with a character that is not in it "
            "ends with an error, under every policy for `data_error`",
            database.label,
            UNICODE,
        )


def _catalog_findings(task: Task) -> list[Finding]:
    """Findings about the catalog of Iceberg targets: it does not answer, or pyiceberg is not installed."""
    try:
        tables = iceberg_tables(task)
        tables.exists(tables.name("tailrace.check"))
    except TailraceError as error:
        waiting = isinstance(error, TargetLostError) and waits(task)
        what = f"{error.what}; the task waits for it" if waiting else error.what
        return [Finding("warning" if waiting else "error", what, "target.catalog", error.hint or "")]
    return []


def waits(task: Task) -> bool:
    """Whether a task waits for a target that does not answer.

    It does if the target has answered this process before, or the task has written to it. Otherwise the
    address may be wrong.
    """
    if task.target.database and answered(Database.of(task.target.database)):
        return True
    if Progress.read(task.control_path("applied"), APPLIED_APP).number is not None:
        return True
    taken = read_baselines(task.control_path("baselines"))
    # The baseline of a mapped table has no version: it may still be in staging.
    return any(one.version is not None for one in taken.values())


def feeding_findings(task: Task, tables: Sequence[str]) -> list[Finding]:
    """Findings for tables whose targets would be captured again; none while the target cannot be reached."""
    with suppress(ApplyError):
        return _feeding_at_target(task, tables)
    return []


def refuse_to_drop(task: Task, tables: Sequence[str], *, ask_source: bool = True) -> None:
    """Raises ApplyError if the target of one of these tables is a table of the source.

    Without `ask_source`, the database from which the task first captured counts as the source.
    """
    for one in _feeding_at_target(task, tables, ask_source=ask_source):
        if one.where not in tables:  # it concerns no table's target
            continue
        raise ApplyError(
            f"{one.what}: it is not dropped",
            where=one.where,
            hint="`tailrace drop` without `--targets` (`tailrace remove` without `--drop-target`) keeps it",
        )


def _feeding_at_target(task: Task, tables: Sequence[str], *, ask_source: bool = True) -> list[Finding]:
    database = Database.of(task.target.database)
    if not task.target.database or not any(_loops(task, database, tables)):
        return []
    with open_session(database, database.label) as mine:
        return _feeding(task, database, mine, tables, ask_source=ask_source)


def _feeding(
    task: Task, database: Database, mine: pg_source.Session, tables: Sequence[str], *, ask_source: bool = True
) -> list[Finding]:
    """The possible loops, if both databases are the same."""
    if not (loops := list(_loops(task, database, tables))):
        return []
    return loops if (_is_source(task, mine) if ask_source else _was_source(task, mine)) else []


def _loops(task: Task, database: Database, tables: Sequence[str]) -> Iterator[Finding]:
    """Findings that are true if the source and the target are in the same database."""
    for table, at in applied_places(task, tables).items():
        target = ".".join(database.split(at.target))
        if target == table:
            what = "source and target are the same table of one database: its changes would be captured again"
            yield Finding("error", what, table, _ELSE, table)
        elif target in tables or task.source.selects(target):
            what = (
                f"its target {target} is in the source's database, and the task captures it: changes would "
                "be captured again"
            )
            yield Finding("error", what, table, _ELSE, table)
    if tables and task.source.selects(own := f"{database.control}.{TABLE}"):
        what = f"the task captures {own}, where it records its progress: it would never be up to date"
        yield Finding("error", what, database.label, f"`source: {{exclude: [{database.control}.*]}}`")


def _is_source(task: Task, mine: pg_source.Session) -> bool:
    """Whether a connection's database is the source: a lock that is taken in one is held in the other.

    A restored copy has the same identifiers, but its own locks. Every role may take locks.
    """
    url, number = task.source.url, secrets.randbits(63)
    if addresses.source_scheme(url) not in SCHEMES:
        return False
    with pg_source.connect(url) as other, other.transaction(), mine.transaction():
        with pg_source.asking(address(url)):
            other.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
        return not holds(mine, "SELECT pg_try_advisory_xact_lock(%s)", (number,))


def _was_source(task: Task, mine: pg_source.Session) -> bool:
    """Whether a connection's database has the identity of the database that the task captured."""
    stored, now = streams.newest(task).stored or {}, identity(mine, "")
    return all(stored.get(name) == now[name] for name in ("system_identifier", "database"))
