"""Runs the demo's steps in order (`play`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psycopg

from ..config.settings import SparkSettings
from ..config.task import Task, load
from ..errors import TailraceError
from ..execution import BackgroundSession, counted, since
from ..model.steps import Steps
from ..runtime import processes
from ..runtime.session import background_session
from ..runtime.setup import draft, validate_task
from ..sources import open_source
from ..sources.postgresql.embedded_server import EmbeddedPostgres
from ..state import ledger
from ..state.baselines import Baseline, read_baselines
from ..state.progress import Progress
from ..state.totals import last_stored
from ..validate.validation import ValidationReport
from . import demo_folder, shop
from .demo_folder import TaskTables
from .load import ShopLoad, pgbench
from .load import load as do_load
from .plot import plot
from .questions import ask
from .result import DemoResult, TableLine
from .show import Show
from .story import life

PATIENCE_S = 900.0
"""The maximum number of seconds for a step of the demo."""


def play(folder: Path, *, seconds: float, scale: int, tables: TaskTables, show: Show) -> DemoResult:
    """Runs everything, and stops the server; everything else stays in the folder."""
    tables.prepare()
    spark = background_session("tailrace demo", SparkSettings(start="at_once"))
    spark.begin()
    before = counted()
    with demo_folder.make(folder) as server:
        show.step(f"PostgreSQL runs in {folder / 'pg'}")
        url = _fill(server, folder, scale, show)
        task_file = folder / "demo.yaml"
        written = draft(url, name="demo", patterns=["public.*", "shop.*"], output=task_file, force=True)
        tables.write_to(task_file)
        show.step(f"task file {task_file} written for {len(written.tables)} tables")
        for one in written.findings:
            show.act(f"{one.level}: {one.what} ({one.where})")
        task = load(task_file)
        played = DemoResult(str(folder), str(task_file), task.target.path, task.changes_path("shop.customer"))
        with show.doing("Spark starts"):
            while not spark.ready:
                spark.check()
                time.sleep(0.1)
        with _running(task_file, spark) as running:
            _baseline(task, written.tables, running, show)
            began = time.monotonic()
            played.load = _load(task, url, folder, seconds, running, show)
            played.drained_in = _drain(task, running, show)
            took = time.monotonic() - began
            with show.doing("comparing every table with its target"):
                steps = Steps(lambda words, *_: show.about(words) if words else None)
                report = validate_task(
                    task_file, task, (), timeout_s=PATIENCE_S, samples=3, steps=steps, session=spark
                )
    show.step("all tables are compared at one position; task and PostgreSQL are stopped")
    played.position, played.tables = report.position, _lines(task, report, took)
    with show.doing("asking three questions"):
        played.answers = ask(task_file)
    played.plot = str(plot(task, folder / "lag.svg"))
    show.step(f"lag and throughput of the run are drawn in {played.plot}")
    played.life = life(played.changes, "id", [shop.HERO, shop.HERO_LATER])
    played.spark = {kind: asdict(one) for kind, one in since(before).items() if one.jobs}
    played.next = demo_folder.hints(folder, task_file, task)
    played.seconds, played.steps = show.seconds, show.steps
    return played


def _fill(server: EmbeddedPostgres, folder: Path, scale: int, show: Show) -> str:
    with psycopg.connect(server.tcp_url(), autocommit=True) as session:
        session.execute(f"create database {demo_folder.DATABASE}")
    url = server.tcp_url(demo_folder.DATABASE)
    with show.doing(f"loading pgbench's tables at scale {scale}"):
        pgbench(url, folder / "pgbench.log", "-i", "-q", "-s", str(scale))
        shop.build(url)
        with psycopg.connect(url, autocommit=True) as session:
            # The table has no key, and is append-only; the check would nevertheless warn of updates.
            session.execute("alter table pgbench_history replica identity full")
    show.step(f"pgbench's tables at scale {scale} and the schema shop are loaded")
    return url


class Running:
    """The task, which runs in a separate thread (its capture in a separate process)."""

    def __init__(self, work: Future[None]) -> None:
        self._work = work

    def check(self) -> None:
        """Raises the error that ended the task, if it has ended."""
        if self._work.done():
            self._work.result()
            raise TailraceError("the task ended before the demo", where="tailrace run")

    def until(self, done: Callable[[], bool], what: str, tick: Callable[[], None]) -> None:
        """Waits for a condition while the task runs."""
        end = time.monotonic() + PATIENCE_S
        while not done():
            self.check()
            if time.monotonic() > end:
                raise TailraceError(f"{what}: not done after {PATIENCE_S:.0f} s", where="demo")
            tick()
            time.sleep(0.2)


@contextmanager
def _running(task_file: Path, spark: BackgroundSession) -> Iterator[Running]:
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="task") as pool:
        work = pool.submit(processes.run, task_file, once=False, stop=stop, spark=spark)
        try:
            yield Running(work)
        finally:
            stop.set()
    work.result()


def _baseline(task: Task, tables: list[str], running: Running, show: Show) -> None:
    def taken() -> dict[str, Baseline]:
        return read_baselines(task.control_path("baselines"))

    with show.doing("baseline: reading every table in one snapshot"):
        running.until(lambda: set(taken()) >= set(tables), "baseline", lambda: show.baselines(task))
    done = taken().values()
    show.step(f"baseline: {sum(b.rows for b in done):,} rows of {len(done)} tables are in their targets")


def _load(task: Task, url: str, folder: Path, seconds: float, running: Running, show: Show) -> ShopLoad:
    show.step(f"pgbench (2 clients) and a writer in shop run for {seconds:.0f} s while the task runs")
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool, show.loading(task, seconds):
        try:
            work = pool.submit(do_load, url, folder, seconds, stop=stop, show=show.act)
            running.until(work.done, "load", show.tick)
        finally:
            stop.set()
    done = work.result()
    show.step(
        f"writers stopped: {done.pgbench_transactions:,} transactions of pgbench, "
        f"{done.writer_transactions + len(done.acts):,} in shop"
    )
    return done


def _drain(task: Task, running: Running, show: Show) -> float:
    """Waits until all changes of the source are applied; returns the seconds that it took."""
    began = time.monotonic()
    source = open_source(task)
    try:
        wanted = source.end_position().hex().upper()
        source.mark("demo")  # a record after everything: once it is stored, so is everything before it
    finally:
        source.close()

    def drained() -> bool:
        last = last_stored(task.control_path("stored"))
        if last is None or last.position < wanted:
            return False
        return Progress.read(task.control_path("applied"), ledger.APPLIED_APP).includes(last.upto)

    with show.doing("draining: storing and applying what is captured"):
        running.until(drained, "drain", lambda: None)
    took = time.monotonic() - began
    show.step(f"everything is applied, {took:.1f} s after the writers stopped")
    return took


def _lines(task: Task, report: ValidationReport, took: float) -> list[TableLine]:
    changes: dict[str, int] = {}
    for batch in ledger.read_stored(task.control_path("stored")):
        for table, counts in batch.tables.items():
            changes[table] = changes.get(table, 0) + sum(counts.get(k, 0) for k in "IUDT")
    lines = []
    for t in report.tables:
        stored = changes.get(t.table, 0)
        words = [t.columns] if t.columns else []
        words += [f"{t.differing_rows:,} rows, e.g. {t.samples[:1]}"] if t.differing_rows else []
        lines.append(
            TableLine(
                t.table,
                t.source_rows,
                t.target_rows,
                t.equal,
                stored,
                stored / took,
                "; ".join(words) or None,
            )
        )
    return lines
