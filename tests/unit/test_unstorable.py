"""What a change table cannot hold suspends its table, before apply can see the batch."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.config.task import Task, read
from tailrace.errors import UnsupportedError
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.state import capture_gaps, commands
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.store.unstorable import BadValue, LeftChange, TableSuspensions
from tailrace.store.writer import Store, StorePaths

from .messages import insert
from .test_log_and_store import ITEM, chunk, writer
from .test_log_gaps import tasks

pytestmark = pytest.mark.unit
SEQ = f"2023111422132000{17:019d}"
BAD = BadValue(
    SEQ, "64", "s.t", "n", "NaN", "'NaN' does not fit s.t.n (lake type decimal(5,1))", False, False
)


def task_of(folder: Path, more: str = "") -> Task:
    found = read(f"name: t\nsource: {{url: 'postgresql://localhost/shop'}}\nhome: home\n{more}", folder)
    assert isinstance(found, Task)
    return found


def given(task: Task) -> list[tuple[str, str, str]]:
    return [(one.action, one.who, one.why) for one in commands.read(task.commands_path)]


def baseline_at(task: Task, position: str) -> None:
    now = dt.datetime.now(dt.timezone.utc)
    write_baseline(
        task.control_path("baselines"),
        Baseline("s.t", Relation(7, "s", "t", "d", ()), position, 0, 1, now, 0.0),
    )


def test_first_bad_value_of_a_table_suspends_it_once(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    later = replace(BAD, change_seq=f"{SEQ[:-2]}18", value="1e99")
    TableSuspensions(task).for_values([later, BAD])
    TableSuspensions(task).for_values([later])
    ((action, who, why),) = given(task)
    assert (action, who) == ("suspend", "store")
    assert why == (
        f"'NaN' does not fit s.t.n (lake type decimal(5,1)), in change number 17 (change_seq {SEQ}): "
        "`control/quarantine` has it, and the changes wait; `tailrace resume TASK s.t` continues with NULL "
        "instead of it; or correct it at the source, or keep the column as text (`types: {s.t.n: string}` and a new "
        "start), then `tailrace resync TASK s.t`"
    )


def test_reason_of_an_earlier_suspension_stays(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    commands.suspend(task.commands_path, "s.t", "somebody has to look", who="ddl")
    TableSuspensions(task).for_values([BAD])
    assert given(task)[1][2].endswith("; it was suspended before: somebody has to look")


def test_bad_value_of_a_row_key_is_not_resumed(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    TableSuspensions(task).for_values([replace(BAD, keyed=True)])
    assert "a row key cannot be NULL: correct it" in given(task)[0][2] and "resume" not in given(task)[0][2]


@pytest.mark.parametrize(
    ("more", "bad", "baseline"),
    [
        ("on_bad_value: quarantine\n", BAD, None),
        ("", replace(BAD, before=True), None),  # the change that wrote it has had it
        ("", BAD, "65"),  # replaced since
    ],
)
def test_bad_value_that_suspends_nothing(
    tmp_path: Path, more: str, bad: BadValue, baseline: str | None
) -> None:
    task = task_of(tmp_path, more)
    if baseline:
        baseline_at(task, baseline)
    TableSuspensions(task).for_values([bad])
    assert given(task) == []


def test_changes_of_a_layout_that_a_change_table_cannot_have_are_left(tmp_path: Path) -> None:
    """All others are stored; with nobody to suspend the table it is an error."""
    w = writer(tmp_path)
    w.add(chunk(100, b"B", insert(7, [1, "1"]), b"C"))
    w.commit()
    twin = ITEM.with_columns([*ITEM.columns, Column("N", 3, "text", "text", "string")])
    other = ITEM.with_columns([*ITEM.columns, Column("m", 3, "text", "text", "string")])
    for lsn, layout in ((200, twin), (300, other)):
        w.add(replace(chunk(lsn, b"B", insert(7, [lsn, "1", "x"]), b"C"), relations=[(0, layout)]))
        w.commit()
    path = {n: str(tmp_path / n) for n in ("relations", "tracking", "stored", "quarantine")}
    paths = StorePaths(**path, changes=lambda _: str(tmp_path / "item__ct"))
    everything = tasks(lake.read(str(tmp_path / "log")).sort_by("CHANGE_SEQ"))
    with pytest.raises(UnsupportedError, match="cannot have both of the columns n and N"):
        Store(paths).batch(everything)
    task = task_of(tmp_path)
    Store(paths, suspend=TableSuspensions(task)).batch(everything)
    assert lake.read(str(tmp_path / "item__ct")).sort_by("id")["id"].to_pylist() == [1, 300]
    assert sorted(lake.read(path["tracking"])["_Change-Sequence"].to_pylist()) == [2, 8]
    assert [(action, who) for action, who, _ in given(task)] == [("suspend", "store"), ("anew", "store")]
    (gap,) = capture_gaps.of_table(task, "shop.item")
    assert (gap.why, gap.closed, gap.ends) == (capture_gaps.MADE_AGAIN, False, True)
    TableSuspensions(task).for_layout(next_left(), UnsupportedError("again"))
    assert len(given(task)) == 2


def next_left() -> LeftChange:
    """Another change that is left."""
    return LeftChange("FF", "shop.item", 7, 4)


def test_table_of_which_no_layout_can_be_stored_keeps_no_other_from_it(tmp_path: Path) -> None:
    twin = ITEM.with_columns([*ITEM.columns, Column("N", 3, "text", "text", "string")])
    w = writer(tmp_path)
    w.add(replace(chunk(100, b"B", insert(7, [1, "1", "x"]), b"C"), relations=[(0, twin)]))
    w.commit()
    path = {n: str(tmp_path / n) for n in ("relations", "tracking", "stored", "quarantine")}
    paths = StorePaths(**path, changes=lambda _: str(tmp_path / "item__ct"))
    store = Store(paths, suspend=TableSuspensions(task_of(tmp_path)))
    done = store.batch(tasks(lake.read(str(tmp_path / "log")).sort_by("CHANGE_SEQ")))
    assert done is not None and (done.upto, done.tables) == (3, {})
    assert not lake.exists(str(tmp_path / "item__ct"))
