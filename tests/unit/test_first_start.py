"""The error that ends a task's first start says that its replication slot stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.capture.first_start import slot_hint
from tailrace.errors import SourceError
from tailrace.state import streams
from tailrace.state.streams import MADE, UNMADE, StreamRecord

from .task_home import TaskHome

pytestmark = pytest.mark.unit
SLOT = {"slot": "tailrace_shop"}


def ended(home: TaskHome, made: StreamRecord | None, hint: str | None = None) -> str | None:
    """The hint of an error that ends a start, in which this came of the stream."""
    with pytest.raises(SourceError) as caught, slot_hint(home.task):
        if made is not None:
            streams.write(home.task, made)
        raise SourceError("no rights to read shop.item", hint=hint)
    return caught.value.hint


def test_a_slot_that_the_first_start_has_made_stays_until_the_task_is_dropped(tmp_path: Path) -> None:
    home = TaskHome(tmp_path)
    hint = ended(home, StreamRecord(stream=1, state=MADE, identity=SLOT), hint="GRANT SELECT")
    assert hint is not None
    assert hint.splitlines()[0] == "GRANT SELECT"
    assert "slot tailrace_shop was created" in hint and "`tailrace drop TASK --yes`" in hint


def test_it_is_said_once(tmp_path: Path) -> None:
    """By the capture process, and by the one that runs it."""
    home = TaskHome(tmp_path)
    with pytest.raises(SourceError) as caught, slot_hint(home.task):
        ended_by = StreamRecord(stream=1, state=MADE, identity=SLOT)
        raise SourceError("capture ended", hint=ended(home, ended_by))
    assert caught.value.hint is not None and caught.value.hint.count("was created") == 1


@pytest.mark.parametrize(
    "made",
    [
        None,
        StreamRecord(stream=1, state=UNMADE),
        StreamRecord(stream=1, state=MADE, identity={"logaddr_bytes": "20"}),  # solidDB keeps nothing
    ],
    ids=["not reached", "refused", "nothing kept"],
)
def test_without_a_slot_nothing_is_said(tmp_path: Path, made: StreamRecord | None) -> None:
    assert ended(TaskHome(tmp_path), made) is None


def test_a_task_that_has_begun_keeps_its_slot_without_a_word(tmp_path: Path) -> None:
    home = TaskHome(tmp_path)
    home.baseline([], after=1)
    assert ended(home, StreamRecord(stream=1, state=MADE, identity=SLOT)) is None
    assert ended(home, None) is None
