"""Reads the changes of one row from its change table, in order, with before and after images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.dataset as ds

from ..lake.opened import open_table
from ..lake.reading import dataset
from ..model import mask
from ..model.change import BEFORE, HEADERS, OPERATIONS, PREFIX
from ..model.sequence import number_of


@dataclass(frozen=True)
class StoryEvent:
    """One change of one row.

    Attributes:
        number: the change's number in the task.
        oper: its letter (I, U, D).
        operation: the name of the operation.
        time: commit time, UTC.
        transaction: the source's transaction id (decimal).
        position: its position in the source's log (hex).
        changed: names of the columns in its change mask.
        before, after: the images the source sent, column -> value; None for an image it did not send.
    """

    number: int
    oper: str
    operation: str
    time: Any
    transaction: int
    position: str
    changed: list[str]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def life(changes: str, column: str, values: Sequence[Any]) -> list[StoryEvent]:
    """Returns the changes of the rows whose `column` has one of the values, oldest first.

    `changes` is the change table's path. For the demo only: it reads a handful of rows, not a table.
    """
    table = dataset(open_table(changes))
    rows = table.to_table(filter=ds.field(column).isin(list(values))).to_pylist()
    names = table.schema.names
    rows.sort(key=lambda r: (r[PREFIX + "change_seq"], r[PREFIX + "change_oper"]))
    events: list[StoryEvent] = []
    before: dict[str, Any] | None = None
    for row in rows:
        head = {name: row[PREFIX + name] for name in HEADERS}
        image = _image(row, names, head["column_mask"])
        if head["change_oper"] == BEFORE:
            before = image
            continue
        if head["change_oper"] == "D":
            before, image = image, {}
        events.append(_event(head, names, before, image or None))
        before = None
    return events


def _event(
    head: dict[str, Any], names: Sequence[str], before: dict[str, Any] | None, after: dict[str, Any] | None
) -> StoryEvent:
    return StoryEvent(
        number_of(head["change_seq"]),
        head["change_oper"],
        OPERATIONS[head["change_oper"]],
        head["timestamp"],
        int(head["transaction_id"], 16),
        head["stream_position"],
        [names[n] for n in mask.decode(head["change_mask"])],
        before,
        after,
    )


def _image(row: dict[str, Any], names: Sequence[str], carried: bytes | None) -> dict[str, Any]:
    """Returns the data columns of an image."""
    present = set(range(len(names))) if carried is None else set(mask.decode(carried))
    return {name: row[name] for n, name in enumerate(names) if n >= len(HEADERS) and n in present}
