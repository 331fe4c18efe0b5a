"""The logs of processes do not fill the disk, and the last words of one that failed are there."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.runtime.process_log import ProcessLog

pytestmark = pytest.mark.unit


def said(folder: Path, program: str, **bounds: int) -> ProcessLog:
    log = ProcessLog(folder / "run" / "capture.log", **bounds)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    log.take(process.stdout)
    process.wait()
    return log


def test_the_log_is_bounded_and_ends_with_the_last_line(tmp_path: Path) -> None:
    log = said(tmp_path, "for n in range(1000): print(n, 'x' * 90)", file_bytes=10_000, files=3)
    assert log.last_lines(1) == f"999 {'x' * 90}"
    sizes = {file.name: file.stat().st_size for file in log.path.parent.iterdir()}
    assert sorted(sizes) == ["capture.log", "capture.log.1", "capture.log.2"]
    assert all(size <= 10_000 for size in sizes.values())


def test_words_come_as_they_are(tmp_path: Path) -> None:
    program = r"import sys; sys.stdout.buffer.write(b'100% of d\xc3\xa9\n\xff\n'); sys.stderr.write('no end')"
    assert said(tmp_path, program).last_lines(9).splitlines() == ["100% of dé", "�", "no end"]
    assert said(tmp_path, "print('again')").last_lines(2).splitlines() == ["again"]


def test_nothing_said_is_no_word(tmp_path: Path) -> None:
    assert said(tmp_path, "").last_lines(3) == ""


def test_a_full_disk_loses_no_line_and_stops_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`/dev/full` takes nothing; the process prints more than a pipe holds."""
    monkeypatch.setattr(logging.FileHandler, "_open", lambda _: Path("/dev/full").open("w"))  # noqa: SIM115
    log = said(tmp_path, "for n in range(3000): print(n, 'x' * 90)")
    log.last_lines(1)
    first, *lines = capfd.readouterr().err.splitlines()
    words = "cannot be written ([Errno 28] No space left on device): missing lines are printed here"
    assert first == f"{log.path} {words}"
    assert lines == [f"{n} {'x' * 90}" for n in range(3000)]
