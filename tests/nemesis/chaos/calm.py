"""No faults any more: everything is drained, by commands as users give them, or by a Spark session that stays."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tailrace.config.task import Task, load
from tailrace.errors import TailraceError
from tailrace.lake import log
from tailrace.runtime.pipeline import Pipeline
from tailrace.runtime.session import session
from tailrace.sources.postgresql.layout import UNKNOWN_COLUMN, UNKNOWN_VALUE

from .commands import PYTHON, tailrace
from .lives import tracebacks
from .validators import CALM, source_tables

if TYPE_CHECKING:
    from .driver import Round

DRAIN_S = 1500.0
"""A find is a state that is wrong, not a machine that is slow."""
TRIES = 6
NO_REST = "it does not come to rest"
WITH_OWN_JVM = 0.2
"""How often everything is drained by `run --once`, which starts a JVM of its own: a minute or more."""


def calm(at: Round, file: Path, url: str, random: Random, *, whole: bool) -> None:
    """What is paused is resumed, what is removed comes back, everything is drained. A find, when it cannot be."""
    tries: list[str] = []
    mended: set[str] = set()
    for n in range(TRIES):
        resident = whole and random.random() > WITH_OWN_JVM
        code, text = _command(at, file, n, "run" if whole and not resident else "capture")
        if resident and not code:
            code, text = _drained(file)
        at.say(f"calm {n}: code {code}")
        if code:
            tries.append(f"code {code}: {text[-700:]}")
            continue
        unproved = _unproved(load(file)) - mended
        for table in sorted(unproved):
            at.say(f"  {table} has columns that could not be proved")
            tailrace("resync", file, table)
        mended |= unproved
        if not _ordered(at, file, url) and not unproved:
            return
    at.finds.append(f"{NO_REST}: {tries[-1] if tries else 'tables stay paused, suspended or removed'}")


def _command(at: Round, file: Path, n: int, action: str) -> tuple[int, str]:
    said = at.folder / f"calm-{n}.log"
    with said.open("w") as out:
        try:
            code = subprocess.run(
                [*PYTHON, action, str(file), "--once"], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                timeout=DRAIN_S, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = 124
    text = said.read_text(errors="replace")
    at.finds += tracebacks(f"calm {n}", text)
    return code, " / ".join(text.strip().splitlines()[-8:])


def _drained(file: Path) -> tuple[int, str]:
    """The Spark half of `run --once`, in this process."""
    task = load(file)
    try:
        Pipeline(task, session("tailrace chaos", conf=task.spark.session_conf)).drain()
    except TailraceError as error:
        return 1, str(error)
    return 0, ""


def _unproved(task: Task) -> set[str]:
    """Tables of which capture has said that older rows of a column have NULL, and that a new baseline mends it."""
    newest = {table: layouts[-1].relation for table, layouts in log.history(task.relations_path).items()}
    notes = UNKNOWN_COLUMN, UNKNOWN_VALUE
    return {table for table, one in newest.items() if any(c.note in notes for c in one.columns)}


def _ordered(at: Round, file: Path, url: str) -> bool:
    """Gives the orders that bring all tables back; whether there were any. A table that is gone at the source is
    removed, as an operator does."""
    there, done, given = source_tables(url), tailrace("status", file, "--json"), False
    for one in json.loads(done.stdout)["tables"] if done.returncode == 0 else []:
        state, why = one["state"], str(one.get("why"))
        action = {"paused": "resume", "removed": "add", "suspended": "resync"}.get(state)
        if one["table"] not in there:
            action = "remove" if state != "removed" else None
        if action is None and (state in CALM or one["table"] not in there):
            continue
        at.say(f"  {one['table']} is {state}: {why}")
        if "no replica identity" in why:
            with psycopg.connect(url, autocommit=True) as db:
                name = sql.Identifier(*one["table"].split(".", 1))
                db.execute(sql.SQL("alter table {} replica identity full").format(name))
        if action:
            tailrace(action, file, one["table"])
        given = True
    return given
