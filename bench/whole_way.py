"""Capture to change tables, and the whole way to the targets, against Debezium's capture alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

import load
import peer
import tasks
from capture import Bulk, Captured, captured
from load import Backlog, Sizes
from measure import Row, say
from tailrace.config.task import Task
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.sources.postgresql.slot import name_of

SLOT = peer.SLOT + "_way"  # slots belong to the server, not to a database


def store(bulk: Bulk) -> list[Row]:
    """The bench `store`: capture, then store, by a session that is warm."""
    ours, theirs, n, done = bulk.ours, bulk.theirs, bulk.backlog.changes, bulk.stored
    assert done is not None
    rate, mb = n / (n / ours.rate + done.work), done.process.peak_mb
    return [
        Row("capture to change tables", rate, "changes/s", peer.NAME, theirs.rate, mb),
        Row("store alone", n / done.work, "changes/s", peak_rss_mb=mb),
    ]


def way(running: EmbeddedPostgres, folder: Path, sizes: Sizes) -> list[Row]:
    """The bench `way`: capture, store, apply, with targets that have their baseline already."""
    session = load.database(running, "way")
    say(f"filling tables of {sizes.accounts:,} and {sizes.orders:,} rows")
    tables = load.small_tables(session, sizes)
    url = running.tcp_url("way")
    file = tasks.write(folder, "way", url, tables)
    task = tasks.load(file)
    say("baseline (not counted)")
    baseline = tasks.capture(file)
    load.slot_for_peer(session, tables, SLOT)
    first = sizes.transactions // load.WARM
    warm = load.small(url, sizes, first)
    cold = tasks.capture(file)
    spark = tasks.Drain(file, "all")
    say(f"writing {sizes.transactions:,} transactions of four changes")
    backlog = Backlog("small", tables, load.small(url, sizes, sizes.transactions, start=first), warm)
    ours = captured(file, backlog)
    done = spark.again()
    _equal(session, task, tables)
    theirs = peer.capture(backlog, url, SLOT, folder)
    load.drop_slot(session, SLOT)
    load.drop_slot(session, name_of(task.name))
    session.close()
    return [
        *_way_rows(backlog, ours, done, theirs, cold.seconds),
        Row(
            "baseline of both tables, start of the process included",
            (sizes.accounts + sizes.orders) / baseline.seconds, "rows/s", peak_rss_mb=baseline.peak_mb,
        ),
    ]  # fmt: skip


def _way_rows(
    backlog: Backlog, ours: Captured, done: tasks.Drained, theirs: peer.PeerRun, cold: float
) -> list[Row]:
    n, peak = backlog.changes, max(done.process.peak_mb, ours.process.peak_mb)
    everything = cold + n / ours.rate_with_start + done.cold + done.work
    return [
        Row(
            "whole way to the targets",
            n / (n / ours.rate + done.work), "changes/s", peer.NAME, theirs.rate, peak, goal=0.5,
        ),
        Row(
            "whole way to the targets, start of all processes and warm-up included",
            (backlog.warm + n) / everything, "changes/s", peer.NAME, theirs.rate_with_start, peak,
        ),
        Row(
            "capture to LOG, transactions of four changes",
            ours.rate, "changes/s", peer.NAME, theirs.rate, ours.process.peak_mb,
        ),
        Row("store and apply alone", n / done.work, "changes/s", peak_rss_mb=done.process.peak_mb),
        Row("peak memory of the Spark half", done.process.peak_mb, "MB", peer.NAME, theirs.peak_mb, peak),
    ]  # fmt: skip


def _equal(session: psycopg.Connection[Any], task: Task, tables: Sequence[str]) -> None:
    """A fast wrong answer is no answer: rows and sums of both sides must be the same."""
    for table, column in zip(tables, ("balance", "amount"), strict=True):
        row = session.execute(f"select count(*), sum(id), sum({column}) from {table}").fetchone()
        there = DeltaTable(task.target_path(table)).to_pyarrow_table(columns=["id", column])
        here = (there.num_rows, _sum(there, "id"), _sum(there, column))
        if row is None or tuple(row) != here:
            raise RuntimeError(f"{table}: the source has {row}, the target {here}")


def _sum(rows: pa.Table, column: str) -> object:
    return pc.sum(rows[column]).as_py()
