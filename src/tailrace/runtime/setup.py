"""Writes a task file for a database (`tailrace init`), and validates or repairs a task (`tailrace
validate`), with source, session and, if nothing runs, a catch-up."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from ..apply.target_owner import owner_findings, owner_of
from ..capture.replica_identities import identity_errors, left_out_findings
from ..capture.table_selection import select_tables
from ..config import addresses, secrets, task_schema
from ..config.base import plain
from ..config.task import Task
from ..config.template import brief
from ..config.template import full as full_text
from ..errors import ConfigError
from ..model.nearest import meant_tables
from ..model.steps import Steps
from ..sources import open_source
from ..sources.base import Finding
from ..state import live

if TYPE_CHECKING:
    from ..execution import BackgroundSession
    from ..validate.sessions import Sessions
    from ..validate.validation import ValidationReport
    from .repair_requests import Outcome


_PASSWORDS = re.compile(r"(^\w+://[^:/?@]*:)(?!\$\{)[^@/]+(?=@)|([?&]((?:ssl)?password)=)(?!\$\{)[^&]+")


@dataclass(frozen=True)
class Draft:
    """A task file that was written: its path, its tables, remaining findings, and the environment variables
    of the passwords in its address (empty if it has none in plain text)."""

    path: Path
    tables: list[str]
    findings: list[Finding] = field(default_factory=list)
    variables: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns the draft for `--json`."""
        return {
            "path": str(self.path),
            "tables": self.tables,
            "findings": [asdict(f) for f in self.findings if f.level != "note"],
            "notes": [asdict(f) for f in self.findings if f.level == "note"],
            "variables": list(self.variables),
        }


def draft(
    url: str,
    *,
    name: str | None = None,
    patterns: Sequence[str] | None = None,
    output: Path | None = None,
    force: bool = False,
    full: bool = False,
) -> Draft:
    """Writes a task file for a database, and its schema next to it; checks whether capture can run.

    Args:
        url: the database's address.
        name: the task's name; by default that of the database.
        patterns: tables to capture (`schema.table` with `*` and `?`); by default every table, by name.
        output: the file; by default `<name>.yaml` in the working directory.
        force: overwrite an existing file.
        full: write every setting, not only the most common ones.

    Raises:
        ConfigError: the file exists, no table is selected, a target belongs to another task, or the name or
            address is invalid.
        SourceError: the database does not answer.
    """
    resolved = _expanded(url, (output.resolve().parent if output else Path.cwd()))
    addresses.check(resolved)
    name = name or name_for(resolved)
    path = output or Path(f"{name}.yaml")
    if path.exists() and not force:
        raise ConfigError("the task file already exists", where=str(path), hint="--file FILE, or --force")
    task = _task(name, url, patterns or ["*.*"], path)
    source = open_source(task)
    try:
        tables, left = select_tables(source, task, task.source.tables), source.left_out()
        if not tables:
            near = meant_tables(task.source.tables[0], source.tables(["*.*"]))
            near = "; ".join(one.what for one in left_out_findings(task, left)) or near
            what = f"no table matches {', '.join(task.source.tables)}"
            raise ConfigError(what, where="the database", hint=near or "name the tables: schema.table")
        for one in owner_findings(task, tables, owner_of(task, source.identity()), {}):
            raise ConfigError(one.what, where=one.where, hint="--name NAME: its targets go to NAME/target")
        findings = [*source.check(tables, None), *identity_errors(task, source, tables)]
        findings += [*left_out_findings(task, left), *source.offers(tables)]
        findings.sort(key=lambda one: one.rank)
    finally:
        source.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    address, variables = without_passwords(url, name)
    text = full_text if full else brief
    path.write_text(text(_task(name, url, patterns or tables, path), url=address))
    task_schema.write(path.parent)
    return Draft(path, tables, findings, variables)


def _expanded(url: str, folder: Path) -> str:
    """Returns the address with variables and files replaced by their values."""
    try:
        return secrets.expand(url, folder, address=True)
    except ValueError as error:
        raise ConfigError(str(error), where="the address", hint="set it, or use another variable") from None


def without_passwords(url: str, task: str) -> tuple[str, tuple[str, ...]]:
    """Returns an address with an environment variable instead of each password, and these variables in order
    (none if it has no password, or variables already).

    >>> without_passwords("postgresql://me:a%40b@db/shop?sslmode=require", "web-shop")
    ('postgresql://me:${WEB_SHOP_PASSWORD}@db/shop?sslmode=require', ('WEB_SHOP_PASSWORD',))
    >>> without_passwords("postgresql://me:a@db/x?sslpassword=b", "x")
    ('postgresql://me:${X_PASSWORD}@db/x?sslpassword=${X_SSLPASSWORD}', ('X_PASSWORD', 'X_SSLPASSWORD'))
    >>> without_passwords("postgresql://me:${PW}@db:5433/shop", "shop")
    ('postgresql://me:${PW}@db:5433/shop', ())
    >>> without_passwords("postgresql://me:${file:/run/pw}@db/shop?sslpassword=${file:/run/key}", "shop")
    ('postgresql://me:${file:/run/pw}@db/shop?sslpassword=${file:/run/key}', ())
    """
    start = ("_" if task[0].isdigit() else "") + task.upper().replace("-", "_")
    names: list[str] = []

    def variable(found: re.Match[str]) -> str:
        name = f"{start}_{(found[3] or 'password').upper()}"
        again = sum(one.startswith(name) for one in names)
        names.append(f"{name}_{again + 1}" if again else name)
        return f"{found[1] or found[2]}${{{names[-1]}}}"

    return _PASSWORDS.sub(variable, url), tuple(names)


