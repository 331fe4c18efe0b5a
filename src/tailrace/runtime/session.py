"""The Spark session: with Delta, tuned for one machine, suitable for a cluster.

When this process starts Spark (on this machine, or with a master given), it sets Java, jars, memory and other
settings. Under `spark-submit` or in a notebook, Spark was started elsewhere: then only settings that results
depend on are set; in a notebook in a separate session next to the existing one.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.machine import cores
from ..errors import ConfigError, from_spark
from ..execution import BackgroundSession, check_executors
from ..execution.session import is_lost
from . import class_archive, hadoop_storage
from .jars import coordinates, resolve_jars
from .java import ensure_java
from .jvm import interrupts_kept, no_orphan, reported_by_us
from .local_settings import local_settings, scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..config.settings import SparkSettings

__all__ = [
    "BATCHES", "CORRECTNESS", "background_session", "coordinates", "resolve_jars", "session",
]  # fmt: skip

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

CORRECTNESS = {
    "spark.sql.extensions": _EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # The proleptic Gregorian calendar everywhere, as in PostgreSQL and Arrow: dates before 1582 do not shift.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Old versions of a target keep their files, although the log forgets removals after three hours.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Otherwise files with times in nanoseconds cannot be read at all (`formats.parquet`).
    "spark.sql.legacy.parquet.nanosAsLong": "true",
}
"""Settings that results depend on; set in every session."""

BATCHES = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    # Wide rows: a batch ends at this many bytes even if it has fewer rows.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    # Otherwise a condition on 20 columns is repeated for each combination of their aliases: a million times.
    "spark.sql.constraintPropagation.enabled": "false",
}
"""Sizes of Arrow batches for Python tasks, and of plans; safe in every session."""

LOADED = ("tailrace.targets.lake.merge", "tailrace.store.running")
"""Modules that nearly all tasks need."""

_END_S = 10.0
"""The maximum seconds to wait for the end of a JVM that no longer answers."""
_OURS_KEY = "spark.tailrace.session"
_OURS = {_OURS_KEY: "true"}


def session(
    name: str = "tailrace",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    little: bool = False,
    pipeline: bool = False,
) -> SparkSession:
    """Returns the Spark session to use: the running one, otherwise a new one with Delta.

    Args:
        name: the application's name.
        master: `local[4]`, `local-cluster[2,1,1024]`, `spark://...`; all cores of this machine if not given.
            Under `spark-submit` its `--master` takes precedence.
        conf: settings that take precedence over the defaults here and over `spark-submit`'s `--conf`.
        little: there is little to read (`local_settings.is_little`): a new session is tuned for that.
        pipeline: the session is for a pipeline, whose rows do not pass through the JVM: little heap, with a
            UI.

    Raises:
        ConfigError: no usable Java was found, the versions of pyspark and delta-spark do not fit, or the
            running session has no Delta.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    wanted = dict(conf or {})
    if (connected := _connect_session()) is not None:
        return _our_session(connected, wanted)
    if SparkContext._active_spark_context is not None:
        # Another thread may have no active session: then getOrCreate returns the application's first one.
        return _our_session(SparkSession.getActiveSession() or SparkSession.builder.getOrCreate(), wanted)
    if (
        "PYSPARK_GATEWAY_PORT" in os.environ
    ):  # spark-submit started the JVM, and this Python process inside it
        return _submitted_session(name, wanted)
    master = master or wanted.get("spark.master") or f"local[{cores()}]"
    java = ensure_java()
    _environment(master, wanted)
    settings = {
        **CORRECTNESS,
        **BATCHES,
        **_OURS,
        **local_settings(master, little=little, pipeline=pipeline, classes=class_archive.options(java)),
        **wanted,
        "spark.master": master,
    }
    if _EXTENSION not in settings["spark.sql.extensions"]:
        settings["spark.sql.extensions"] += f",{_EXTENSION}"
    if not any("delta-spark" in wanted.get(key, "") for key in ("spark.jars", "spark.jars.packages")):
        listed = [jar for jar in wanted.get("spark.jars", "").split(",") if jar]
        jars = resolve_jars()
        if hadoop_storage.needed():
            jars += hadoop_storage.jars()
        settings["spark.jars"] = ",".join([*map(str, jars), *listed])
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with no_orphan(), interrupts_kept():
        try:
            created = builder.getOrCreate()
        except Py4JError as error:  # converted at once: its text is in the JVM
            raise from_spark(error, where=f"Spark ({master})") from None
    reported_by_us(created.sparkContext)
    _silence_sql_log()
    hadoop_storage.tell(created)
    return created


