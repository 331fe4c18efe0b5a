"""Measuring: a line of the report, processes with their peak memory, progress on standard error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SAMPLE_S = 0.05
FLEETING = 4  # samples


@dataclass
class Row:
    """One line: what was measured, against whom. `ratio` says how many times better we are (rates: ours by
    the peer's; seconds and megabytes: the peer's by ours). `goal`: the least ratio, or the most of `value`
    when there is no peer; only for the screen."""

    bench: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    peak_rss_mb: float | None = None
    goal: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer."""
        if not self.peer_value or not self.value:
            return None
        less_is_better = self.unit in ("s", "MB")
        return self.peer_value / self.value if less_is_better else self.value / self.peer_value

    @property
    def reached(self) -> bool | None:
        """Whether the goal was reached; None without one."""
        if self.goal is None:
            return None
        return self.ratio >= self.goal if self.ratio is not None else self.value <= self.goal

    def as_dict(self) -> dict[str, object]:
        """The line as `bench/results/latest.json` has it."""
        names = ("bench", "value", "unit", "peer", "peer_value", "ratio", "peak_rss_mb")
        found = {n: getattr(self, n) for n in names}
        return {n: round(v, 3) if isinstance(v, float) else v for n, v in found.items()}


@dataclass
class Finished:
    """A process that ended well: seconds it took, when it was started (since 1970), what it printed, and the
    peak of its memory: of all its processes together (sampled), and of each kind of process."""

    seconds: float
    began: float
    ended: float
    output: str
    peak_mb: float
    peaks: dict[str, float] = field(default_factory=dict)


def say(text: str) -> None:
    """Progress, on standard error."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


class Child:
    """A process that is watched: it answers on standard output, a line at a time, until it is finished.

    Args:
        command: the program and its arguments.
        log: where its standard error goes; None: to ours (it tells its own progress).
        core: the processor it is pinned to.
    """

    def __init__(self, command: Sequence[object], *, log: Path | None, core: int | None = None) -> None:
        self._words = [str(c) for c in command]
        if core is not None and hasattr(os, "sched_setaffinity"):
            self._words = [sys.executable, "-c", _PINNED, str(core), *self._words]
        self._log = log
        self.began, self._clock = time.time(), time.monotonic()
        err = log.open("ab") if log else None
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True
        )
        if err:
            err.close()
        self._watch = _Watch(self._process.pid)

    def ask(self, text: str = "") -> str:
        """Sends a line, when there is one, and gives the next line of its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if text:
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self.finish()
            raise RuntimeError(f"{self._words[-4:]} ended early")
        return line

    def finish(self, text: str = "") -> Finished:
        """Sends the last it gets and waits for its end; RuntimeError, with its last words, when it fails."""
        try:
            output, _ = self._process.communicate(text)
        except BaseException:
            self.kill()
            raise
        finally:
            self._watch.stop()
        seconds, total, peaks = (
            time.monotonic() - self._clock,
            self._watch.total / 2**20,
            self._watch.megabytes(),
        )
        if self._process.returncode:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-30:]) if self._log else ""
            what = f"{' '.join(self._words[-4:])} ended with {self._process.returncode}"
            raise RuntimeError(f"{what}\n{output[-2000:]}\n{tail}")
        kinds = ", ".join(f"{kind} {mb:,.0f} MB" for kind, mb in peaks.items())
        say(f"  took {seconds:.1f} s; peak memory {total:,.0f} MB ({kinds})")
        return Finished(seconds, self.began, time.time(), output, total, peaks)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()


def run(command: Sequence[object], *, log: Path | None, stdin: str = "", core: int | None = None) -> Finished:
    """Runs a command to its end; arguments as `Child` has them."""
    return Child(command, log=log, core=core).finish(stdin)


_PINNED = (
    "import os, sys; os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(sys.argv[1])]}); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class _Watch:
    """Samples a process and its descendants: the largest sum of resident memory, and each kind's peak."""

    def __init__(self, pid: int) -> None:
        self.total = 0
        self.peaks: dict[str, int] = {}
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def megabytes(self) -> dict[str, float]:
        return {kind: round(v / 2**20, 1) for kind, v in self.peaks.items()}

    def _run(self) -> None:
        seen: dict[int, int] = {}
        while not self._over.wait(SAMPLE_S):
            alive = tree(self._pid)
            seen = {pid: seen.get(pid, 0) + 1 for pid in alive}
            # A child just forked shows its parent's memory as its own until it starts its program.
            lasting = [pid for pid in alive if seen[pid] > FLEETING or pid == self._pid]
            found = [m for m in map(_memory, lasting) if m[1]]
            self.total = max(self.total, sum(now for _, now, _ in found))
            for kind, _, peak in found:
                self.peaks[kind] = max(self.peaks.get(kind, 0), peak)
            # One process alone: the kernel's own high-water mark is exact where samples are not.
            if len(found) == 1:
                self.total = max(self.total, found[0][2])


def tree(pid: int) -> list[int]:
    """A process and all its descendants (Linux; elsewhere the process alone)."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it ended while we looked
    return found


def _memory(pid: int) -> tuple[str, int, int]:
    """Name, resident bytes now, and the most there ever were; zeros for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "gone", 0, 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    now, peak = (int(fields.get(k, "0 kB").split()[0]) * 1024 for k in ("VmRSS", "VmHWM"))
    return fields["Name"].strip(), now, peak
