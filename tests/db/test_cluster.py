"""The Spark half on clusters whose executors are processes of their own."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.lake import delta as lake
from tailrace.runtime.jars import resolve_jars
from tailrace.runtime.local_settings import PLAIN_PLANS
from tailrace.runtime.session import CORRECTNESS
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

from ..standalone_cluster import PACKAGES, SPARK, StandaloneCluster, family, wait_until
from .model import SCHEMA, TABLES, Row, Writer, bag
from .test_model import target_rows, write_task

pytestmark = [pytest.mark.db, pytest.mark.slow]

IN_SPARK = """
import json, sys, time
from tailrace.cli.main import app
from tailrace.config.task import load
from tailrace.execution import counted
from tailrace.runtime.pipeline import Pipeline
from tailrace.runtime.session import background_session

tasks = list(map(load, sys.argv[1:]))
spark = background_session("kinds", tasks[0].spark, tasks[0].shared_folders)
spark.begin()
while spark.ready is None:
    spark.check()
    time.sleep(0.1)
for task in tasks:
    Pipeline(task, spark.as_session).drain()
steps = counted()
codes = [app(["validate", file, "--json"], standalone_mode=False) for file in sys.argv[1:]]
listed = spark.sparkContext._jsc.sc().statusStore().executorList(False)
executors = [listed.apply(n) for n in range(listed.size())]
print(json.dumps({
    "steps": {kind: [one.in_driver, one.in_spark > 0] for kind, one in steps.items()},
    "tasks": {one.id(): one.completedTasks() for one in executors if one.id() != "driver"},
    "codes": codes,
}))
"""
"""Tasks in one process whose session is ready before they begin: all that Spark can do is done by its tasks."""
FEW = {"spark.sql.shuffle.partitions": 2, "spark.databricks.delta.snapshotPartitions": 2}
"""As many tasks as slots."""
MISFITS = """
import json, sys
from tailrace.errors import ConfigError
from tailrace.execution import check_executors
from tailrace.runtime.session import session

master, folder = sys.argv[1:3]
for conf in map(json.loads, sys.argv[3:]):
    spark = session("misfits", master=master, conf=conf)
    try:
        print(check_executors(spark, ("tailrace.store.running",), (folder,)))
    except ConfigError as error:
        print(error.what)
    spark.stop()
"""
OLD_PYTHON = """
import sys

class Version(tuple):
    major, minor = 3, 9

sys.version_info = Version((3, 9, 1, "final", 0))
"""
KINDS = {
    "one": "{path: lake}",
    "several": "{path: lake, local_limit: 1B}",
    "mapped": "{path: lake}",
    "copy": "{database: '%s'}",
}
"""A merge in one task, merges by several tasks, expressions, and a database."""

SUBMIT = Path(__file__).parents[2] / "examples" / "submit.py"
LOADED = """
create schema l;
create table l.items (
  id int primary key, name text, price numeric(12,3), at timestamptz, day date, ok boolean, rate double precision,
  data bytea, more jsonb
);
create table l.notes (code text primary key, note text);
create table l.copies (a int, b text);
alter table l.copies replica identity full;
insert into l.items select n, md5(n::text) from generate_series(1, 4000) n;
insert into l.notes select 'c' || n, null from generate_series(1, 2000) n;
"""
ROUND = """
insert into l.items
  select %(n)s * 10000 + n, E'tab\\t nl\\n bs\\\\ NULL 😀' || n, n / 7.0, timestamptz '2026-01-01 00:00:00.000001+02' + n * interval '1 s',
    date '0001-01-01' + n, n %% 3 = 0, n / 3.0, decode(md5(n::text), 'hex'), jsonb_build_object('n', n)
  from generate_series(1, 400) n;
update l.items set name = nullif('round %(n)s', 'round 3'), id = case when id %% 97 = 0 then -id - %(n)s * 100000 else id end
  where id %% 5 = %(n)s %% 5;
delete from l.items where id %% 11 = %(n)s %% 11;
update l.notes set note = repeat('n', %(n)s) where code like '%%' || %(n)s %% 10;
insert into l.copies select n %% 5, 'x' from generate_series(1, 60) n;
delete from l.copies where ctid in (select ctid from l.copies limit 50);
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers with a core each."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


