"""The streams that a task reads: from which server and position on, and whether one has to be replaced.

A stream is what the source keeps for a task so that no change is missed: PostgreSQL's replication slot.
Changes between two streams are lost, so a new one is never begun in silence. The newest row of the
append-only table `<home>/control/streams` counts:

| column | type | meaning |
| --- | --- | --- |
| `number` | bigint | 1, 2, 3, ...: of the row |
| `stream` | bigint | 1, 2, 3, ...: of the stream |
| `state` | string | `making`, `made`, `unmade` or `anew` |
| `at` | timestamp (UTC) | when |
| `who`, `why` | string | of the command that gave up the stream before |
| `identity` | string | JSON: server, stream's name there, position (hex) where it begins, `published` |
| `after` | string | where LOG ended then (hex): from there to `begin` changes are missing |
| `change_seq` | string | the greatest that LOG could have had by then |

`published` says how each table is in the stream; a change of that is another row.

`making`: it is about to be made, at the server that `identity` names. A process that dies then leaves one
that has not been read; it is made again.
`unmade`: the source refused to make it. `anew`: an operator gave up the stream before; this one is to come.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import CommitFailedError

from ..errors import ConfigError, OvertakenError, TailraceError
from ..lake import log
from ..model import sequence
from ..model.positions import ChangeSeq, Position
from . import live
from .declarations import STREAMS
from .state_table import StateTable

if TYPE_CHECKING:
    from ..config.task import Task

MAKING, MADE, UNMADE, ANEW = "making", "made", "unmade", "anew"
_RENEWED = 3
"""Rows that there are at least once a stream was replaced: `anew`, `making`, `made`."""
PUBLISHED = "published"
"""Key of the identity: JSON, how each table was in the stream when capture prepared it."""
_OF_THE_STREAM = ("slot", "begin", PUBLISHED)
"""Keys of the identity that a new stream does not share with the previous one."""


@dataclass(frozen=True)
class StreamRecord:
    """A record of a task's stream; see the module. `stream` 0: it has had none yet."""

    number: int = 0
    stream: int = 0
    state: str = UNMADE
    identity: Mapping[str, str] = field(default_factory=dict)
    who: str = ""
    why: str = ""

    @property
    def stored(self) -> Mapping[str, str] | None:
        """Identity that the source has to match; None if nothing is known. An empty `begin`: its stream does
        not exist yet.

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
        """Each table's publication when capture prepared the stream."""
        return dict(json.loads(self.identity.get(PUBLISHED, "{}")))


def server_of(identity: Mapping[str, str]) -> dict[str, str]:
    """The part of an identity that is about the server, without the stream there."""
    return {k: v for k, v in identity.items() if k not in _OF_THE_STREAM}


@dataclass(frozen=True)
class Renewed:
    """A stream that replaced another one: changes between `after` and `begin` (positions, hex) are missing.

    Attributes:
        at: when it was made.
        change_seq: what LOG had reached by `after`.
    """

    after: Position
    begin: Position
    at: dt.datetime
    change_seq: ChangeSeq


_Row = tuple[StreamRecord, Position, dt.datetime, ChangeSeq]
"""A record, where LOG ended then, when it was written, and the greatest change sequence of LOG."""


def renewed(task: Task) -> list[Renewed]:
    """The streams that replaced other ones, in order."""
    table = _table(task)
    if table.newest < _RENEWED:
        return []
    found: dict[int, Renewed] = {}
    for record, after, at, seq in table.rows():  # the first row of each stream: later ones add to it
        if record.stream > 1 and record.state == MADE:
            found.setdefault(
                record.stream, Renewed(after, Position(record.identity.get("begin", "")), at, seq)
            )
    return list(found.values())


def newest(task: Task) -> StreamRecord:
    """The current record."""
    rows = _table(task).rows()
    return rows[-1][0] if rows else StreamRecord()


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
    state, table = log.state(task.log_path), _table(task)
    row = {
        "stream": one.stream,
        "state": one.state,
        "who": one.who,
        "why": one.why,
        "identity": json.dumps(dict(one.identity)),
        "after": state.position.hex().upper() if state.position else None,
        "change_seq": sequence.make(state.time, state.number),
    }
    try:
        return replace(one, number=table.append([row], follows=one.number))
    except (OvertakenError, CommitFailedError) as error:
        raise TailraceError(
            "another process captures this task", where=table.path, hint="stop one of them"
        ) from error


def _table(task: Task) -> StateTable[_Row]:
    return StateTable(task.control_path("streams"), STREAMS, _parse)


def _parse(row: Mapping[str, Any]) -> _Row:
    stored = (row["number"], row["stream"], row["state"], json.loads(row["identity"]), row["who"], row["why"])
    return StreamRecord(*stored), Position(row["after"] or ""), row["at"], row["change_seq"]
