"""A session that somebody else has started (spark-submit, a notebook), and the Python of its executors."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.execution import BackgroundSession
from tailrace.runtime import session as sessions

pytestmark = pytest.mark.unit


def test_given_session_works_once_it_is_warmed_up() -> None:
    given: Any = SimpleNamespace(version="4.2.0")
    warm = threading.Event()
    found = BackgroundSession(lambda: given, warm_up=lambda _: (warm.wait(30), None)[1], given=given)
    found.begin()
    assert (found.ready, found.state) == (None, "starting")
    warm.set()
    assert found._thread is not None
    found._thread.join(30)
    assert (found.ready, found.state) == (given, "ready")


@pytest.mark.parametrize(
    ("wanted", "environment", "master", "python"),
    [
        ("/env/bin/python", "/other/python", "yarn", "/env/bin/python"),
        (None, "/other/python", "spark://host:7077", "/other/python"),
        (None, None, "spark://host:7077", sys.executable),
        (None, None, "yarn", None),
    ],
)
def test_python_of_executors_is_the_setting_then_the_variable_then_the_drivers(
    monkeypatch: pytest.MonkeyPatch,
    wanted: str | None,
    environment: str | None,
    master: str,
    python: str | None,
) -> None:
    variables = {} if environment is None else {"PYSPARK_PYTHON": environment}
    monkeypatch.setattr(sessions.os, "environ", variables)
    sessions._executors_python(wanted, master)
    assert variables.get("PYSPARK_PYTHON") == python
