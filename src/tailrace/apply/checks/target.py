"""Checks of a target that is a database: whether it answers, whether what it gets is captured again, and what
its role may do.

A source and a target with two addresses may be one database: the servers tell, not the addresses.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ...config import addresses
from ...config.task import Task
from ...errors import ApplyError, TargetLostError
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
from ..target_places import applied_places
from .rights import rights_findings

_ELSE = (
    "put the targets into another database, or into a schema that the task does not capture: `?schema=NAME` "
    "at the end of the target's address, and `source: {exclude: [NAME.*]}` if `source.tables` selects it"
)


def target_findings(task: Task, tables: Sequence[str]) -> list[Finding]:
    """Findings about the database that some tables are replicated to: it cannot be asked, or written to, what
    is written to it would be captured again, or the role lacks rights. None for Delta targets."""
    if not task.target.database:
        return []
    database = Database.of(task.target.database)
    try:
        with open_session(database, database.label) as mine:
            if mine.execute("select pg_is_in_recovery()").fetchone() == (True,):
                what = "the target's server is a standby: it takes no writes"
                return [
                    Finding("error", what, database.label, "use the primary's address (`target.database`)")
                ]
            if feeding := _feeding(task, database, mine, tables):
                return feeding  # the targets have to go elsewhere
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
    """Of a database that lacks characters: only when a batch is written is it known that one has them."""
    (encoding,) = on.execute("show server_encoding").fetchone() or ("",)
    if encoding not in ("UTF8", "SQL_ASCII"):
        yield Finding(
            "warning",
            f"the target's database has the encoding {encoding}: a batch with a character that this lacks "
            "ends with an error, whatever `data_error` says",
            database.label,
            UNICODE,
        )


def waits(task: Task) -> bool:
    """Whether a task waits for a target that does not answer: it has answered this process, or the task has
    written to it. If neither, its address may be wrong."""
    if answered(Database.of(task.target.database)):
        return True
    if Progress.read(task.control_path("applied"), APPLIED_APP).number is not None:
        return True
    taken = read_baselines(task.control_path("baselines"))
    return any(one.version is not None for one in taken.values())  # those of mapped tables wait elsewhere


def feeding_findings(task: Task, tables: Sequence[str]) -> list[Finding]:
    """Findings for tables whose targets would be captured again; none while the target cannot be asked."""
    with suppress(ApplyError):
        return _asked(task, tables)
    return []


def refuse_to_drop(task: Task, tables: Sequence[str], *, ask_source: bool = True) -> None:
    """Raises ApplyError if the target of one of these tables is a table of the source.

    Without `ask_source`, the database that the task began with counts as the source.
    """
    for one in _asked(task, tables, ask_source=ask_source):
        if one.where not in tables:  # it concerns no table's target
            continue
        raise ApplyError(
            f"{one.what}: it is not dropped",
            where=one.where,
            hint="`tailrace drop` without `--targets` (`tailrace remove` without `--drop-target`) leaves "
            "everything where it is",
        )


def _asked(task: Task, tables: Sequence[str], *, ask_source: bool = True) -> list[Finding]:
    database = Database.of(task.target.database)
    if not task.target.database or not any(_doubts(task, database, tables)):
        return []
    with open_session(database, database.label) as mine:
        return _feeding(task, database, mine, tables, ask_source=ask_source)


def _feeding(
    task: Task, database: Database, mine: pg_source.Session, tables: Sequence[str], *, ask_source: bool = True
) -> list[Finding]:
    """The doubts, if both databases are one."""
    if not (doubts := list(_doubts(task, database, tables))):
        return []
    return doubts if (_is_source(task, mine) if ask_source else _was_source(task, mine)) else []


def _doubts(task: Task, database: Database, tables: Sequence[str]) -> Iterator[Finding]:
    """Findings that hold if the source's database is the target's, too."""
    for table, at in applied_places(task, tables).items():
        target = ".".join(database.split(at.target))
        if target == table:
            what = (
                "source and target are the same table of the same database: its changes would feed themselves"
            )
            yield Finding("error", what, table, _ELSE, table)
        elif target in tables or task.source.selects(target):
            what = (
                f"its target {target} is in the source's database, and the task captures it: changes would "
                "feed themselves"
            )
            yield Finding("error", what, table, _ELSE, table)
    if tables and task.source.selects(own := f"{database.control}.{TABLE}"):
        what = f"the task captures {own}, in which it notes its own progress: it would never come to an end"
        yield Finding("error", what, database.label, f"`source: {{exclude: [{database.control}.*]}}`")


def _is_source(task: Task, mine: pg_source.Session) -> bool:
    """Whether a connection's database is the source: a lock that is taken in one is held in the other.

    A restored copy has the same identifiers, and locks of its own; and every role may lock.
    """
    url, number = task.source.url, secrets.randbits(63)
    if addresses.source_scheme(url) not in SCHEMES:
        return False
    with pg_source.connect(url) as other, other.transaction(), mine.transaction():
        with pg_source.asking(address(url)):
            other.execute("SELECT pg_advisory_xact_lock(%s)", (number,))
        return not holds(mine, "SELECT pg_try_advisory_xact_lock(%s)", (number,))


def _was_source(task: Task, mine: pg_source.Session) -> bool:
    """Whether a connection's database has the identity of the one that the task captured."""
    stored, now = streams.newest(task).stored or {}, identity(mine, "")
    return all(stored.get(name) == now[name] for name in ("system_identifier", "database"))