class Driver:
    """A task whose capture and pipeline are processes of their own."""

    def __init__(self, cluster: StandaloneCluster, file: Path, command: list[str]) -> None:
        self.cluster, self.task, self._command = cluster, load(file), command
        self._state = Path(self.task.run_path) / "pipeline.json"
        capture = [sys.executable, "-m", "tailrace", "capture", str(file)]
        cluster.start(f"{self.task.name}-capture", capture)
        self.start()

    def start(self) -> None:
        """Starts the pipeline, for the first time or again."""
        self._state.unlink(missing_ok=True)
        self.process = self.cluster.start(self.task.name, self._command)

    def state(self) -> dict[str, Any]:
        """What the pipeline says of itself."""
        found: dict[str, Any] = json.loads(self._state.read_text()) if self._state.exists() else {}
        return found

    def in_spark(self) -> int:
        """The number of changes that Spark's tasks have stored and applied since the pipeline was started."""
        assert self.process.poll() is None, self.cluster.log(self.task.name)[-2000:]
        steps = self.state().get("spark", {}).get("steps", {})
        return sum(int(one["in_spark"]) for one in steps.values())

    def works_on(self) -> None:
        """Waits until Spark's tasks have stored or applied more."""
        before = self.in_spark()
        wait_until(lambda: self.in_spark() > before)


def task_file(folder: Path, name: str, url: str, target: str, master: str) -> Path:
    (folder / name).mkdir()
    file = folder / name / f"{name}.yaml"
    file.write_text(
        f"name: {name}\nhome: home\nsource: {{url: '{url}', tables: ['l.*']}}\ntarget: {target}\n"
        "freshness: 200ms\ncapture: {idle_advance: 1s}\n"
        "spark:\n  start: at_once\n"
        "  driver_limit: 200\n"
        f"  spark.master: '{master}'\n"
        "  spark.cores.max: 1\n"
        "  spark.executor.memory: 512m\n"
    )
    return file


def submit(cluster: StandaloneCluster, *arguments: str) -> list[str]:
    """README's command for a cluster, with jars that are there already."""
    jars = ",".join(map(str, resolve_jars()))
    names = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")
    conf = [word for name in names for word in ("--conf", f"{name}={CORRECTNESS[name]}")]
    program = ["--master", cluster.url, "--jars", jars, *conf, str(SUBMIT)]
    return [str(SPARK / "bin" / "spark-submit"), *program, *arguments]


@contextmanager
def load_on(url: str) -> Iterator[None]:
    """Writes to the source until the block ends."""
    over, failed = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            with psycopg.connect(url, autocommit=True) as session:
                n = 0
                while not over.wait(0.3):
                    n += 1
                    session.execute(ROUND.replace("%(n)s", str(n)).replace("%%", "%"))  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert failed == []


def text_of(url: str, table: str, order: str) -> bytes:
    """A table as PostgreSQL's own text."""
    with psycopg.connect(url) as session:
        session.execute("set timezone = 'UTC'")
        with session.cursor().copy(f"copy (select * from {table} order by {order}) to stdout") as copy:  # type: ignore[arg-type]
            return b"".join(map(bytes, copy))


def delta_text(task: Task, url: str, table: str, order: str) -> bytes:
    """The same of a Delta target: its rows are put into a temporary table like the source's."""
    rows = lake.read(task.target_path(table))
    with psycopg.connect(url) as session:
        session.execute("set timezone = 'UTC'")
        session.execute(f"create temp table t (like {table})")  # type: ignore[arg-type]
        with session.cursor().copy(f"copy t ({', '.join(rows.column_names)}) from stdin") as copy:  # type: ignore[arg-type]
            for row in rows.to_pylist():
                copy.write_row(list(row.values()))
        with session.cursor().copy(f"copy (select * from t order by {order}) to stdout") as copy:  # type: ignore[arg-type]
            return b"".join(map(bytes, copy))