def _task(name: str, url: str, patterns: Sequence[str], path: Path) -> Task:
    given = {"name": name, "source": {"url": url, "tables": list(patterns)}}
    try:
        return Task.model_validate(given, context={"folder": path.resolve().parent})
    except ValidationError as error:
        # The message does not contain the values: the address may contain a password.
        found = error.errors(include_url=False)
        words = (f"{'.'.join(map(str, e['loc']))}: {plain(e['msg'])}" for e in found)
        raise ConfigError("\n  ".join(words), where="tailrace init") from None


def name_for(url: str) -> str:
    """Derives a task name from the database's name.

    >>> name_for("postgresql://me@db:5432/Web%20Shop"), name_for("postgresql://db")
    ('web-shop', 'task')
    """
    database = unquote(urlsplit(url).path.strip("/")).lower()
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in database)
    return safe.strip("-")[:40] or "task"


def validate_task(
    task_file: Path,
    task: Task,
    tables: Sequence[str],
    *,
    timeout_s: float,
    samples: int,
    steps: Steps | None = None,
    session: BackgroundSession | None = None,
) -> ValidationReport:
    """Compares source and target of a task, running or not; see `validate.validate` for what is raised.

    When neither half of the task runs, this process captures, stores and applies what the source has.

    Args:
        task_file, task, tables, timeout_s, samples, steps: as for `validate.validate`.
        session: the session whose tasks read and compare large tables, once it is ready. By default the one
            that runs in this process, or one that starts if only Spark's SQL can compute something.
    """
    with _validation(task, steps or Steps(), session) as (validated, catch_up, _):
        running = any(live.locked(task.run_path, half) for half in ("capture", "pipeline"))
        return validated(
            tables=tables,
            catch_up=None if running else catch_up,
            timeout_s=timeout_s,
            samples=samples,
        )


def repair_task(
    task: Task,
    tables: Sequence[str],
    *,
    dry_run: bool,
    samples: int,
    timeout_s: float = 120.0,
    steps: Steps | None = None,
    session: BackgroundSession | None = None,
) -> Outcome:
    """Compares source and target of a task, and writes the differences to the target. If the task runs, its
    own process does that.

    Args:
        task, tables, samples, timeout_s, session: as for `validate_task`.
        dry_run: report what would be written, and write nothing.

    Raises:
        ConfigError: capture runs, and the pipeline does not.
    """
    from ..validate.repair import Repair
    from .repair_requests import Options, repair_with, request_repair

    options = Options(tuple(tables), dry_run, samples, timeout_s, getpass.getuser())
    steps = steps or Steps()
    if live.locked(task.run_path, "pipeline"):
        return request_repair(task, options, steps)
    if live.locked(task.run_path, "capture"):
        raise ConfigError(
            "capture of the task runs, its pipeline does not: nothing would apply changes before the repair",
            where=task.name,
            hint="start `tailrace pipeline`, which does the repair, or stop `tailrace capture`",
        )
    if session is not None:
        session.begin()
    with _validation(task, steps, session) as (validated, catch_up, sessions):
        repair = Repair(task, sessions, dry_run, steps)
        return repair_with(repair, partial(validated, catch_up=catch_up), options)


def session_for(task: Task) -> BackgroundSession:
    """Returns the session of a validation: one that runs in this process, or one that may be started."""
    from .session import background_session

    found = background_session(f"tailrace validate {task.name}", task.spark)
    if found.running is not None:
        found.begin()
    return found


@contextmanager
def _validation(
    task: Task, steps: Steps, session: BackgroundSession | None
) -> Iterator[tuple[Callable[..., ValidationReport], Callable[[], None], Sessions]]:
    """Yields `validate` with the task's source, a catch-up to run before it, and the sessions."""
    steps.now("connecting to the source")
    from ..validate import validation as validate
    from ..validate.sessions import Sessions

    sessions = Sessions(session or session_for(task), steps)
    source = open_source(task)
    try:
        validated = partial(validate.validate, task, sessions, source, steps=steps)
        yield validated, lambda: _catch_up(task, sessions, steps), sessions
    finally:
        source.close()


def _catch_up(task: Task, sessions: Sessions, steps: Steps) -> None:
    from ..capture.process import Capture
    from .pipeline import Pipeline

    steps.now("capturing the source's current changes")
    Capture(task, once=True).run()
    steps.now("applying what is not applied yet")
    Pipeline(task, sessions.waiting("changes wait that only Spark can apply")).drain()
