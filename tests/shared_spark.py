"""One Spark for all processes of a test run. The first that needs it starts it, the others connect to it: its Java
has compiled what all of them use, and takes the memory of one."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def shared(folder: Path, start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """The session of this process; `folder`: the run's. Who has started Spark ends it once nobody uses it."""
    told = folder / "spark.json"
    with (folder / "spark.turn").open("w") as turn, (folder / "spark.users").open("w") as users:
        with _held(turn):
            if told.exists():
                fcntl.flock(users, fcntl.LOCK_SH)  # until this process ends, however it does
                made = _connected(**json.loads(told.read_text()))
            else:
                made = start()
                told.write_text(json.dumps(_address()))
                users.close()
        yield made
        if users.closed:
            with _held(turn):
                told.unlink()
            with (folder / "spark.users").open("w") as others:
                fcntl.flock(others, fcntl.LOCK_EX)
            made.stop()


@contextmanager
def _held(file: IO[str]) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield
    fcntl.flock(file, fcntl.LOCK_UN)


def _address() -> dict[str, str]:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    return {"port": str(gateway.java_parameters.port), "secret": gateway.java_parameters.auth_token}


def _connected(port: str, secret: str) -> SparkSession:
    """A session of its own in the running application, with a database of its own: tests that run at the same
    time may give tables the same name."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from tailrace.runtime import session

    if (own := SparkContext._active_spark_context) is not None:  # a test has started a Spark in this process
        own.stop()
    SparkContext._gateway = SparkContext._jvm = SparkSession._instantiatedSession = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_GATEWAY_PORT", port)
        patch.setenv("PYSPARK_GATEWAY_SECRET", secret)
        gateway = launch_gateway()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable  # for tasks
    jvm = gateway.jvm
    context = jvm.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    ours = SparkContext(jsc=context, gateway=gateway, conf=SparkConf(_jconf=context.getConf()))
    first = jvm.SparkSession.getDefaultSession().get()
    made = SparkSession(ours, first.newSession())
    jvm.SparkSession.setDefaultSession(first)
    database = f"process_{os.getpid()}"
    session._silence_sql_log()
    made.sql(f"CREATE DATABASE {database}")
    made.catalog.setCurrentDatabase(database)
    return made