def test_every_kind_of_task_runs_on_executors(
    tmp_path: Path, cluster: StandaloneCluster, pg: EmbeddedPostgres, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(SCHEMA)
        other = pg.url(f"{session.info.dbname}_copy")
        session.execute(f"create database {session.info.dbname}_copy")  # type: ignore[arg-type]
    writer = Writer(database, 21)
    files = [
        kind_file(tmp_path, database, name, KINDS[name].replace("%s", other), cluster.url) for name in KINDS
    ]
    tasks = [load(file) for file in files]
    writer.transactions(25)
    captured(tasks)  # so that one start of Spark has baselines and changes to do
    writer.transactions(25)
    writer.alter()
    captured(tasks)
    run = cluster.start("kinds", [sys.executable, "-c", IN_SPARK, *map(str, files)])
    assert run.wait(400) == 0, cluster.log("kinds")[-3000:]
    found = json.loads(cluster.log("kinds").splitlines()[-1])
    for task in tasks:
        for table in TABLES:
            rows = database_rows(other, table) if task.name == "copy" else target_rows(task, table)
            want = writer.rows(table)
            if (task.name, table) == ("mapped", "m.whole"):
                want = [row | {"word": str(row["v"]).upper()} for row in want if row["v"] is not None]
            assert bag(rows) == bag(want), (task.name, table)
    assert found["codes"] == [None] * len(tasks)  # 3 if they differ
    assert found["steps"].items() >= {"store": [0, True], "apply": [0, True]}.items()
    assert len(found["tasks"]) == 2 and all(found["tasks"].values()), found


def kind_file(folder: Path, url: str, name: str, target: str, master: str) -> Path:
    (folder / name).mkdir()
    path = write_task(folder / name, url)
    text = path.read_text().replace("name: model", f"name: {name}").replace("{path: lake}", target)
    mapped = "tables: {m.whole: {where: 'v is not null', columns: {word: upper(v)}}}\n"
    conf = {
        "start": "at_once",
        "driver_limit": 0,
        "spark.master": master,
        "spark.executor.memory": "768m",
        **PLAIN_PLANS,
        **FEW,
    }
    path.write_text(f"{text}\n{mapped if name == 'mapped' else ''}spark: {json.dumps(conf)}\n")
    return path


def captured(tasks: list[Task]) -> None:
    for task in tasks:
        Capture(task, once=True).run()


def database_rows(url: str, table: str) -> list[Row]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as session:
        return session.execute(f"select * from {table}").fetchall()  # type: ignore[arg-type]


def test_misfits_of_executors_are_found_before_they_work(tmp_path: Path, cluster: StandaloneCluster) -> None:
    for name, file, text in (
        ("old", "sitecustomize.py", OLD_PYTHON),
        ("other", "pyarrow.py", "__version__ = '9.1.0'"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    path = "spark.executorEnv.PYTHONPATH"
    misfits = [
        {path: f"{tmp_path}/old"},
        {path: f"{tmp_path}/other:{PACKAGES}"},
        {"spark.pyspark.python": "/nope"},
    ]
    command = [sys.executable, "-c", MISFITS, cluster.url, str(tmp_path / "shared")]
    run = cluster.start("misfits", [*command, *map(json.dumps, [{}, *misfits])])
    assert run.wait(200) == 0
    said = [line for line in cluster.log("misfits").splitlines() if line.startswith(("None", "an executor"))]
    assert said == [
        "None",
        f"an executor has Python 3.9, the driver has {sys.version_info.major}.{sys.version_info.minor}",
        f"an executor has pyarrow 9.1.0, the driver has {pa.__version__}",
        "an executor's host has no Python at /nope",
    ]
    assert list((tmp_path / "shared").iterdir()) == []


def test_killed_executor_worker_and_drivers_lose_and_double_nothing(
    tmp_path: Path, cluster: StandaloneCluster, pg: EmbeddedPostgres, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(LOADED)
        other = f"{session.info.dbname}_copy"
        session.execute(f"create database {other}")  # type: ignore[arg-type]
    lake_file = task_file(tmp_path, "lake", database, "{path: lake}", cluster.url)
    copy_file = task_file(tmp_path, "copy", database, f"{{database: '{pg.url(other)}'}}", cluster.url)
    lake_driver = Driver(cluster, lake_file, submit(cluster, str(lake_file)))
    copy_driver = Driver(cluster, copy_file, [sys.executable, "-m", "tailrace", "pipeline", str(copy_file)])
    drivers = (lake_driver, copy_driver)
    with load_on(database):
        all_work(drivers)
        cluster.executors()[0].kill()
        all_work(drivers)
        cluster.kill_worker(1)
        cluster.workers[1] = cluster.start_worker(1)
        all_work(drivers)
        (python,) = (one for one in family(lake_driver.process) if SUBMIT.name in " ".join(one.cmdline()))
        lake_driver.process.kill()
        python.wait(30)  # it notices that it is alone
        copy_driver.process.kill()
        for one in drivers:
            one.process.wait()
            one.start()
        all_work(drivers)
    for table, order in (("l.items", "1"), ("l.notes", "1"), ("l.copies", "1, 2")):
        source = text_of(database, table, order)
        wait_until(lambda: text_of(pg.url(other), table, order) == source)  # noqa: B023
        wait_until(lambda: delta_text(lake_driver.task, database, table, order) == source)  # noqa: B023
    (python,) = (one for one in family(lake_driver.process) if SUBMIT.name in " ".join(one.cmdline()))
    for one in drivers:
        one.process.send_signal(signal.SIGTERM)
    python.wait(30)
    assert copy_driver.process.wait(30) == 0
    assert [one.state()["state"] for one in drivers] == ["stopped", "stopped"]


def all_work(drivers: Sequence[Driver]) -> None:
    for one in drivers:
        one.works_on()
