"""Targets that lack their baseline: nothing is applied to them, and `check` names them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from tailrace.apply.merger import Merger
from tailrace.apply.reading import ApplyPaths
from tailrace.apply.required_changes import Needs
from tailrace.apply.rules import RulesApplier
from tailrace.apply.table_applier import TableApplier
from tailrace.apply.table_progress import TableProgress
from tailrace.engine.rules import Rules
from tailrace.errors import BaselineNeededError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeNumber, ChangeRange, Position
from tailrace.model.sequence import make
from tailrace.operate.checks import gone_findings
from tailrace.state.baselines import Baseline
from tailrace.state.ledger import Stored
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.target import DeltaTarget
from tests.unit.retention_home import ITEM, NOTE, NOW, Home

pytestmark = pytest.mark.unit


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def gone(home: Home) -> list[str]:
    return Needs(home.task).without_baseline([ITEM, NOTE])


def test_targets_that_have_their_baseline(home: Home) -> None:
    assert gone(home) == []


def test_a_target_that_was_removed(home: Home) -> None:
    shutil.rmtree(home.task.target_path(ITEM))
    assert gone(home) == [ITEM]


def test_a_target_that_somebody_made_anew(home: Home) -> None:
    home.baseline(ITEM, 2, after=12)
    home.applied(ITEM, 12)
    assert gone(home) == []
    shutil.rmtree(home.task.target_path(ITEM))
    lake.create(home.task.target_path(ITEM), pa.schema([("id", pa.int32())]))
    assert gone(home) == [ITEM]


def test_a_target_that_was_restored_from_before_its_newest_baseline(home: Home) -> None:
    home.baseline(ITEM, 2, after=40)
    assert gone(home) == [ITEM]
    home.applied(ITEM, 40)
    assert gone(home) == []


def test_the_task_looks_for_all_of_them_elsewhere(home: Home) -> None:
    home.file.write_text(f"{home.file.read_text()}target: elsewhere\n")
    assert gone(home) == [ITEM, NOTE]


def test_one_whose_new_baseline_is_on_its_way_is_none_of_them(home: Home) -> None:
    shutil.rmtree(home.task.target_path(ITEM))
    home.order("resync")
    assert gone(home) == []


def test_tables_without_a_target_are_none_of_them(home: Home) -> None:
    shutil.rmtree(home.task.target_path(ITEM))
    home.order("remove")
    assert gone(home) == []


def test_what_check_says(home: Home) -> None:
    shutil.rmtree(home.task.target_path(ITEM))
    (found,) = gone_findings(home.task, [ITEM, NOTE])
    assert (found.level, found.where) == ("error", ITEM)
    assert found.cure.endswith(f"take a new baseline: `tailrace resync TASK {ITEM}`")


@pytest.mark.parametrize(
    ("after", "progress", "exists", "refused"),
    [
        (0, 0, True, False),
        (0, None, False, True),
        (7, None, True, True),
        (7, 6, True, True),
        (7, 7, True, False),
        (None, None, False, False),
    ],
)
def test_nothing_is_applied_to_one(
    after: int | None, progress: int | None, exists: bool, refused: bool
) -> None:
    """`after`: of its baseline; None: it has none, and its first change makes the target."""
    target: Any = SimpleNamespace(progress=lambda _: progress, exists=lambda _: exists)
    history: Any = SimpleNamespace(baselines={} if after is None else {ITEM: SimpleNamespace(after=after)})
    found = TableProgress(target, None, history)
    if not refused:
        assert found.of(ITEM) == progress
        return
    with pytest.raises(BaselineNeededError) as error:
        found.of(ITEM)
    assert "has no baseline" in error.value.what and "tailrace resync" in str(error.value.hint)


LAYOUT = Relation(1, "shop", "item", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
CHANGES = pa.schema(
    [
        *((f"header__{n}", pa.string()) for n in ("change_seq", "change_oper", "stream_position")),
        ("id", pa.int32()),
    ]
)


@pytest.mark.parametrize("based", [True, False])
def test_one_that_vanishes_during_a_batch_is_not_made_anew_without_its_baseline(
    tmp_path: Path, based: bool
) -> None:
    """Without a baseline, its first change makes it."""
    target = DeltaTarget(None, str(tmp_path), app_id="x")  # type: ignore[arg-type]
    lake.append(path := f"{tmp_path}/ct", pa.table([[make(0, 5)], ["I"], [""], [1]], schema=CHANGES))
    paths, nobody = ApplyPaths("", "", "", "", lambda _: path), cast("Any", None)
    history: Any = SimpleNamespace(baselines={}, layouts={ITEM: [log.Layout(LAYOUT, b"", make(0, 0))]})
    if based:
        history.baselines[ITEM] = Baseline(ITEM, LAYOUT, Position(""), 0, 0, NOW, 0)
    progress = TableProgress(target, None, history)
    progress.advance(ITEM, ChangeNumber(0))  # it was there when a batch began
    merger = Merger(nobody, target, None, nobody)
    tables = TableApplier(target, paths, None, None, nobody, history, progress, merger)
    last = Stored(ChangeNumber(5), make(0, 5), Position(""), NOW)
    error = tables.apply(ITEM, last, {"I": 1}, [])
    assert isinstance(error, BaselineNeededError) is based
    assert (target.exists(ITEM), target.progress(ITEM)) == ((False, None) if based else (True, 5))


def test_one_that_vanishes_before_its_merge_is_not_made(tmp_path: Path) -> None:
    target = DeltaTarget(None, str(tmp_path), app_id="x")  # type: ignore[arg-type]
    (error,) = target.merge([batch(target, tmp_path)])
    assert isinstance(error, BaselineNeededError)
    assert not target.exists(ITEM)


def test_columns_of_rules_are_not_given_to_one_that_is_gone(tmp_path: Path) -> None:
    target = DeltaTarget(None, str(tmp_path / "lake"), app_id="x")  # type: ignore[arg-type]
    ruled = RulesApplier(target, Rules.of("soft_delete", {}), root=str(tmp_path), task="t")
    with pytest.raises(BaselineNeededError, match="has no baseline"):
        ruled.prepared(batch(target, tmp_path), 2)
    assert not target.exists(ITEM)


def batch(target: DeltaTarget, at: Path) -> ChangeBatch:
    return ChangeBatch(ITEM, LAYOUT, ChangeRange(0, 5), str(at / "ct"), target=target.path(ITEM))
