"""Ctrl-C while a command starts: code 130, one line, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.cli import signals as cli_signals
from tailrace.state import live

pytestmark = pytest.mark.unit


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_while_it_connects(tmp_path: Path, mute: socket.socket) -> None:
    file = tmp_path / "t.yaml"
    url = f"postgresql://me:s3cret@127.0.0.1:{mute.getsockname()[1]}/shop?connect_timeout=20"
    file.write_text(f"name: t\nhome: home\nsource:\n  url: {url}\n  tables: [s.t]\n")
    command = [sys.executable, "-m", "tailrace", "capture", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        mute.settimeout(60)
        with mute.accept()[0]:
            assert live.locked(tmp_path / "home" / "run", "capture")
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=30)[0]
    assert (process.returncode, said) == (130, "stopped\n")
    assert not live.locked(tmp_path / "home" / "run", "capture")


def test_a_signal_that_comes_while_the_event_is_being_set_waits_for_nobody() -> None:
    """Two of them come within milliseconds: the second one met the first one's lock, for ever."""
    script = """
import signal, threading
from tailrace.cli.signals import stop_on_signals
stop = threading.Event()
stop_on_signals(stop)
with stop._cond:
    signal.raise_signal(signal.SIGTERM)
print(stop.wait(20))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_a_child_at_work_is_asked_as_often_as_one_likes(
    handlers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C reaches the whole process group, and then its parent asks it to stop."""
    stop = threading.Event()
    cli_signals.stop_on_signals(stop, starting=True, child=True)()
    signal.raise_signal(signal.SIGINT)
    assert stop.wait(10)
    signal.raise_signal(signal.SIGTERM)
    assert capsys.readouterr().err == ""


def test_at_work_the_first_one_asks_and_the_second_one_ends(
    handlers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()
    began = cli_signals.stop_on_signals(stop, starting=True)
    began()
    signal.raise_signal(signal.SIGINT)
    assert stop.wait(10) and capsys.readouterr().err == ""
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 130 and capsys.readouterr().err == "stopped\n"


def test_before_that_the_first_one_ends(handlers: None, capsys: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()
    cli_signals.stop_on_signals(stop, starting=True)
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143 and capsys.readouterr().err == "stopped\n"
    assert stop.wait(10)  # threads that have begun see it


def test_the_first_one_at_work_never_ends_however_fast_the_event_is_set(
    handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, write = threading.Event(), os.write

    def written(pipe: int, word: bytes) -> int:
        done = write(pipe, word)
        assert stop.wait(10)  # the thread that sets it runs before the handler goes on
        return done

    monkeypatch.setattr(os, "write", written)
    cli_signals.stop_on_signals(stop)
    signal.raise_signal(signal.SIGINT)
