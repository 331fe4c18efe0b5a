"""The parts of chaos that need neither a server nor a JVM."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tailrace.config.task import load

from .chaos.clock import behind
from .chaos.disk import Disk
from .chaos.lives import tracebacks
from .chaos.tasks import edit_rules, written

pytestmark = pytest.mark.unit
SOURCE, DATABASE = "postgresql://postgres@127.0.0.1:1/postgres", "postgresql://postgres@127.0.0.1:2/postgres"


def test_whole_rounds_have_every_target_with_and_without_rules_and_key_log(tmp_path: Path) -> None:
    file, met = tmp_path / "chaos.yaml", set()
    for seed in range(1, 17, 2):  # every other round is a whole one
        file.write_text(written(Random(seed), seed, SOURCE, DATABASE, ["", "log.commit"], whole=True))
        task = load(file)
        met.add((task.target.type, task.apply.mode, task.keylog.mode))
    assert met == {
        (target, mode, keylog)
        for target in ("delta", "postgresql")
        for mode in ("strict", None)
        for keylog in ("all", "off")
    }


def test_rules_are_edited_in_a_file_that_stays_right(tmp_path: Path) -> None:
    file = tmp_path / "chaos.yaml"
    file.write_text(written(Random(1), 1, SOURCE, DATABASE, [], whole=False))
    modes = {edit_rules(file, Random(n)): load(file).apply.mode for n in range(20)}
    assert modes == {
        "rules are strict now": "strict",
        "rules are upsert now": "upsert",
        "rules are none now": None,
    }


def test_a_traceback_is_a_find_that_tells_its_error() -> None:
    said = "error: x\nTraceback (most recent call last):\n  File a\npy4j.protocol.Py4JError: gone\nmore"
    [find] = tracebacks("life 1", said)
    assert find.startswith("life 1: 1 tracebacks") and find.endswith("py4j.protocol.Py4JError: gone")
    assert tracebacks("life 2", "error: x\n  where: y") == []


def test_a_clock_is_set_back_and_sleep_still_works() -> None:
    with behind(7200) as older:
        if not older:
            pytest.skip("no C compiler")
        said = subprocess.run(
            [sys.executable, "-c", "import time; time.sleep(0.01); print(time.time())"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert 7190 < time.time() - float(said.stdout) < 7210


def test_a_small_disk_is_full_for_a_while_and_leaves_its_files(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", small=True)
    try:
        if not disk.small:
            pytest.skip("only root can mount")
        (disk.folder / "kept").write_text("x")
        assert disk.fill(0.0)
    finally:
        disk.close()
    assert not disk.small and (tmp_path / "disk" / "kept").read_text() == "x"
