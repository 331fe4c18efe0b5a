"""What is done to a running task; each fault gives words of what it did."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import psycopg

from tailrace.config.task import Task
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

from .clock import behind
from .commands import PYTHON, plain, tailrace
from .disk import DONE, Disk
from .losses import Losses
from .proxy import Proxy
from .tasks import MODES, edit_rules

GENTLE = ("capture", "senders", "cut", "cut", "server", "second", "order", "order", "order")
"""Faults that a running task lives through, or that no process of it is ended by."""
DEADLY = ("java", "parent", "worker", "full", "slot")
"""Those that end it, or may."""
AT_REST = ("log", "rules", "validate")
"""Those that happen while nothing runs."""
WITH_CHILDREN = ("capture", "java", "worker", "validate")
"""Those that need more than capture alone."""
QUIET = ("cut", "senders", "capture", "server")
"""Those after which no table needs a new baseline: what a round's last life has."""
CHILD_S = 20.0
"""How long a fault waits for the process that it is for."""
TRIES = 4
"""How often a fault is tried that finds nothing to do."""
NOT = re.compile(r"no\b|nobody|nothing|0 |all of LOG|newer baselines")
"""How words begin of a fault that has done nothing."""
TABLES = [
    "m.keyed", "m.whole", "m.part", "m.coded", "m.large", "m.wander", "m.bag", "m.log", "m.others", "m.G*", "m.*",
]  # fmt: skip


@dataclass
class Deck:
    """The faults that a round deals; one that found nothing to do comes again later."""

    live: list[str]
    rest: list[str] = field(default_factory=list)
    _tries: Counter[str] = field(default_factory=Counter)

    def strike(self, do: Callable[[str], bool], *, alone: bool) -> None:
        """Deals a fault that strikes a running task, by `do`, which says whether it did; `alone`: capture alone
        is at work."""
        name = next((n for n in self.live if not alone or n not in WITH_CHILDREN), None)
        self._dealt(self.live, name, do)

    def between(self, do: Callable[[str], bool]) -> None:
        """Deals one that happens while nothing runs."""
        self._dealt(self.rest, next(iter(self.rest), None), do)

    def _dealt(self, cards: list[str], name: str | None, do: Callable[[str], bool]) -> None:
        if name is None:
            return
        cards.remove(name)
        self._tries[name] += 1
        if not do(name) and self._tries[name] % TRIES:
            cards.append(name)


def deck(random: Random, *, whole: bool) -> Deck:
    """Every fault there is; the deadly ones stand between others."""
    here = [n for n in (*GENTLE, *AT_REST, *DEADLY) if whole or n not in (*WITH_CHILDREN, "parent")]
    deadly, gentle, rest = ([n for n in here if n in kind] for kind in (DEADLY, GENTLE, AT_REST))
    for cards in (deadly, gentle, rest):
        random.shuffle(cards)
    for n, name in enumerate(deadly):
        gentle.insert(
            (n + 1) * (len(gentle) + 1) // len(deadly) if n + 1 < len(deadly) else len(gentle), name
        )
    return Deck(gentle, rest)


def last_deck(random: Random) -> Deck:
    """The faults of a round's last life."""
    return Deck([*random.sample(QUIET, 2), random.choice(["java", "parent", "worker"])])


def struck(words: str) -> bool:
    """Whether a fault did anything, by what it said."""
    return NOT.match(words.partition(": ")[2] or words) is None


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
            "slot": lambda pid: losses.drop_slot(),
        }
        self.dead: dict[str, Callable[[], str]] = {
            "log": losses.lose_log,
            "rules": lambda: edit_rules(self.file, self._random.choice([*MODES, ""])),
            "validate": self.validate,
        }

    def strike(self, name: str, pid: int) -> str:
        """One that strikes a running task; in words."""
        return self._told(name, self.live[name](pid))

    def rest(self, name: str) -> str:
        """One that happens while nothing runs."""
        return self._told(name, self.dead[name]())

    def begin_anew(self) -> str:
        """What is due when the slot is gone."""
        return self._told("anew", self._losses.begin_anew())

    @property
    def slot_dropped(self) -> bool:
        """Whether it is gone."""
        return self._losses.slot_dropped

    def _told(self, name: str, words: str) -> str:
        self.done[name] += struck(words)
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

    def _soon(self, pid: int, is_it: Callable[[psutil.Process], bool]) -> int | None:
        """A child, which may be about to be started."""
        end = time.monotonic() + CHILD_S
        while (found := self._child(pid, is_it)) is None and time.monotonic() < end and _at_work(pid):
            time.sleep(0.2)
        return found

    def kill_capture(self, pid: int) -> str:
        return self._kill(self._soon(pid, lambda p: p.ppid() == pid and "capture" in p.cmdline()))

    def kill_java(self, pid: int) -> str:
        return self._kill(self._soon(pid, lambda p: p.name() == "java"))

    def kill_parent(self, pid: int) -> str:
        os.kill(pid, signal.SIGKILL)  # counted when it has ended
        return str(pid)

    def kill_worker(self, pid: int) -> str:
        """A process in which Spark runs Python; now and then the one that starts them."""

        def python(one: psutil.Process) -> bool:
            return any("pyspark" in a for a in one.cmdline()) and one.name() != "java"

        daemon = self._soon(pid, python)
        worker = None if daemon is None else self._child(daemon, python)
        return self._kill(worker if worker is not None and self._random.random() < 0.8 else daemon)

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
        right = another.returncode == 1 and "is already running, as" in text and not java
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
