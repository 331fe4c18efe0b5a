"""What is done to a running task; each fault gives words of what it did."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import psycopg

from tailrace.control.task import Task
from tailrace.sources.embedded import EmbeddedPostgres

from .clock import behind
from .commands import PYTHON, plain, tailrace
from .disk import Disk
from .losses import Losses
from .proxy import Proxy
from .tasks import edit_rules


class Faults:
    """The faults of a round."""

    def __init__(
        self, file: Path, task: Task, server: EmbeddedPostgres, proxy: Proxy, disk: Disk, losses: Losses,
        random: Random,
    ) -> None:  # fmt: skip
        self.file, self._task, self._server, self._proxy, self._random = file, task, server, proxy, random
        self._disk, self._losses = disk, losses
        self.kills, self.run_path = 0, task.run_path
        self.finds = losses.finds
        self.live: dict[str, Callable[[int], str]] = {
            "capture": self.kill_capture,
            "java": self.kill_java,
            "parent": self.kill_parent,
            "worker": self.kill_worker,
            "senders": self.end_senders,
            "cut": self.cut,
            "server": self.kill_server,
            "second": self.second_run,
            "order": self.order,
            "full": self.fill,
            "slot": lambda pid: self._losses.drop_slot(),
        }
        self.dead: dict[str, Callable[[], str]] = {
            "nothing": lambda: "nothing",
            "checkpoints": self.lose_checkpoints,
            "slot": losses.lose_slot,
            "log": losses.lose_log,
            "rules": lambda: edit_rules(self.file, self._random),
        }

    def strike(self, pid: int) -> str:
        """One of them."""
        name = self._random.choices(list(self.live), [4, 2, 2, 2, 2, 3, 1, 1, 4, 2, 0.4])[0]
        return f"{name}: {self.live[name](pid)}"

    def rest(self) -> str:
        """One that happens while nothing runs."""
        if self._losses.slot_dropped:
            return self._losses.begin_anew()
        return self._random.choices(list(self.dead.values()), [2, 2, 1, 2, 2])[0]()

    def _kill(self, pid: int | None) -> str:
        if pid is None:
            return "nobody"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
        return str(pid)

    def _child(self, pid: int, is_it: Callable[[psutil.Process], bool]) -> int | None:
        with suppress(psutil.Error):
            for one in psutil.Process(pid).children(recursive=True):
                with suppress(psutil.Error):
                    if is_it(one):
                        return int(one.pid)
        return None

    def kill_capture(self, pid: int) -> str:
        return self._kill(self._child(pid, lambda p: p.ppid() == pid and "capture" in p.cmdline()))

    def kill_java(self, pid: int) -> str:
        return self._kill(self._child(pid, lambda p: p.name() == "java"))

    def kill_parent(self, pid: int) -> str:
        os.kill(pid, signal.SIGKILL)  # counted when it has ended
        return str(pid)

    def kill_worker(self, pid: int) -> str:
        return self._kill(
            self._child(pid, lambda p: any("pyspark" in a for a in p.cmdline()) and p.name() != "java")
        )

    def end_senders(self, pid: int) -> str:
        with psycopg.connect(self._server.url(), autocommit=True) as db:
            rows = db.execute("select pg_terminate_backend(pid) from pg_stat_replication").fetchall()
        return f"{len(rows)} ended"

    def cut(self, pid: int) -> str:
        return f"{self._proxy.cut(self._random)} connections"

    def kill_server(self, pid: int) -> str:
        left = self._server.folder / "postmaster.pid"
        number = int(left.read_text().split()[0])
        os.kill(number, signal.SIGQUIT)
        self.kills += 1
        for _ in range(100):
            if not psutil.pid_exists(number):
                break
            time.sleep(0.1)
        if self._random.random() < 0.3:
            with behind(7200) as older:
                self._server.start()
            return f"server crashed and started, its clock {'set back' if older else 'as it was'}"
        self._server.start()
        return "server crashed and started"

    def fill(self, pid: int) -> str:
        """Whoever writes meanwhile must end with an error of ours: the driver looks at that."""
        if not self._disk.fill(self._random.uniform(1, 5)):
            return "this disk cannot be full"
        return "there was no room"

    def second_run(self, pid: int) -> str:
        """Another one must be refused with who holds the task, and start no JVM for that."""
        command = self._random.choice([("capture", "--once"), ("run",)])
        holder, java, end = self._holder(pid), False, time.monotonic() + 40
        with tempfile.TemporaryFile("w+") as said:
            another = subprocess.Popen(
                [*PYTHON, command[0], str(self.file), *command[1:]], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )  # fmt: skip
            while another.poll() is None and time.monotonic() < end:
                java = java or self._child(another.pid, lambda p: p.name() == "java") is not None
                time.sleep(0.05)
            if another.poll() is None:
                another.terminate()
                another.wait(60)
            said.seek(0)
            text = plain(said.read())
        right = another.returncode == 1 and "runs already, as" in text and not java
        if not right and holder is not None and holder == self._holder(pid):
            self.finds.append(
                f"second {' '.join(command)} while {holder} was at work: code {another.returncode}, "
                f"{'a JVM' if java else 'no JVM'}: {text[-500:]!r}"
            )
        return f"{' '.join(command)}: code {another.returncode}"

    def _holder(self, pid: int) -> int | None:
        """The process that captures, if it has for a while."""
        own = self._child(pid, lambda p: p.ppid() == pid and "capture" in p.cmdline())
        with suppress(psutil.Error):
            one = psutil.Process(own or pid)
            if "capture" in one.cmdline() and one.create_time() < time.time() - 5:
                return int(one.pid)
        return None

    def order(self, pid: int) -> str:
        table = self._random.choice(["m.keyed", "m.whole", "m.part", "m.coded", "m.large"])
        action = self._random.choice(["pause", "resume", "resync", "resync", "remove", "add"])
        done = tailrace(action, self.file, table)
        if "Traceback" in done.stderr:
            self.finds.append(f"order: {action} {table} ended in a traceback: {done.stderr[-1500:]}")
        return f"{action} {table}: code {done.returncode}"

    def lose_checkpoints(self) -> str:
        for name in ("store", "apply"):
            shutil.rmtree(self._task.checkpoint_path(name), ignore_errors=True)
        return "checkpoints deleted"
