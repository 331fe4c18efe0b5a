"""Scratch folders of validations and repairs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.config.task import Task, load
from tailrace.validate.scratch import KEPT_S, scratch_folder

pytestmark = pytest.mark.unit


@pytest.fixture
def task(tmp_path: Path) -> Task:
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\nsource: {url: 'postgresql://db/shop'}\n")
    return load(file)


def left(task: Task) -> list[str]:
    return sorted(path.name for path in Path(task.run_path, "scratch").iterdir())


def test_scratch_folder_is_in_the_home_and_goes_with_its_block(task: Task) -> None:
    with scratch_folder(task) as one, scratch_folder(task) as other:
        Path(one, "x.parquet").write_text("x")
        assert one != other and Path(one).is_relative_to(task.own_folders[-1])
        assert len(left(task)) == 2
    with pytest.raises(KeyError), scratch_folder(task):
        raise KeyError
    assert left(task) == []


def test_folders_of_killed_processes_are_removed_by_a_later_one(task: Task) -> None:
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    every = Path(task.run_path) / "scratch"
    names = {
        "dead": f"{platform.node()}.{over.pid}.a", "living": f"{platform.node()}.{os.getppid()}.b",
        "elsewhere": "other.host.7.c", "forgotten": "other.host.8.d",
    }  # fmt: skip
    for name in names.values():
        (every / name / "source").mkdir(parents=True)
    for path in (every / names["forgotten"] / "source", every / names["forgotten"]):
        os.utime(path, (path.stat().st_mtime - KEPT_S - 60,) * 2)
    with scratch_folder(task):
        pass
    assert left(task) == sorted([names["living"], names["elsewhere"]])
