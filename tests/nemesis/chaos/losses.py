"""What is lost between two lives: a slot, files of LOG. Each must be told, and the way back that is told works."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from random import Random

import psycopg
from deltalake import DeltaTable

from tailrace.apply.required_changes import Needs
from tailrace.config.task import Task
from tailrace.errors import PositionError
from tailrace.lake import log
from tailrace.model.positions import order_key
from tailrace.runtime.pipeline import store_paths
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.state import streams
from tailrace.store.kept import Span, spans
from tailrace.store.writer import Store

from .commands import plain, tailrace

NAMED = "LOG has lost records that were not stored yet: "


class Losses:
    """The losses of a round. `whole`: its lives have a JVM, and targets."""

    def __init__(
        self, file: Path, task: Task, server: EmbeddedPostgres, random: Random, *, whole: bool
    ) -> None:
        self._file, self._task, self._server, self._random, self._whole = file, task, server, random, whole
        self.slot_dropped = False
        self.finds: list[str] = []

    def drop_slot(self) -> str:
        """The slot goes, with its reader; `begin_anew` is due."""
        if streams.newest(self._task).state != streams.MADE:
            return "no slot yet"
        with psycopg.connect(self._server.url(), autocommit=True) as db:
            for _ in range(100):
                db.execute("select pg_terminate_backend(pid, 1000) from pg_stat_replication")
                try:
                    gone = db.execute(
                        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where not temporary"
                    ).fetchall()
                except psycopg.errors.ObjectInUse:
                    continue
                self.slot_dropped = bool(gone)
                return f"{len(gone)} slots dropped"
        return "the slot stays in use"

    def begin_anew(self) -> str:
        """Without its slot capture must say so, and how to go on; that is done."""
        self.slot_dropped = False
        met = tailrace("capture", self._file, "--once")
        if met.returncode != 1 or "tailrace resync TASK --new-stream" not in plain(met.stderr):
            self.finds.append(f"slot dropped: capture ends with {_words(met)}")
        done = tailrace("resync", self._file, "--new-stream")
        if done.returncode:
            self.finds.append(f"slot dropped: resync --new-stream ends with {_words(done)}")
        return f"without a slot: code {met.returncode}; begun anew: code {done.returncode}"

    def lose_log(self) -> str:
        """A file of LOG goes that is not stored: it must be named; then it is put back, or given up."""
        lost = self._not_stored() or (tailrace("capture", self._file, "--once") and self._not_stored())
        if not lost:
            return "all of LOG is stored"
        folder, one = Path(self._task.log_path), self._random.choice(lost)
        aside = self._file.parent / "aside.parquet"
        if one.high <= self._passed():  # newer baselines have all of it: nothing to tell
            return "newer baselines have what is not stored"
        shutil.move(folder / one.path, aside)
        said = self._refused(f"{one.low} to {one.high}")
        if not self._whole or self._random.random() < 0.3 or not self._given_up(one):
            shutil.move(aside, folder / one.path)
            return f"{said}; put back"
        aside.unlink()
        return f"{said}; given up for new baselines"

    def _not_stored(self) -> list[Span]:
        if not DeltaTable.is_deltatable(self._task.log_path):
            return []
        reached = Store(store_paths(self._task)).reached
        return [
            s for s in spans(DeltaTable(self._task.log_path), "CHANGE_SEQ") if s.known and s.high > reached
        ]

    def _passed(self) -> int:
        return order_key(Needs(self._task).passed(log.history(self._task.relations_path)))

    def _refused(self, numbers: str) -> str:
        """What store says; a find when it is not an error that has the numbers."""
        if self._whole and self._random.random() < 0.3:  # else without the minute that a JVM takes
            met = tailrace("pipeline", self._file, "--once")
            text, right = plain(met.stderr), met.returncode == 1
        else:
            text, right = "", False
            try:
                Store(store_paths(self._task)).begin()
            except PositionError as error:
                text, right = plain(str(error)), True
        if not right or NAMED not in text:
            self.finds.append(f"LOG without {numbers}: the pipeline ends with {text[-700:]!r}")
        told = text.partition(NAMED)[2].partition(" where:")[0]
        return f"LOG without {numbers}: told {told}"

    def _given_up(self, one: Span) -> bool:
        """Takes the way of docs/retention.md; whether it leads behind the gap."""
        done = tailrace("resync", self._file, "*"), tailrace("capture", self._file, "--once")
        if any(d.returncode for d in done):
            self.finds.append(f"LOG without {one.low} to {one.high}: {'; '.join(map(_words, done))}")
        return self._passed() >= one.high


def _words(done: subprocess.CompletedProcess[str]) -> str:
    return f"code {done.returncode}: {plain(done.stderr)[-700:]!r}"
