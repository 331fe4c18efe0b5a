"""Each registered fail point stands in the code, next to a durable write; what stands there is registered."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

import tailrace
from tailrace.errors import ConfigError
from tailrace.lake import failpoints
from tailrace.state import declarations

from ..db import test_points as server
from ..spark import test_points as spark
from ..unit import test_history_table as histories
from ..unit import test_points as alone
from . import test_schedules as schedules

pytestmark = pytest.mark.unit

CODE = Path(tailrace.__file__).parent
REACHED = re.compile(r'\b(?:reach\(|KeyedTable\(.*, )"([^"]+)"\)')
ENDS: dict[ModuleType, Sequence[str]] = {
    schedules: schedules.HERE,
    alone: alone.ENDS,
    histories: histories.ENDS,
    spark: spark.ENDS,
    server: server.ENDS,
}
"""At which points the tests of a file end a process. Each asserts that it came there, and what is there after a
restart is what is there without that."""


def test_every_registered_point_stands_in_the_code_and_no_other() -> None:
    found = {n for path in CODE.rglob("*.py") for n in REACHED.findall(path.read_text())}
    found |= {one.fail_point for one in declarations.APPENDED}
    assert found == set(failpoints.POINTS)


def test_each_run_of_the_tests_ends_a_process_at_every_point() -> None:
    met = {point for points in ENDS.values() for point in points}
    assert sorted(met) == sorted(failpoints.POINTS)
    for file in ENDS:
        marks = file.pytestmark if isinstance(file.pytestmark, list) else [file.pytestmark]
        assert "slow" not in {mark.name for mark in marks}, file


def test_off_it_does_nothing() -> None:
    assert not failpoints.armed()
    failpoints.reach("log.commit")


def test_it_fails_the_nth_time_and_only_then() -> None:
    try:
        failpoints.arm("log.commit:2:error")
        failpoints.reach("log.commit")
        failpoints.reach("store.stored")
        with pytest.raises(failpoints.InjectedError, match=r"log\.commit"):
            failpoints.reach("log.commit")
        failpoints.reach("log.commit")
        assert not failpoints.armed()
    finally:
        failpoints.arm(None)


def test_it_kills_the_process_that_the_variable_is_set_for() -> None:
    code = "from tailrace.lake.failpoints import reach; reach('log.commit'); print('on', flush=True); reach('log.commit')"
    env = {"TAILRACE_FAIL": "log.commit:2", "PYTHONPATH": str(CODE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-9, "on\n")


@pytest.mark.parametrize("text", ["nowhere", "log.commit:x", "log.commit:1:explode"])
def test_a_wrong_value_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a fail point"):
        failpoints.parse(text)
