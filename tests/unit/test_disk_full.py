"""No room: an error of ours, nothing half-written, and everything goes on once there is room."""

from __future__ import annotations

import gc
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.cli import main as cli
from tailrace.errors import ApplyError, StorageFullError, from_spark, full
from tailrace.lake import delta as lake
from tailrace.lake import json_files, log
from tailrace.state import commands, ledger, live

from .messages import insert
from .test_log_and_store import chunk

pytestmark = pytest.mark.unit
ROW = pa.table({"n": pa.array([1], pa.int64())})


class Disk:
    """A file system of two MiB."""

    def __init__(self, path: Path) -> None:
        self.path, self._fill = path, path / "fill"

    def fill(self) -> None:
        """Takes all the room there is."""
        handle = os.open(self._fill, os.O_CREAT | os.O_WRONLY)
        try:
            with suppress(OSError):
                while True:
                    os.write(handle, bytes(4096))
        finally:
            os.close(handle)

    def free(self) -> None:
        """Gives it back."""
        self._fill.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting is for root only")
    yield Disk(place)
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def order(path: str) -> int:
    return commands.give(path, commands.PAUSE, ["s.t"], why="", who="me")


WRITES: dict[str, Callable[[str], Any]] = {
    "a part": lambda path: lake.Part(path, ROW.schema),
    "a row": lambda path: lake.append(path, ROW),
    "a table": lambda path: lake.create(f"{path}_new", ROW.schema),
    "a commit": lambda path: lake.commit(path, [], progress={"app": 1}),
    "an order": lambda path: order(f"{path}_orders"),
    "a live file": lambda path: json_files.write(path, "capture", {"state": "running"}),
    "a lease": lambda path: live.lock(path, "capture").__enter__(),
}


@pytest.mark.parametrize("what", WRITES)
def test_whatever_is_written_says_that_there_is_no_room(disk: Disk, what: str) -> None:
    path = str(disk.path / "table")
    lake.append(path, ROW)
    before = {str(f) for f in (disk.path / "table").rglob("*") if f.is_file()}
    disk.fill()
    with pytest.raises(StorageFullError, match=r"no space left on the device\n  where: .*/disk/"):
        WRITES[what](path)
    left = {str(f) for f in (disk.path / "table").rglob("*") if f.is_file() and f.suffix != ".lock"}
    assert left == before and lake.version(path) == 1
    disk.free()
    WRITES[what](path)


def test_a_part_that_no_longer_fits_goes(disk: Disk) -> None:
    path = str(disk.path / "table")
    part = lake.Part(path, pa.schema([("b", pa.binary())]))
    with pytest.raises(StorageFullError):
        part.write(pa.table({"b": pa.array([os.urandom(4 << 20)])}))
    assert list((disk.path / "table").iterdir()) == []


def test_a_part_that_is_given_up_while_there_is_no_room_says_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one of the same task had no room first."""
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    part = lake.Part(str(disk.path / "table"), pa.schema([("b", pa.binary())]))
    part.write(pa.table({"b": pa.array([os.urandom(1 << 10)])}))
    disk.fill()
    del part
    gc.collect()
    assert said == []


def test_capture_goes_on_from_its_last_commit(disk: Disk) -> None:
    home = str(disk.path / "home")
    first = log.LogWriter(f"{home}/log", f"{home}/relations")
    first.add(chunk(100, b"B", insert(7, [1, "1"]), b"C"))
    first.commit()
    disk.fill()
    with pytest.raises(StorageFullError):
        first.add(chunk(200, b"B", insert(7, [2, "2"]), b"C"))
        first.commit()
    assert log.state(f"{home}/log").number == 3
    disk.free()
    again = log.LogWriter(f"{home}/log", f"{home}/relations")
    again.add(chunk(200, b"B", insert(7, [2, "2"]), b"C"))
    done = again.commit()
    assert done is not None and done.records == 3
    assert sorted(lake.read(f"{home}/log")["CHANGE_SEQ"].to_pylist())[-1].endswith("6")
    assert ledger.read_stored(f"{home}/stored") == []


def test_what_spark_and_the_system_say_is_recognized() -> None:
    told = from_spark(RuntimeError("java.io.IOException: No space left on device\n\tat x"), where="store")
    assert isinstance(told, StorageFullError) and told.where == "store"
    assert isinstance(full(OSError(122, "Disk quota exceeded"), where="home"), StorageFullError)
    assert full(OSError(13, "Permission denied"), where="home") is None
    assert type(from_spark(RuntimeError("something else"), where="store")) is ApplyError


LARGE = r"a file would be larger than this process may write\n  where: .*\n  hint: raise the limit"


@pytest.mark.parametrize(
    "error",
    [
        OSError(27, "File too large"),
        OSError("[Errno 27] Error writing bytes to file. Detail: [errno 27] File too large"),  # Arrow
        OSError(
            "Generic LocalFileSystem error\n  Unable to copy data to file\n  File too large (os error 27)"
        ),
        RuntimeError("java.io.IOException: File too large\n\tat x"),
    ],
)
def test_a_limit_of_the_size_of_files_is_told_apart(error: Exception) -> None:
    assert re.search(LARGE, str(full(error, where="/lake/orders")))


def test_a_part_that_would_be_larger_than_a_file_may_be_goes(tmp_path: Path) -> None:
    """As under `ulimit -f`."""
    part = lake.Part(str(tmp_path), pa.schema([("b", pa.binary())]))
    rows, before = pa.table({"b": pa.array([os.urandom(4 << 20)])}), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    try:
        with pytest.raises(StorageFullError, match=LARGE):
            part.write(rows)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_command_says_it_in_its_own_words(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device", "/lake/file")

    monkeypatch.setattr(cli, "app", no_room)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "no space left on the device" in said and "/lake/file" in said
