"""Targets that lack their baseline: nothing is applied to them, and `check` names them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from tailrace.apply.rules import RulesApplier

from tailrace.apply.required_changes import Needs
from tailrace.apply.table_progress import TableHistory, TableProgress
from tailrace.engine.rules import Rules
from tailrace.errors import BaselineNeededError
from tailrace.lake import delta as lake
from tailrace.model.change import ChangeTable, Column, Relation
from tailrace.operate.checks import gone_findings
from tailrace.targets.base import Target
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.plans import TableBatch
from tests.unit.retention_home import ITEM, NOTE, Home

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
    ("after", "standing", "there", "refused"),
    [
        (-1, -1, True, False),
        (-1, -1, False, True),
        (7, -1, True, True),
        (7, 6, True, True),
        (7, 7, True, False),
        (None, -1, False, False),
    ],
)
def test_nothing_is_applied_to_one(after: int | None, standing: int, there: bool, refused: bool) -> None:
    """`after`: of its baseline; None: it has none, and its first change makes the target."""
    target = SimpleNamespace(progress=lambda _: standing, exists=lambda _: there)
    known = SimpleNamespace(baselines={} if after is None else {ITEM: SimpleNamespace(after=after)})
    reach: Any = TableProgress(cast(Target, target), None, cast(TableHistory, known))
    if not refused:
        assert reach.of(ITEM) == standing
        return
    with pytest.raises(BaselineNeededError) as error:
        reach.of(ITEM)
    assert "lacks the baseline" in error.value.what and "tailrace resync" in str(error.value.hint)


CHANGES = ChangeTable(cast("Any", None), ["id"], ["id"])
LAYOUT = Relation(1, "shop", "item", "d", (Column("id", 1, "integer", "int4", "int", key=True),))


def test_one_that_vanishes_during_a_batch_is_not_made_anew_without_its_baseline(tmp_path: Path) -> None:
    target = DeltaTarget(None, str(tmp_path), app_id="x")  # type: ignore[arg-type]
    with pytest.raises(BaselineNeededError, match="lacks the baseline"):
        target.apply(TableBatch(ITEM, LAYOUT, CHANGES, 5, {"I": 1}, based=True))
    (error,) = target.merge([ChangeBatch(ITEM, str(tmp_path / "ct"), target.path(ITEM), LAYOUT, 0, 5)])
    assert isinstance(error, BaselineNeededError)
    assert not target.exists(ITEM)
    target.apply(TableBatch(ITEM, LAYOUT, CHANGES, 5, {}))  # its first change makes one without a baseline
    assert target.progress(ITEM) == 5


def test_columns_of_rules_are_not_given_to_one_that_is_gone(tmp_path: Path) -> None:
    target = DeltaTarget(None, str(tmp_path / "lake"), app_id="x")  # type: ignore[arg-type]
    ruled = RulesApplier(target, Rules.of("soft_delete", {}), root=str(tmp_path), task="t")
    batch = ChangeBatch(ITEM, str(tmp_path / "ct"), target.path(ITEM), LAYOUT, 0, 5)
    with pytest.raises(BaselineNeededError, match="lacks the baseline"):
        ruled.prepared(batch, 2)
    assert not target.exists(ITEM)
