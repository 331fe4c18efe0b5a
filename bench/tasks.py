"""tailrace's side of the benches: task files, and the command line run as a process of its own."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml

import measure
from measure import say
from tailrace.config.task import Task, load


def write(folder: Path, name: str, url: str, tables: tuple[str, ...], **sections: Any) -> Path:
    """A task file with every setting at its default, but for the sections given."""
    file = folder / f"{name}.yaml"
    wanted = {
        "name": name,
        "source": {"url": url, "tables": list(tables)},
        "target": {"path": f"{name}-target"},
        **sections,
    }
    file.write_text(yaml.safe_dump(wanted, sort_keys=False))
    return file


def capture(file: Path) -> measure.Finished:
    """`tailrace capture --once`, as a user runs it."""
    command = [sys.executable, "-m", "tailrace", "capture", str(file), "--once"]
    return measure.run(command, log=file.with_suffix(".capture.log"))


@dataclass(frozen=True)
class Drained:
    """What the Spark half did: seconds from its start until it had done the warm-up, seconds of the work that
    came then, its process."""

    cold: float
    work: float
    process: measure.Finished


class Drain:
    """The Spark half of a task: started, and warm when this is made; the work is done by `again`."""

    def __init__(self, file: Path, what: str) -> None:
        say(f"{file.stem}: the Spark half ({what}) starts and works off the warm-up")
        command = [sys.executable, measure.HERE / "drain.py", file, what]
        self._file, self._what = file, what
        self._child = measure.Child(command, log=file.with_suffix(".drain.log"))
        found = json.loads(self._child.ask())
        self._cold = found["start"] + found["work"]

    def again(self) -> Drained:
        """Stores (and applies) what is in LOG now, then ends."""
        say(f"{self._file.stem}: {'store' if self._what == 'store' else 'store and apply'}")
        found = json.loads(self._child.ask("again"))
        return Drained(self._cold, found["work"], self._child.finish())

    def end(self) -> None:
        """Ends: what was there is done."""
        self._child.finish()


class StreamStart:
    """Notices when somebody begins to read from a slot: the start of streaming, start-up left out."""

    def __init__(self, url: str, slot: str) -> None:
        self.at: float | None = None
        self._url, self._slot, self._over = url, slot, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StreamStart:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        ask = "select active from pg_replication_slots where slot_name = %s"
        with psycopg.connect(self._url, autocommit=True) as session:
            while self.at is None and not self._over.wait(0.005):
                row = session.execute(ask, (self._slot,)).fetchone()
                if row and row[0]:
                    self.at = time.time()


def last_commit(task: Task) -> float:
    """When LOG's newest commit was made (seconds since 1970)."""
    return max(f.stat().st_mtime for f in Path(task.log_path, "_delta_log").glob("*.json"))


__all__ = ["StreamStart", "capture", "last_commit", "load", "write"]
