"""The streams that a task reads: from which server and position on, and whether one has to be replaced.

A stream is what the source keeps for a task so that no change is missed: PostgreSQL's replication slot. What
lies between two of them is lost, so a new one is never begun in silence. `<home>/control/streams` is a small
Delta table that is only ever added to; its newest row counts:

| column | type | meaning |
| --- | --- | --- |
| `number` | bigint | 1, 2, 3, ...: of the row |
| `stream` | bigint | 1, 2, 3, ...: of the stream |
| `state` | string | `making`, `made`, `unmade` or `anew` |
| `at` | timestamp (UTC) | when |
| `who`, `why` | string | of the order that gave up the stream before |
| `identity` | string | JSON: server, stream's name there, position (hex) where it begins, `published` |
| `after` | string | where LOG ended then (hex): from there to `begin` changes are missing |
| `change_seq` | string | the greatest that LOG could have had by then |

`published` says how each table is in the stream; another row tells when that changes.

`making`: it is about to be made, at the server that `identity` names. A process that dies then leaves one
that nobody has read; it is made again.
`unmade`: the source refused to make it. `anew`: an operator gave up the stream before; this one is to come.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import ConfigError, TailraceError
from ..lake import delta as lake
from ..lake import log
from ..lake.failpoints import reach
from ..model import sequence
from . import live

if TYPE_CHECKING:
    from ..config.task import Task

MAKING, MADE, UNMADE, ANEW = "making", "made", "unmade", "anew"
SCHEMA = pa.schema(
    [
        ("number", pa.int64()), ("stream", pa.int64()), ("state", pa.string()),
        ("at", pa.timestamp("us", "UTC")), ("who", pa.string()), ("why", pa.string()),
        ("identity", pa.string()), ("after", pa.string()), ("change_seq", pa.string()),
    ]
)  # fmt: skip
APP = "tailrace/streams"
_RENEWED = 3
"""Rows that there are at least once a stream was replaced: `anew`, `making`, `made`."""
PUBLISHED = "published"
"""Key of the identity: JSON, how each table was in the stream when capture prepared it."""
_OF_THE_STREAM = ("slot", "begin", PUBLISHED)
"""Keys of the identity that a new stream does not share with the previous one."""


@dataclass(frozen=True)
class StreamRecord:
    """What a task knows of its stream; see the module. `stream` 0: it has had none yet."""

    number: int = 0
    stream: int = 0
    state: str = UNMADE
    identity: Mapping[str, str] = field(default_factory=dict)
    who: str = ""
    why: str = ""

    @property
    def stored(self) -> Mapping[str, str] | None:
        """What the source has to match; None: nothing is known. An empty `begin`: its stream does not exist
        yet.

        >>> StreamRecord(2, 1, MADE, {"slot": "tailrace_shop", "begin": "0A"}).stored
        {'slot': 'tailrace_shop', 'begin': '0A'}
        >>> StreamRecord(3, 2, ANEW, {"database": "shop", "slot": "tailrace_shop", "begin": "0A"}).stored
        {'database': 'shop', 'begin': ''}
        """
        if self.state == MADE or not self.stream:
            return self.identity or None
        return server_of(self.identity) | {"begin": ""}

    @property
    def published(self) -> dict[str, str]:
        """How tables were in the stream when capture prepared them."""
        return dict(json.loads(self.identity.get(PUBLISHED, "{}")))


def server_of(identity: Mapping[str, str]) -> dict[str, str]:
    """What an identity says of the server, without the stream there."""
    return {k: v for k, v in identity.items() if k not in _OF_THE_STREAM}


@dataclass(frozen=True)
class Renewed:
    """A stream that replaced another one: changes between `after` and `begin` (positions, hex) are missing.

    Attributes:
        at: when it was made.
        change_seq: what LOG had reached by `after`.
    """

    after: str
    begin: str
    at: dt.datetime
    change_seq: str


def renewed(task: Task) -> list[Renewed]:
    """The streams that replaced other ones, in order."""
    path = task.control_path("streams")
    if lake.progress(path, APP) < _RENEWED:
        return []
    rows = (r for r in lake.read(path).to_pylist() if r["stream"] > 1 and r["state"] == MADE)
    found: dict[int, Renewed] = {}
    for r in sorted(rows, key=lambda r: int(r["number"])):  # the first row of each: later ones add to it
        begin = json.loads(r["identity"]).get("begin", "")
        found.setdefault(r["stream"], Renewed(r["after"] or "", begin, r["at"], r["change_seq"]))
    return list(found.values())


def newest(task: Task) -> StreamRecord:
    """The current record."""
    path = task.control_path("streams")
    if not lake.exists(path):
        return StreamRecord()
    row = max(lake.read(path).to_pylist(), key=lambda r: int(r["number"]))
    return StreamRecord(
        row["number"], row["stream"], row["state"], json.loads(row["identity"]), row["who"], row["why"]
    )


def give_up(task: Task, *, who: str, why: str) -> int:
    """Orders that the task's stream is given up and a new one created; returns the new stream's number.

    Raises:
        ConfigError: capture runs, or the task has read nothing yet.
    """
    with live.lock(task.run_path, "capture"):
        now = refuse_unread(task)
        if now.state == MADE:
            now = write(task, replace(now, stream=now.stream + 1, state=ANEW, who=who, why=why))
    return now.stream


def refuse_unread(task: Task) -> StreamRecord:
    """The current record; ConfigError if there is no stream that could be given up."""
    now = newest(task)
    if not now.stream:
        raise ConfigError(
            "the task has not read anything yet: it has no slot to replace",
            where=task.name,
            hint="start it with `tailrace run`",
        )
    return now


def write(task: Task, one: StreamRecord) -> StreamRecord:
    """Adds a row after the one that `one` follows; TailraceError if another process has added one."""
    state = log.state(task.log_path)
    position = state.position
    row = {
        "number": one.number + 1,
        "stream": one.stream,
        "state": one.state,
        "at": dt.datetime.now(dt.timezone.utc),
        "who": one.who,
        "why": one.why,
        "identity": json.dumps(dict(one.identity)),
        "after": position.hex().upper() if position else None,
        "change_seq": sequence.make(state.time, state.number),
    }
    path, rows = task.control_path("streams"), pa.Table.from_pylist([row], SCHEMA)
    reach("streams.record")
    if lake.append(path, rows, progress={APP: one.number + 1}) is None:
        raise TailraceError("another process captures this task", where=path, hint="stop one of them")
    return replace(one, number=one.number + 1)
