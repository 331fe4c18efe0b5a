"""Rounds of chaos: a task, a load, lives of `tailrace run` with faults, then calm, and the validators."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg

from tailrace.config.task import Task, load
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

from .calm import NO_REST, calm
from .disk import Disk
from .faults import Faults, deck, last_deck, struck
from .lives import CAPTURE, live, tracebacks
from .load import SCHEMA, Load
from .losses import Losses
from .proxy import Proxy
from .storing import store
from .tasks import edit_rules, plan, written
from .validators import validate

SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB", "wal_sender_timeout": "20s"}
LEAST_S = 20.0
"""So long something is written at least while a round's last life may last."""
PAUSE_S = {False: 0.08, True: 0.3}
"""How long a writer rests at most between two transactions; in whole rounds, whose lives are long, longer: what is
written must be applied, too."""
MOST_LIVES = 14
"""Lives of a round before its last one, at most."""


@dataclass
class Round:
    """What a round was and did."""

    seed: int
    folder: Path
    events: list[str] = field(default_factory=list)
    finds: list[str] = field(default_factory=list)
    kills: int = 0
    points: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    layouts: int = 0
    changes: int = 0
    seconds: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """An event, with its time."""
        self.events.append(f"{time.monotonic() - self.began:6.1f} {text}")
        (self.folder / "events.txt").write_text("\n".join(self.events) + "\n")

    @property
    def stuck(self) -> bool:
        """Whether not all of it could be brought to its targets: then there is nothing to compare."""
        return any(f.startswith(NO_REST) for f in self.finds)


def play(seed: int, points: Sequence[str], folder: Path, *, whole: bool) -> Round:
    """One round: `points` are the fail points of its first lives, one each, and of its last one; not `whole`:
    without a JVM, capture lives alone, and what it wrote is stored here."""
    random, at = Random(seed), Round(seed, folder)
    with tempfile.TemporaryDirectory(prefix="tailrace-pg-") as data:
        server = EmbeddedPostgres(data, port=0, settings=SETTINGS)
        server.start()
        proxy, disk = (
            Proxy(int(server.port or 0)),
            Disk(folder / "disk", small=whole or random.random() < 0.5),
        )
        try:
            _played(at, random, points, server, proxy, disk, whole=whole)
        finally:
            proxy.close()
            server.stop("immediate")
            disk.close()
    at.seconds = time.monotonic() - at.began
    (folder / "finds.txt").write_text("\n".join(at.finds) + "\n")
    return at


def _played(
    at: Round, random: Random, points: Sequence[str], server: EmbeddedPostgres, proxy: Proxy, disk: Disk,
    *, whole: bool,
) -> None:  # fmt: skip
    file, planned = at.folder / "chaos.yaml", plan(at.seed, whole=whole)
    source = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
    file.write_text(written(random, planned, source, server.tcp_url()))
    at.say(f"{planned}")
    task = load(file)
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.execute(SCHEMA.encode())
    faults = Faults(
        file, task, server, proxy, disk, Losses(file, task, server, random, whole=whole), random, whole=whole
    )
    with _load(at, server, random, whole=whole):
        _lives(at, random, faults, points[:-1], whole=whole)
    calm(at, file, server.url(), random, whole=whole)
    if whole and not at.stuck:
        # Every table has its baseline by now, and goes on changing: that is what the key log must account for.
        at.say(edit_rules(file, planned.mode))
        with _load(at, server, random, whole=whole):
            end = time.monotonic() + LEAST_S
            live(at, MOST_LIVES, random, faults, last_deck(random), points[-1], alone=False)
            time.sleep(max(0.0, end - time.monotonic()))
        calm(at, file, server.url(), random, whole=whole)
    at.kills, at.done = at.kills + faults.kills, faults.done
    at.finds += faults.finds
    if not at.stuck:
        if not whole:
            at.say(f"stored in {store(task, random)} batches")
        at.finds += validate(task, file, server.url(), at.judged, applied=whole)
        at.say("judged: " + ", ".join(f"{n} {what}" for what, n in sorted(at.judged.items())))
    for each in sorted(Path(task.run_path).glob("capture.log*")):
        at.finds += tracebacks(each.name, each.read_text(errors="replace"))
    at.changes = _changes(task)


@contextmanager
def _load(at: Round, server: EmbeddedPostgres, random: Random, *, whole: bool) -> Iterator[None]:
    """Somebody writes meanwhile."""
    every, pause = random.choice([4.0, 10.0, 30.0]), PAUSE_S[whole]
    one = Load(server.url, random.randrange(1 << 30), ddl_every=every, pause=pause).start()
    try:
        yield
    finally:
        at.transactions += one.stop()
        at.layouts += one.layouts


def _lives(at: Round, random: Random, faults: Faults, points: Sequence[str], *, whole: bool) -> None:
    """Lives until all fail points have been given out and all faults have struck."""
    cards = deck(random, whole=whole)
    for n in range(MOST_LIVES):
        if n >= len(points) and not cards.live:
            break
        point = points[n] if n < len(points) else ""
        live(at, n, random, faults, cards, point, alone=not whole or point.partition(".")[0] in CAPTURE)
        if faults.slot_dropped:
            at.say(f"between lives: {faults.begin_anew()}")
        cards.between(lambda name: _rested(at, faults, name))
    while cards.rest:
        cards.between(lambda name: _rested(at, faults, name))


def _rested(at: Round, faults: Faults, name: str) -> bool:
    said = faults.rest(name)
    at.say(f"between lives: {said}")
    return struck(said)


def _changes(task: Task) -> int:
    from tailrace.lake import delta as lake

    return (
        int(lake.read(task.tracking_path, ["change_seq"]).num_rows) if lake.exists(task.tracking_path) else 0
    )


def keep(at: Round) -> Path:
    """A failing round's folder stays; the others go."""
    if not at.finds:
        shutil.rmtree(at.folder, ignore_errors=True)
    return at.folder
