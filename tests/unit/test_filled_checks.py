"""What `check` says of settings that a target rules out which was filled under others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.apply import target_mode
from tailrace.apply.checks.filled_targets import filled_findings
from tailrace.apply.task_rules import TableRules, TaskRules
from tailrace.engine.rules import Rules
from tailrace.errors import ConfigError
from tailrace.model.change import Column, Relation
from tailrace.targets.delta.target import DeltaTarget

from .task_home import COLUMNS, ITEM, TaskHome

pytestmark = pytest.mark.unit
SHOP = Relation(1, "shop", "item", "d", COLUMNS)


def filled(folder: Path, rules: Rules) -> DeltaTarget:
    """A target with a baseline, and with the columns that rules add."""
    home = TaskHome(folder)
    home.baseline([{"id": 1, "name": "a", "price": None}])
    nobody: Any = None
    target = DeltaTarget(nobody, home.task.target.path, app_id=home.task.apply_app)
    target_mode.alter(target, ITEM, SHOP, SHOP, rules)
    return target


def said(folder: Path, more: str) -> list[tuple[str, str, str]]:
    task = TaskHome(folder, more).task
    return [(f.level, f.where, f.what) for f in filled_findings(task, [ITEM], lambda _: SHOP)]


MARKS = ("error", ITEM, "the target marks deleted rows in 'gone'")
ARCHIVE = ("error", ITEM, "the target is an archive")


@pytest.mark.parametrize(
    ("rules", "settings", "found"),
    [
        (Rules.of("soft_delete", {}, "gone"), "{soft_delete: gone}", []),
        (Rules.of("soft_delete", {}, "gone"), "{soft_delete: removed}", [MARKS]),
        (Rules.of("soft_delete", {}, "gone"), "{mode: soft_delete}", [MARKS]),
        (Rules.of("soft_delete", {}, "gone"), "{}", [MARKS]),
        (Rules.of("archive"), "{mode: archive}", []),
        (Rules.of("archive"), "{}", [ARCHIVE]),
        (Rules.of("archive"), "{soft_delete: gone}", [ARCHIVE]),
        (Rules(), "{mode: archive}", []),  # from now on
        (Rules(), "{soft_delete: gone}", []),
    ],
)
def test_another_mode(tmp_path: Path, rules: Rules, settings: str, found: list[tuple[str, str, str]]) -> None:
    target = filled(tmp_path, rules)
    more = f"tables: {{{ITEM}: {settings}}}"
    assert said(tmp_path, more) == found
    one = TaskHome(tmp_path, more).task.table(ITEM)
    now = Rules.of(one.rule_mode, one.on, one.soft_delete or "_deleted")
    nobody: Any = None
    none: Any = type("Log", (), {"mode": "off"})
    task = TaskRules(
        target,
        lambda _: TableRules(now),
        root="",
        task="",
        keylog=none,
        suspensions=nobody,
    )
    for _ in range(2):  # not only when it looks for the first time
        if found:
            with pytest.raises(ConfigError, match=found[0][2]):
                task.of(ITEM, SHOP)
        else:
            task.of(ITEM, SHOP)


def test_a_column_of_the_source_is_no_mark(tmp_path: Path) -> None:
    """A column of that name that the source has not is one: an earlier release did not say so."""
    nobody: Any = None
    target = DeltaTarget(nobody, str(tmp_path), app_id="t")
    columns = [*COLUMNS, Column("_deleted", 9, "text", "text", "string")]
    target.alter(ITEM, SHOP, SHOP.with_columns(columns))
    target_mode.refuse_other_mode(target, ITEM, [c.name for c in columns], Rules())
    with pytest.raises(ConfigError, match="marks deleted rows in '_deleted'"):
        target_mode.refuse_other_mode(target, ITEM, [c.name for c in COLUMNS], Rules())
    target_mode.refuse_other_mode(target, ITEM, [c.name for c in COLUMNS], Rules.of("soft_delete"))


def test_a_lower_level(tmp_path: Path) -> None:
    filled(tmp_path, Rules())
    why = "it has a target, which would not get any more changes at level 1"
    assert said(tmp_path, f"policies: {{{ITEM}: 1}}") == [("error", ITEM, why)]
    assert said(tmp_path, "baseline: {enabled: true}") == []


def test_a_target_that_was_filled_by_changes_alone(tmp_path: Path) -> None:
    nobody: Any = None
    more = f"baseline: {{enabled: false}}\ntables: {{{ITEM}: {{}}}}"
    home = TaskHome(tmp_path, more)
    target = DeltaTarget(nobody, home.task.target.path, app_id=home.task.apply_app)
    target_mode.alter(target, ITEM, SHOP, SHOP, Rules.of("soft_delete", {}, "gone"))
    assert said(tmp_path, more) == [MARKS]
