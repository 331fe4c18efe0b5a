"""A session of Spark Connect, which has no RDDs, is used as it is."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tailrace.runtime.jars import resolve_jars
from tailrace.runtime.session import CORRECTNESS
from tailrace.sources.postgresql.embedded_server import free_port

from ..standalone_cluster import SPARK, Processes, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
if importlib.util.find_spec("grpc") is None:
    pytest.skip("no client of Spark Connect: pip install 'pyspark[connect]'", allow_module_level=True)

TASKS = """
import json, os, sys, time
from tailrace.config.settings import SparkSettings
from tailrace.errors import ApplyError
from tailrace.execution import Job, counted, map_tasks
from tailrace.runtime.session import background_session

spark = background_session("connect", SparkSettings(start="at_once", driver_limit=0), [sys.argv[1]])
spark.begin()
while spark.ready is None:
    spark.check()
    time.sleep(0.1)
job = Job("store", "store 50 changes of 1 table", 50)

def square(number):
    if number < 0:
        raise ApplyError("row refused", hint="look")
    return number * number, os.getpid()

found = map_tasks(square, range(50), session=spark.as_session, job=job, weights=[1] * 50)
try:
    map_tasks(square, [-1], session=spark.as_session, job=job)
except ApplyError as error:
    refused = [error.what, error.hint]
print(json.dumps({
    "squares": [number for number, _ in found],
    "here": os.getpid() in {pid for _, pid in found},
    "in": [counted()["store"].in_driver, counted()["store"].in_spark],
    "refused": refused,
    "state": spark.describe()["state"],
}))
"""


def test_tasks_run_through_a_session_of_spark_connect(tmp_path: Path) -> None:
    port, jars = free_port(), ",".join(map(str, resolve_jars()))
    names = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")
    conf = [f"{name}={CORRECTNESS[name]}" for name in names] + [f"spark.connect.grpc.binding.port={port}"]
    options = ["--master", "local[2]", "--jars", jars, *(word for one in conf for word in ("--conf", one))]
    kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with Processes(tmp_path) as processes:
        server = [str(SPARK / "bin" / "spark-submit"), *options, "--class", kind, "spark-internal"]
        processes.start("server", server)
        wait_until(lambda: "Spark Connect server started" in processes.log("server"))
        command = [sys.executable, "-c", TASKS, str(tmp_path / "shared")]
        client = processes.start("client", command, SPARK_REMOTE=f"sc://127.0.0.1:{port}")
        assert client.wait(200) == 0
        found = json.loads(processes.log("client").splitlines()[-1])
    assert found == {
        "squares": [n * n for n in range(50)],
        "here": False,
        "in": [0, 100],
        "refused": ["row refused", "look"],
        "state": "ready",
    }