def background_session(name: str, spark: SparkSettings, shared: Sequence[str] = ()) -> BackgroundSession:
    """Returns the session of a task: the running one (in a notebook, under `spark-submit`), otherwise one
    that starts in the background once `begin` is called. `shared`: folders that executors need, too."""
    from pyspark import SparkContext

    def start() -> SparkSession:
        _forget_lost()
        if spark.event_log is not None:
            Path(spark.event_log).mkdir(parents=True, exist_ok=True)
        return session(name, conf=spark.session_conf, pipeline=True)

    runs = SparkContext._active_spark_context is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    runs = runs or _connect_session() is not None
    return BackgroundSession(
        start,
        warm_up=lambda started: check_executors(started, LOADED, shared),
        driver_limit=spark.driver_limit,
        given=start() if runs and spark.start == "at_once" else None,
        when_needed=spark.start == "when_needed",
    )


def _forget_lost() -> None:
    """Makes pyspark forget a context whose JVM has ended, so that another one can start.

    A JVM that is killed closes its connections a moment before the system reports its end.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    proc = getattr(SparkContext._gateway, "proc", None)
    if proc is None or not (lost := SparkSession._instantiatedSession) or not is_lost(lost):
        return
    with suppress(subprocess.TimeoutExpired):
        proc.wait(_END_S)
    proc.kill()
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    if hasattr(SparkSession, "_activeSession"):
        SparkSession._activeSession = None


def _silence_sql_log() -> None:
    """Disables pyspark's log of SQL errors, which it also raises, unless `-v` is given."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = not logging.getLogger().isEnabledFor(logging.INFO)


def _environment(master: str, wanted: Mapping[str, str]) -> None:
    """Sets the environment of the JVM to start: this Python, and this pyspark's Spark, not SPARK_HOME's."""
    import pyspark

    spark = Path(pyspark.__file__).parent
    os.environ["SPARK_HOME"] = str(_linked_spark_home(spark) if master.startswith("local-cluster") else spark)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # Otherwise Spark warns if the host's name does not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:  # only Spark's scripts turn the setting into the variable that pyspark reads
        _executors_python(wanted.get("spark.pyspark.python"), master)


def _executors_python(wanted: str | None, master: str) -> None:
    """Sets the Python of executors: the one that is wanted, or that of the environment, or, on a standalone
    cluster, the path of this Python. Otherwise pyspark takes the first `python3` on their hosts."""
    if wanted:
        os.environ["PYSPARK_PYTHON"] = wanted
    elif master.startswith("spark://"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _linked_spark_home(spark: Path) -> Path:
    """Returns a SPARK_HOME that links to `spark`: local-cluster writes its executors' folders there."""
    home = scratch() / "spark"
    home.mkdir(exist_ok=True)
    for entry in spark.iterdir():
        link = home / entry.name
        if not link.exists():
            link.symlink_to(entry)
    return home


def _submitted_session(name: str, wanted: dict[str, str]) -> SparkSession:
    """Returns a session under `spark-submit`, which sets master, memory and jars."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()  # connects to the waiting JVM, so that its settings can be read
    conf = SparkConf()
    given = {key for key, _ in conf.getAll()}
    _executors_python(wanted.get("spark.pyspark.python"), conf.get("spark.master", "") or "")
    builder = SparkSession.builder
    if "spark.app.name" not in given:
        builder = builder.appName(name)
    batches = {key: value for key, value in BATCHES.items() if key not in given}
    settings = {**batches, **CORRECTNESS, **_OURS, **wanted}
    if (
        "spark.sql.extensions" in given
    ):  # there may be others besides Delta's, or it is missing: checked below
        settings.pop("spark.sql.extensions")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return _with_delta(builder.getOrCreate())


def _connect_session() -> SparkSession | None:
    """Returns the Spark Connect session of a notebook, or of SPARK_REMOTE; None if there is neither."""
    if "SPARK_REMOTE" in os.environ:
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()
    module = sys.modules.get("pyspark.sql.connect.session")  # its packages may not be installed
    return None if module is None else module.SparkSession.getActiveSession()


def _our_session(running: SparkSession, wanted: dict[str, str]) -> SparkSession:
    """Returns the running session if it is tailrace's, otherwise a new one in the same application."""
    from pyspark import SparkContext

    settings = dict(wanted)
    if running.conf.get(_OURS_KEY, "") != "true":
        running = _with_delta(running)
        if SparkContext._active_spark_context is not None:  # a Spark Connect session is its client's alone
            running = running.newSession()
        settings = {**BATCHES, **CORRECTNESS, **_OURS, **settings}
    for key, value in settings.items():
        if running.conf.isModifiable(key):
            running.conf.set(key, value)
    hadoop_storage.tell(running)
    return running


def _with_delta(spark: SparkSession) -> SparkSession:
    """Returns the session; raises an error if it does not have Delta."""
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    if _EXTENSION in extensions:
        return spark
    raise ConfigError(
        "the running Spark session does not have Delta",
        where=f"spark.sql.extensions = {extensions!r}",
        hint=f"start Spark with --packages {coordinates()} --conf spark.sql.extensions={_EXTENSION} "
        f"--conf spark.sql.catalog.spark_catalog={CORRECTNESS['spark.sql.catalog.spark_catalog']}",
    )
