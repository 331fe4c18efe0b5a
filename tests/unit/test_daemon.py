"""Spark's Python workers as forks of one process."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

FORKS = """
import os
import numpy as np
import tailrace.runtime.daemon
for _ in range(2):
    if not os.fork():
        print(np.random.random(), flush=True)
        os._exit(0)
    os.wait()
"""


def test_workers_draw_numbers_of_their_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 2
