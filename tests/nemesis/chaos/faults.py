"""What is done to a running task; each fault gives words of what it did."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import psycopg

from tailrace.config.task import Task
from tailrace.sources.postgresql.embedded import EmbeddedPostgres

from .clock import behind
from .commands import PYTHON, plain, tailrace
from .disk import DONE, Disk
from .losses import Losses
from .proxy import Proxy
from .tasks import edit_rules

LIVE = {
    "capture": 4, "java": 2, "parent": 2, "worker": 2, "senders": 2, "cut": 3, "server": 1.5, "second": 1,
    "order": 5, "full": 2, "slot": 0.5,
}  # fmt: skip
"""How often, beside each other, faults strike a running task."""
WITH_CHILDREN = ("capture", "java", "worker")
DEAD = {"nothing": 1, "checkpoints": 2, "slot": 1, "log": 3, "rules": 2, "validate": 1}
"""How often they happen while nothing runs."""
STRUCK: Counter[str] = Counter()
"""How often each was chosen in this session: who was not, comes sooner."""
NOT = re.compile(r"no\b|nobody|nothing|0 |all of LOG|newer baselines")
"""How words begin of a fault that has done nothing."""
TABLES = ["m.keyed", "m.whole", "m.part", "m.coded", "m.large", "m.wander", "m.bag", "m.log", "m.G*", "m.*"]


def _at_work(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class Faults:
    """The faults of a round. `whole`: its lives have a JVM, and targets."""

    def __init__(
        self, file: Path, task: Task, server: EmbeddedPostgres, proxy: Proxy, disk: Disk, losses: Losses,
        random: Random, *, whole: bool,
    ) -> None:  # fmt: skip
        self.file, self._task, self._server, self._proxy, self._random = file, task, server, proxy, random
        self._disk, self._losses, self._whole = disk, losses, whole
        self.done: Counter[str] = Counter()
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
            "validate": self.validate,
        }

    def strike(self, pid: int, *, alone: bool, last: bool) -> str:
        """One of them; `alone`: capture alone is at work. The last life keeps its slot: what it captures is judged."""
        names = [n for n in LIVE if not (alone and n in WITH_CHILDREN) and not (last and n == "slot")]
        name = self._chosen(names, LIVE)
        return self._told(name, self.live[name](pid))

    def rest(self) -> str:
        """One that happens while nothing runs."""
        if self._losses.slot_dropped:
            return self._told("anew", self._losses.begin_anew())
        name = self._chosen(list(DEAD), DEAD)
        return self._told(name, self.dead[name]())

    def _chosen(self, names: list[str], often: Mapping[str, float]) -> str:
        """By chance; a slow machine has room for few in a life, so it is the turn of those that were rare."""
        name = self._random.choices(names, [often[n] / (1 + STRUCK[n]) ** 2 for n in names])[0]
        STRUCK[name] += 1
        return name

    def _told(self, name: str, words: str) -> str:
        self.done[name] += NOT.match(words) is None
        return f"{name}: {words}"

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
            return "no disk that can be full"
        return DONE

    def second_run(self, pid: int) -> str:
        """Another one must be refused with who holds the task, and start no JVM for that."""
        command = self._random.choice([("capture", "--once"), ("run",)])
        holder, java, end = self._holder(pid), False, time.monotonic() + 200
        with tempfile.TemporaryFile("w+") as said:
            another = subprocess.Popen(
                [*PYTHON, command[0], str(self.file), *command[1:]], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )  # fmt: skip
            while another.poll() is None and time.monotonic() < end and _at_work(pid):
                java = java or self._child(another.pid, lambda p: p.name() == "java") is not None
                time.sleep(0.05)
            if another.poll() is None:
                another.terminate()
                another.wait(300)
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
        """An order for one table, now and then for many; it may be refused, never end in a traceback."""
        table = self._random.choice(TABLES)
        action = self._random.choice(["pause", "resume", "resync", "resync", "remove", "add"])
        more = ["--drop-target"] * (action == "remove" and self._random.random() < 0.3)
        done = tailrace(action, self.file, table, *more)
        if "Traceback" in done.stderr:
            self.finds.append(f"order: {action} {table} ended in a traceback: {done.stderr[-1500:]}")
        self.done[f"order {action}"] += done.returncode == 0
        return f"{' '.join([action, table, *more])}: code {done.returncode}"

    def validate(self) -> str:
        """`tailrace validate` while the source is written to: no table may differ."""
        if not self._whole:
            return "nothing to validate"
        done = tailrace("validate", self.file)
        if done.returncode == 2 or "Traceback" in done.stderr:
            self.finds.append(
                f"validate: code {done.returncode}: {plain(done.stdout)[-1500:]} {plain(done.stderr)[-700:]}"
            )
        return f"code {done.returncode}: {plain(done.stderr)[-200:]}"

    def lose_checkpoints(self) -> str:
        for name in ("store", "apply"):
            shutil.rmtree(self._task.checkpoint_path(name), ignore_errors=True)
        return "checkpoints deleted"
