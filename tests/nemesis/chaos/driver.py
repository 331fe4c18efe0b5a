"""Rounds of chaos: a task, a load, lives of `tailrace run` with faults, then calm, and the validators."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg

from tailrace.config.task import Task, load
from tailrace.sources.postgresql.embedded import EmbeddedPostgres

from .calm import calm
from .disk import Disk
from .faults import Faults
from .lives import CAPTURE, live, tracebacks
from .load import SCHEMA, Load
from .losses import Losses
from .proxy import Proxy
from .storing import store
from .tasks import written
from .validators import validate

SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB", "wal_sender_timeout": "20s"}


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


def play(seed: int, points: Sequence[str], folder: Path, *, whole: bool) -> Round:
    """One round: `points` are the fail points of its lives, one each; not `whole`: without a JVM, capture lives
    alone, and what it wrote is stored here."""
    random, at = Random(seed), Round(seed, folder)
    with tempfile.TemporaryDirectory(prefix="tailrace-pg-") as data:
        server = EmbeddedPostgres(data, port=0, settings=SETTINGS)
        server.start()
        proxy, disk = Proxy(int(server.port or 0)), Disk(folder / "disk", small=random.random() < 0.5)
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
    file = at.folder / "chaos.yaml"
    source = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
    file.write_text(written(random, at.seed, source, server.tcp_url(), points, whole=whole))
    task = load(file)
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.execute(SCHEMA.encode())
    losses = Losses(file, task, server, random, whole=whole)
    faults = Faults(file, task, server, proxy, disk, losses, random, whole=whole)
    load_ = Load(server.url, at.seed, ddl_every=random.choice([4.0, 10.0, 30.0])).start()
    for n, point in enumerate(points):
        last, alone = n + 1 == len(points), not whole or point.partition(".")[0] in CAPTURE
        live(at, n, random, faults, point, alone=alone, last=last)
        if not last or losses.slot_dropped:
            at.say(f"between lives: {faults.rest()}")
    at.transactions, at.layouts = load_.stop(), load_.layouts
    at.kills, at.done = at.kills + faults.kills, faults.done
    at.finds += faults.finds
    calm(at, file, server.url(), random, whole=whole)
    if not any(f.startswith("it does not come to rest") for f in at.finds):
        if not whole:
            at.say(f"stored in {store(task, random)} batches")
        at.finds += validate(task, file, server.url(), at.judged, applied=whole)
        at.say("judged: " + ", ".join(f"{n} {what}" for what, n in sorted(at.judged.items())))
    for each in sorted(Path(task.run_path).glob("capture.log*")):
        at.finds += tracebacks(each.name, each.read_text(errors="replace"))
    at.changes = _changes(task)


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
