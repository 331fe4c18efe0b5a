"""Capture from the live solidDB source, a task from its start to its end, against a server of our own."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tailrace.capture import part_readers
from tailrace.capture.process import Capture
from tailrace.config import task
from tailrace.errors import ConfigError, SourceError
from tailrace.lake import delta as lake
from tailrace.operate.table_commands import renew_stream
from tailrace.state import commands
from tailrace.state.baselines import read_baselines, read_open

from ..soliddb_server import Database, serving
from .test_soliddb_source import ITEM, database, item

pytestmark = pytest.mark.unit


@pytest.fixture(params=[True], ids=["28 bytes"])
def data(request: pytest.FixtureRequest) -> Database:
    """With addresses of one width: `test_soliddb_source.py` reads both."""
    return database(request.param)


TASK = """
name: shop
source:
  url: soliddb://test
  connect: tests.soliddb_server:connect
  arguments: {{password: '${{SHOP_PASSWORD}}'}}
  nodes: [{{port: {0}, password: '${{SHOP_PASSWORD}}'}}, {{port: {1}}}]
  options: {{keys: 'SHOP.ITEM=ID'}}
  fetch_rows: 100
  tables: [SHOP.ITEM]
freshness: 100ms
baseline: {{workers: 1}}
"""
UNLOCKED = ("  fetch_rows", "  lock: false\n  fetch_rows")


@pytest.mark.parametrize("data", [pytest.param(False, id="20 bytes")], indirect=True)
def test_capture_end_to_end(data: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Baseline, changes, the node lost in the middle, and a run that goes on where the last one ended. Processes read
    the baseline, as they do of larger tables."""
    monkeypatch.setattr(part_readers, "FEW_ROWS", 0)
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    with serving(data, 2) as (first, second):
        (tmp_path / "task.yml").write_text(TASK.format(first.port, second.port))
        made = task.load(tmp_path / "task.yml")
        assert "secret" not in repr(made)
        capture = Capture(made)
        running = threading.Thread(target=capture.run)
        running.start()
        wait_for(lambda: "SHOP.ITEM" in read_baselines(made.control_path("baselines")))
        data.commit((1, ITEM, item(3, "c")))
        wait_for(lambda: log_records(made) >= 3)
        first.stop()
        data.commit((4, ITEM, item(3, "c")))
        wait_for(lambda: log_records(made) >= 6)
        capture.stop.set()
        running.join(10)
        target = lake.read(made.target_path("SHOP.ITEM")).to_pylist()
        assert sorted((r["ID"], r["NAME"]) for r in target) == [(1, "bolt"), (2, None)]
        data.commit((1, ITEM, item(4, "d")))
        Capture(made, once=True).run()
        kinds = lake.read(made.log_path).sort_by("CHANGE_SEQ")["RECID"].to_pylist()
        assert kinds == [7, 1, 12, 7, 4, 12, 7, 1, 12]


def test_without_locks_the_window_is_open_until_the_logs_end_was_read(
    data: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log takes no messages: its end after the rows were read stands for the token."""
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    with serving(data, 2) as (first, second):
        text = TASK.format(first.port, second.port).replace(*UNLOCKED)
        (tmp_path / "task.yml").write_text(text)
        made = task.load(tmp_path / "task.yml")
        Capture(made, once=True).run()
        data.commit((1, ITEM, item(3, "c")))
        commands.resync(made.commands_path, "SHOP.ITEM", "by hand", who="me")
        Capture(made, once=True).run()
        taken = read_baselines(made.control_path("baselines"))["SHOP.ITEM"]
        assert (taken.number, taken.window, taken.after, taken.closes) == (2, "open", 0, 3)
        assert read_open(made.control_path("baselines")) == {}


def test_a_table_without_key_is_not_read_while_it_is_written_to(
    data: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone it is refused, as with soft delete; one beside others is suspended."""
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    with serving(data, 2) as (first, second):
        text = TASK.format(first.port, second.port).replace(*UNLOCKED)
        alone = text.replace("[SHOP.ITEM]", "[SHOP.NOTE]")
        (tmp_path / "alone.yml").write_text(alone + "tables: {SHOP.NOTE: {soft_delete: gone}}\n")
        with pytest.raises(SourceError) as said:
            Capture(task.load(tmp_path / "alone.yml"), once=True).run()
        assert said.value.what.splitlines() == [
            "soft delete marks rows by their key, and the table has none (SHOP.NOTE)",
            "a table without a key cannot be read while it is written to: its rows cannot be matched with the changes in the window "
            "(SHOP.NOTE)",
        ]
        (tmp_path / "exact.yml").write_text(text.replace("{workers: 1}", "{workers: 1, window: exact}"))
        with pytest.raises(ConfigError, match="no baseline is exact"):
            Capture(task.load(tmp_path / "exact.yml"), once=True).run()
        (tmp_path / "task.yml").write_text(text)
        made = task.load(tmp_path / "task.yml")
        capture = Capture(made)
        running = threading.Thread(target=capture.run)
        running.start()
        wait_for(lambda: "SHOP.ITEM" in read_baselines(made.control_path("baselines")))
        commands.give(made.commands_path, commands.ADD, ["SHOP.NOTE"], why="", who="me")
        wait_for(lambda: len(commands.read(made.commands_path)) >= 2)
        data.commit((1, ITEM, item(3, "c")))
        wait_for(lambda: log_records(made) >= 3)
        capture.stop.set()
        running.join(10)
        ordered = [(o.table, o.action, o.who) for o in commands.read(made.commands_path)]
        assert ordered == [("SHOP.NOTE", "add", "me"), ("SHOP.NOTE", "suspend", "capture")]
        assert "source.lock: true" in commands.read(made.commands_path)[1].why


def log_records(made: task.Task) -> int:
    return lake.read(made.log_path).num_rows if lake.exists(made.log_path) else 0


def wait_for(there: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_new_stream_begins_at_the_logs_end_with_new_baselines(
    data: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in the log before is passed over, also at later starts."""
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    with serving(data, 2) as (first, second):
        (tmp_path / "task.yml").write_text(TASK.format(first.port, second.port))
        made = task.load(tmp_path / "task.yml")
        Capture(made, once=True).run()
        data.commit((1, ITEM, item(3, "c")))
        renew_stream(made)
        Capture(made, once=True).run()
        assert read_baselines(made.control_path("baselines"))["SHOP.ITEM"].number == 2
        Capture(made, once=True).run()
        assert log_records(made) == 0
        data.commit((1, ITEM, item(4, "d")))
        Capture(made, once=True).run()
        assert log_records(made) == 3
