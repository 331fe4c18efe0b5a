"""When maintenance is due."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from tailrace.config.task import load
from tailrace.lake import json_files
from tailrace.runtime.maintenance import Maintenance
from tailrace.targets.base import Target

pytestmark = pytest.mark.unit
HOUR = 3600.0


@pytest.mark.parametrize(("ago", "due"), [(0.5 * HOUR, False), (2 * HOUR, True), (-20 * HOUR, True)])
def test_it_is_due_after_an_hour_and_when_the_clock_was_set_back(
    tmp_path: Path, ago: float, due: bool
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\nsource: {url: 'postgresql://db/shop'}\nmaintenance: {every: 1h}\n")
    task = load(file)
    json_files.write(task.run_path, "maintenance", {"done": time.time() - ago})
    target: Any = None  # nothing is asked of it
    assert Maintenance(task, cast(Target, target)).due() is due
