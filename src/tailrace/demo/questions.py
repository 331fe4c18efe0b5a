"""Asks the demo's three questions about its own data, as a user would ask them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from ..engine.commits import CHANGE_TYPE
from ..library.open_task import OpenTask
from ..model.change import PREFIX, TRUNCATE
from ..model.sequence import number_of

TRUNCATED, BUSY = "shop.reading", "public.pgbench_accounts"
LAST = timedelta(seconds=5)
SHOWN = 5
"""The maximum number of changes of a row that are shown; a busy account has many more."""


@dataclass(frozen=True)
class Answer:
    """A question as text and as a command, and its rows."""

    question: str
    command: str
    rows: list[dict[str, Any]]


def ask(task_file: Path) -> list[Answer]:
    """Queries a table's rows before its truncate, the net changes of the last seconds, and the changes of one
    account."""
    task = OpenTask(task_file)
    return [_before_the_truncate(task), _last_seconds(task), _busiest(task)]


def _before_the_truncate(task: OpenTask) -> Answer:
    table = task.table(TRUNCATED)
    changes = table.changes(columns=[]).table()
    cut = changes.filter(pc.equal(changes[f"{PREFIX}change_oper"], TRUNCATE))
    number = number_of(cut[f"{PREFIX}change_seq"][0].as_py())
    counts = [("before", table.as_of(number - 1)), ("after", table.as_of(number)), ("now", table.current())]
    rows = [{"as of": name, "rows": found.table().num_rows} for name, found in counts]
    command = f"tailrace query as-of {task.file} {TRUNCATED} --at {number - 1}"
    return Answer(f"How many rows had {TRUNCATED} before it was truncated?", command, rows)


def _last_seconds(task: OpenTask) -> Answer:
    times = task.table(BUSY).changes(columns=[]).table()[f"{PREFIX}timestamp"]
    start = pc.max(times).as_py() - LAST
    rows = []
    for name in task.tables:
        if name.startswith("public."):
            found = Counter(task.table(name).net(start).table()[CHANGE_TYPE].to_pylist())
            rows.append({"table": name, **{k: found[k] for k in ("insert", "update_postimage", "delete")}})
    place = f"{start:%Y-%m-%dT%H:%M:%SZ}"
    command = f"tailrace query net {task.file} {BUSY} --start {place}"
    return Answer(f"What did the last {LAST.seconds} seconds of load change?", command, rows)


def _busiest(task: OpenTask) -> Answer:
    table = task.table(BUSY)
    key = table.key[0]
    ids = table.changes(columns=[key]).table()[key]
    found = ids.value_counts()
    counts = found.field("counts")
    most = found.field("values")[pc.index(counts, pc.max(counts)).as_py()].as_py()
    life = table.chain({key: most}).table()
    rows = [
        {
            "at": row["_commit_timestamp"],
            "change": row[CHANGE_TYPE],
            "changed": row["changed"],
            "after": row["after"],
        }
        for row in life.slice(max(life.num_rows - SHOWN, 0)).to_pylist()
    ]
    command = f"tailrace query chain {task.file} {BUSY} --key {key}={most}"
    said = f"What happened to account {most}? The last {len(rows)} of {life.num_rows} changes:"
    return Answer(said, command, rows)
