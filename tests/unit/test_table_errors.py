"""Errors of checks that concern one table suspend it; those about all tables, or the task, do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.capture.table_errors import suspend_unfit
from tailrace.config.task import Task, read
from tailrace.sources.base import Finding, PassingFinding
from tailrace.state import orders

pytestmark = pytest.mark.unit
OF_A = Finding("error", "two columns are one", "server, s.a", "rename one,\n        or leave it out", "s.a")
ALSO_OF_A = Finding("error", "it has no key", "s.a", "give it one", "s.a")
OF_B = Finding("error", "two columns are one", "s.b", "rename one", "s.b")
OF_TASK = Finding("error", "the slot is gone", "server", "make another")
PASSES = PassingFinding("error", "process 7 reads the slot", "server", "end it")
WARNING = Finding("warning", "it is locked", "s.b", "wait", "s.b")


def shop(folder: Path) -> Task:
    found = read("name: t\nsource: {url: 'postgresql://localhost/shop'}\nhome: home\n", folder)
    assert isinstance(found, Task)
    return found


@pytest.mark.parametrize(
    ("findings", "tables", "left", "suspended"),
    [
        ([OF_A, WARNING], ["s.a", "s.b"], [WARNING], ["s.a"]),
        ([OF_A, OF_TASK], ["s.a", "s.b"], [OF_A, OF_TASK], []),  # nor here
        ([OF_A, PASSES], ["s.a", "s.b"], [PASSES], ["s.a"]),
        ([OF_A, OF_B], ["s.a", "s.b"], [OF_A, OF_B], []),  # nothing would run
        ([OF_A], ["s.a"], [OF_A], []),
        ([WARNING], ["s.b"], [WARNING], []),
    ],
)
def test_which_errors_suspend_tables(
    tmp_path: Path, findings: list[Finding], tables: list[str], left: list[Finding], suspended: list[str]
) -> None:
    task = shop(tmp_path)
    assert suspend_unfit(task, findings, tables) == left
    assert [one.table for one in orders.read(task.orders_path)] == suspended


def test_suspension_has_all_errors_of_its_table_with_their_cures(tmp_path: Path) -> None:
    task = shop(tmp_path)
    suspend_unfit(task, [OF_A, ALSO_OF_A], ["s.a", "s.b"])
    (one,) = orders.read(task.orders_path)
    assert (one.who, one.why) == (
        "check",
        "two columns are one: rename one, or leave it out; it has no key: give it one; then `tailrace resume TASK "
        "s.a`, or `tailrace resync TASK s.a` for a new baseline",
    )
    assert (Path(task.home) / "control/version.json").exists()
