"""The parts of chaos that need neither a server nor a JVM."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tailrace.config.task import load

from .chaos.__main__ import Points
from .chaos.clock import behind
from .chaos.disk import Disk
from .chaos.faults import AT_REST, DEADLY, GENTLE, TRIES, WITH_CHILDREN, deck, struck
from .chaos.lives import tracebacks
from .chaos.tasks import Plan, edit_rules, plan, written

pytestmark = pytest.mark.unit
SOURCE, DATABASE = "postgresql://postgres@127.0.0.1:1/postgres", "postgresql://postgres@127.0.0.1:2/postgres"


def test_whole_rounds_have_every_target_with_and_without_rules_and_key_log(tmp_path: Path) -> None:
    file, met = tmp_path / "chaos.yaml", set()
    for seed in range(1, 25, 2):  # every other round is a whole one
        file.write_text(written(Random(seed), plan(seed, whole=True), SOURCE, DATABASE))
        task = load(file)
        met.add((task.target.type, task.apply.mode, task.keylog.mode))
    assert met == {
        (target, mode, keylog)
        for target in ("delta", "iceberg", "postgresql")
        for mode in ("strict", None)
        for keylog in ("all", "off")
    }


def test_rounds_get_fail_points_that_their_task_comes_to() -> None:
    database = Plan("postgresql", "", logged=False, opened=False)
    points = Points(1)
    to_database = {points.next(database, alone=False) for _ in range(60)}
    assert "postgresql.commit" in to_database and "store.stored" in to_database
    assert not [p for p in to_database if p.startswith(("delta.", "keylog.", "windows.", "log."))]
    assert "apply.exceptions" not in to_database and "drop.source" not in to_database
    assert {points.next(database, alone=True) for _ in range(60)} >= {"log.commit", "baseline.land"}


@pytest.mark.parametrize("whole", [True, False])
def test_a_round_deals_every_fault_once_and_again_those_that_had_nothing_to_do(whole: bool) -> None:
    cards, dealt = deck(Random(3), whole=whole), Counter[str]()

    def do(name: str) -> bool:
        dealt[name] += 1
        return name != "full"  # no disk that can be full

    while cards.live:
        cards.strike(do, alone=not whole)
    while cards.rest:
        cards.between(do)
    every = {*GENTLE, *AT_REST, *DEADLY} - ({*WITH_CHILDREN, "parent"} if not whole else set())
    assert set(dealt) == every
    assert dealt["full"] == TRIES and dealt["order"] == 3 and dealt["slot"] == 1


def test_capture_alone_gets_no_fault_of_a_jvm() -> None:
    cards, dealt = deck(Random(3), whole=True), []
    for _ in range(40):
        cards.strike(lambda name: not dealt.append(name), alone=True)
    assert set(cards.live) == {"capture", "java", "worker"} and not set(dealt) & set(WITH_CHILDREN)


def test_a_fault_that_found_nothing_did_not_strike() -> None:
    said = [
        "worker: nobody",
        "cut: 0 connections",
        "log: all of LOG is stored",
        "full: no disk that can be full",
    ]
    assert not any(map(struck, said))
    assert struck("cut: 2 connections") and struck("order: resync m.bag: code 0") and struck("java: 4711")


def test_rules_are_edited_in_a_file_that_stays_right(tmp_path: Path) -> None:
    file = tmp_path / "chaos.yaml"
    file.write_text(written(Random(1), plan(1, whole=False), SOURCE, DATABASE))
    modes = {mode: (edit_rules(file, mode), load(file).apply.mode) for mode in ("strict", "", "upsert")}
    assert modes == {
        "strict": ("rules are strict now", "strict"),
        "upsert": ("rules are upsert now", "upsert"),
        "": ("rules are none now", None),
    }


def test_a_traceback_is_a_find_that_tells_its_error() -> None:
    said = "error: x\nTraceback (most recent call last):\n  File a\npy4j.protocol.Py4JError: gone\nmore"
    [find] = tracebacks("life 1", said)
    assert find.startswith("life 1: 1 tracebacks") and find.endswith("py4j.protocol.Py4JError: gone")
    assert tracebacks("life 2", "error: x\n  where: y") == []


def test_a_worker_of_pysparks_that_was_let_go_is_none() -> None:
    daemon = '  File "/x/pyspark.zip/pyspark/daemon.py", line 262, in manager\n'
    begin, pipe = "Traceback (most recent call last):\n", "BrokenPipeError: [Errno 32] Broken pipe\n"
    assert tracebacks("life 1", f"{begin}{daemon}{pipe}error: x\n") == []
    assert tracebacks("life 1", f"{begin}{daemon}KeyError: 7\n")
    assert tracebacks("life 1", f'{begin}  File "/y/tailrace/x.py", line 1, in a\n{pipe}')


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
