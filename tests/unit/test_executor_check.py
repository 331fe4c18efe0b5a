"""What an executor's Python reports, and the errors of one that does not fit the driver's."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from tailrace.errors import ConfigError, from_spark
from tailrace.execution import executor_check
from tailrace.execution.executor_check import _Probe, _refuse

pytestmark = pytest.mark.unit
PROBE = _Probe(("tailrace", "numpy"))
RUN = "import json, sys; from pyspark import cloudpickle; print(next(cloudpickle.loads(sys.stdin.buffer.read())([0])))"


def reported(probe: _Probe, before: str = "") -> dict[str, Any]:
    """The report of another process, in which `before` runs first."""
    cloudpickle.register_pickle_by_value(executor_check)
    try:
        text = cloudpickle.dumps(probe)
    finally:
        cloudpickle.unregister_pickle_by_value(executor_check)
    command = [sys.executable, "-c", f"{before}{RUN}"]
    done = subprocess.run(command, input=text, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_executor_of_the_same_environment_is_accepted() -> None:
    found = reported(PROBE)
    assert (found["failed"], found["unseen"]) == ({}, {})
    _refuse(found, PROBE.report())


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (
            "import sys; sys.modules['tailrace'] = None; ",
            "tailrace cannot be imported on an executor; the driver has 0.",
        ),
        ("import numpy; numpy.__version__ = '0.9.1'; ", "an executor has numpy 0.9.1, the driver has "),
    ],
)
def test_executor_without_a_package_or_with_another_version_is_refused(before: str, said: str) -> None:
    found = reported(PROBE, before)
    with pytest.raises(ConfigError) as error:
        _refuse(found, PROBE.report())
    assert error.value.what.startswith(said)
    assert (
        error.value.where == f"executor on host {found['host']}, Python {found['python']} ({sys.executable})"
    )
    assert "`spark.pyspark.python`" in str(error.value.hint)
    assert "`--archives`" in str(error.value.hint)


def test_executor_without_the_shared_folder_is_refused(tmp_path: Path) -> None:
    probe = replace(PROBE, marks={"/lake": str(tmp_path / "missing")})
    with pytest.raises(ConfigError, match="does not share the folder /lake with the driver: No such file"):
        _refuse(reported(probe), PROBE.report())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in "
            "driver: 3.11, PySpark cannot run with different minor versions.",
            "an executor has Python 3.9, the driver has 3.11",
        ),
        (
            "pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:\n"
            'Traceback (most recent call last):\n  File "worker.py", line 9\nModuleNotFoundError: No module named '
            "'tailrace.store'\n",
            "an executor's Python does not have the module tailrace.store",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/env/bin/python": error=2, No such file or directory',
            "an executor's host has no Python at /opt/env/bin/python",
        ),
    ],
)
def test_spark_error_about_python_says_how_to_cure_it(text: str, said: str) -> None:
    error = from_spark(RuntimeError(text), where="shop")
    assert (type(error), error.what, error.where) == (ConfigError, said, "shop")
    assert "`spark.pyspark.python`" in str(error.hint)
