"""One life of a task, or of its capture alone: it is started, struck, and ended."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psutil
import psycopg

from tailrace.lake import failpoints

from . import disk
from .clock import BY, set_back
from .commands import PYTHON, plain
from .faults import DEADLY, Deck, Faults, struck
from .tasks import ELSEWHERE

if TYPE_CHECKING:
    from .driver import Round

UP_S, DOWN_S = 300.0, 300.0
ALONE_S, WHOLE_S = (3.0, 7.0), (10.0, 120.0)
"""How long a life of capture alone lasts, and one of a whole task: that one as long as there are faults to deal."""
CAPTURE = ("log", "capture", "windows", "baseline", "baselines", "commands", "ddl", "rename", "membership")
"""Parts of tailrace whose fail points the process without JVM comes to: it lives alone then, which is quick."""
CAUSES = re.compile(rf"^({'|'.join(DEADLY)}): ")
"""Faults that may end a task; after every other one it goes on by itself."""
TRACEBACK = "Traceback (most recent call last)"
WORKERS = re.compile(
    rf"{re.escape(TRACEBACK)}:\n(?:  File \"[^\n]*pyspark/daemon\.py\"[^\n]*\n)+(?:BrokenPipeError|ConnectionResetError):[^\n]*\n"
)
"""What a process of pyspark's says when its JVM has let it go: no process of ours is left to keep that back."""


def live(at: Round, n: int, random: Random, faults: Faults, deck: Deck, point: str, *, alone: bool) -> None:
    """One life; `point` is the fail point that it gets, the faults are dealt while it lasts."""
    env, action = _environment(at, n, random, point, alone=alone), "capture" if alone else "run"
    run: list[str] = []
    with (at.folder / f"life-{n}.log").open("w") as out:
        running = subprocess.Popen(
            [*PYTHON, action, str(faults.file)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env
        )
        atexit.register(running.kill)
        _until_up(running, Path(faults.run_path) / f"{'capture' if alone else 'pipeline'}.json")
        began, (least, most) = time.monotonic(), ALONE_S if alone else WHOLE_S

        def strike(name: str) -> bool:
            with suppress(psutil.NoSuchProcess, psycopg.OperationalError, subprocess.TimeoutExpired):
                run.append(faults.strike(name, running.pid))
                at.say(run[-1])
                return struck(run[-1])
            return False

        while running.poll() is None:
            if time.monotonic() - began > (most if alone or deck.live else least):
                break
            time.sleep(random.uniform(0.5, 4))
            if running.poll() is None:
                deck.strike(strike, alone=alone)
        if run and disk.DONE in run[-1] and running.poll() is None:
            time.sleep(2)  # it may be about to say so
        fell = running.poll()
        at.finds += [f"life {n}: {said}" for said in _end(running, random)]
        atexit.unregister(running.kill)
    at.say(f"life {n} ended with code {running.returncode}{', by itself' if fell is not None else ''}")
    at.kills += running.returncode == -signal.SIGKILL
    text = (at.folder / f"life-{n}.log").read_text(errors="replace")
    if running.returncode > 0:
        at.say("  said: " + " / ".join(text.strip().splitlines()[-4:])[:600])
    if fell is not None and not point and [disk.DONE in one for one in run if CAUSES.match(one)] == [True]:
        at.finds += [f"life {n}: without room it said {text[-600:]!r}"] * (disk.FULL not in plain(text))
    if (
        fell is not None
        and fell > 0
        and not point
        and not any(CAUSES.match(one) and struck(one) for one in run)
    ):
        at.finds.append(
            f"life {n}: it ended with code {fell}, and nothing was done to it but {run}: {text[-900:]!r}"
        )
    at.finds += tracebacks(f"life {n}", text)


def tracebacks(what: str, text: str) -> list[str]:
    """A find, when something was not told in an error of ours."""
    text = WORKERS.sub("", text)
    if told := re.search(r"a task failed: [^\n]*", text):
        return [f"{what}: {told[0][:600]}"]
    if (start := text.find(TRACEBACK)) < 0:
        return []
    ends = re.search(r"\n(?=[\w.]+(Error|Exception|Interrupt|Exit)\b)[^\n]*", text[start:])
    last = ends[0].strip() if ends else text[start:][-300:]
    return [
        f"{what}: {text.count(TRACEBACK)} tracebacks, the first one {plain(text[start:])[:300]} ... {last[:300]}"
    ]


def _environment(at: Round, n: int, random: Random, point: str, *, alone: bool) -> dict[str, str]:
    """Its fail point; now and then a clock that was set back, or a disk that hangs at some write."""
    env = {k: v for k, v in os.environ.items() if k != failpoints.VARIABLE}
    if point:
        env[failpoints.VARIABLE] = f"{point}:{random.choice([1, 1, 2, 3])}"
        at.points.append(env[failpoints.VARIABLE])
    elif random.random() < 0.5:
        near = [p for p in failpoints.POINTS if not ELSEWHERE.match(p)]
        slow = [p for p in near if not alone or p.partition(".")[0] in CAPTURE]
        env[failpoints.VARIABLE] = f"{random.choice(slow)}:{random.randrange(1, 6)}:pause"
    older = set_back(random.choice([200, 20_000, 300_000])) if random.random() < 0.2 else {}
    clock = f", its clock set back by {older[BY]} s" if older else ""
    at.say(f"life {n}: {env.get(failpoints.VARIABLE, 'no fail point')}{clock}")
    return env | dict(older)


def _until_up(running: subprocess.Popen[bytes], state: Path) -> None:
    began, limit = time.time(), time.monotonic() + UP_S
    while running.poll() is None and time.monotonic() < limit:
        with suppress(OSError):
            if state.stat().st_mtime > began:
                return
        time.sleep(0.3)


def _end(running: subprocess.Popen[bytes], random: Random) -> list[str]:
    """Ends it; a find when it does not end."""
    family: list[psutil.Process] = []
    found: list[str] = []
    with suppress(psutil.Error):
        family = psutil.Process(running.pid).children(recursive=True)
    if running.poll() is None:
        running.send_signal(random.choice([signal.SIGKILL, signal.SIGTERM]))
    try:
        running.wait(DOWN_S)
    except subprocess.TimeoutExpired:
        found.append(f"still there {DOWN_S:.0f} s after it was asked to end")
        running.kill()
        running.wait(10)
    _, left = psutil.wait_procs(family, timeout=60)
    for one in left:
        with suppress(psutil.Error):
            found += [f"left behind: {' '.join(one.cmdline())[:300]}"] * ("capture" in one.cmdline())
            one.kill()
    return found
