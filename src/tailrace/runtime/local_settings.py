"""Settings of a Spark session that this process starts: memory, JVM options, parallelism of one machine."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path

from ..config import logs
from ..config.machine import cores, memory_bytes

LITTLE_BYTES = 4 << 20
"""The maximum number of bytes to read at which a command spends its time on starting Java and compiling."""
_JVM = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods -Duser.timezone=UTC"
"""The parallel collector has the highest throughput and starts fastest; pauses do not matter. Tables of many
columns lead to generated methods of more than 8,000 bytes of bytecode, which Java by default never compiles
(docs/decisions/2026-11-24-huge-methods.md)."""
PIPELINE_HEAP_MB = 1024
"""Heap of a pipeline's driver (MB): the pipeline's rows do not pass through the JVM."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Use the fast compiler only; with it Java would otherwise reserve only 48 MB for code."""
PLAIN_PLANS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""A plan that runs once over few rows is interpreted, not compiled, and not adapted between its stages."""
_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_STATUS = Path("/proc/self/status")
"""The file in which Linux describes a process to itself."""


def is_little(path: str) -> bool:
    """Whether a file, or all files of a folder, have at most `LITTLE_BYTES`; False if it is missing."""
    target, size = Path(path), 0
    if target.is_file():
        return target.stat().st_size <= LITTLE_BYTES
    for folder, _, names in os.walk(target):
        for name in names:
            size += (Path(folder) / name).stat().st_size
            if size > LITTLE_BYTES:
                return False
    return target.is_dir()


def driver_options(*, little: bool) -> str:
    """Returns the JVM options of the driver; for `little` see `local_settings`."""
    return f"{_JVM} {QUICK if little else ''} -Dlog4j2.configurationFile={_log_file().as_uri()}"


def local_settings(
    master: str, *, little: bool = False, pipeline: bool = False, classes: str = ""
) -> dict[str, str]:
    """Returns the settings of a session that this process starts.

    Args:
        master: Spark's master; the last group of settings applies only if all of it runs on this machine.
        little: the session is for a command that reads little (`is_little`).
        pipeline: the session is for a pipeline, whose rows do not pass through the JVM.
        classes: JVM options of the class archive (`class_archive.options`).
    """
    # Each additional task has to be started, with a Python worker.
    parallelism = "1" if little else str(_slots(master))
    settings = {
        "spark.driver.memory": f"{PIPELINE_HEAP_MB if pipeline else heap_megabytes()}m",
        "spark.driver.extraJavaOptions": f"{driver_options(little=little)} {classes}",
        "spark.executor.extraJavaOptions": _JVM,
        "spark.ui.enabled": str(pipeline).lower(),
        # Each session on a host has its own UI, on its own port.
        "spark.port.maxRetries": "100",
        "spark.ui.showConsoleProgress": "false",
        # A pipeline runs for months: the driver keeps a short history of jobs.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.sql.streaming.numRecentProgressUpdates": "10",
        "spark.python.worker.reuse": "true",
        # Jobs of all kinds of steps share the slots (`execution.described` names their pools).
        "spark.scheduler.mode": "FAIR",
        **{f"spark.executorEnv.{name}": os.environ[name] for name in (_POOL,) if name in os.environ},
        # Hadoop sets permissions itself and ignores the umask of the process.
        "spark.hadoop.fs.permissions.umask-mode": _umask(),
        # Otherwise every Column expression built in Python looks up its source line: slow for wide tables.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.warehouse.dir": (scratch() / "warehouse").as_uri(),
        # Deletion vectors are a one-way upgrade, and only tables of distributed size benefit from them.
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    }
    if little:
        settings |= PLAIN_PLANS
    if not master.startswith("local"):
        return settings
    return settings | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.daemon.module": "tailrace.runtime.daemon",
        "spark.default.parallelism": parallelism,
        "spark.sql.shuffle.partitions": parallelism,
        # The default of 50 tasks to read one small transaction log made a first MERGE take 29 s.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def _umask() -> str:
    """Returns the umask of this process as three octal digits. `os.umask` can only be read by setting it, and
    other threads may write files meanwhile."""
    if _STATUS.exists() and (said := re.search(r"^Umask:\s*([0-7]+)$", _STATUS.read_text(), re.MULTILINE)):
        return f"{int(said[1], 8):03o}"
    folder = Path(tempfile.mkdtemp(dir=scratch())) / "whose"
    folder.mkdir(0o777)
    return f"{~folder.stat().st_mode & 0o777:03o}"


def heap_megabytes() -> int:
    """Returns the driver's heap in MB: a quarter of the available memory (machine or container), 1 to 8 GiB.

    The rest is for memory outside the JVM: Python workers, task-local merges, the file cache, a database.
    """
    return max(1024, min(8192, memory_bytes() // 4 >> 20))


def _slots(master: str) -> int:
    """Returns the number of tasks that can run at once: 4 for `local[4]`, 2 for `local-cluster[2,1,1024]`."""
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    threads = re.fullmatch(r"local\[\s*(\d+)\s*(?:,.*)?\]", master)
    if threads:
        return int(threads[1])
    return 1 if master == "local" else cores()


@cache
def scratch() -> Path:
    """Returns a folder of this process, which is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _log_file() -> Path:
    """Returns a file of log settings for the start of the JVM: `setLogLevel` takes effect after its
    warnings."""
    file = scratch() / "log4j2.properties"
    file.write_text(
        "rootLogger.level = error\nrootLogger.appenderRef.stderr.ref = stderr\n"
        # A Python session changes this logger's level, and prints two lines unless it is the root's.
        "logger.py.name = org.apache.spark.api.python.PythonGatewayServer\nlogger.py.level = error\n"
        # It reports that a session ended while an executor was still starting.
        "logger.inbox.name = org.apache.spark.rpc.netty.Inbox\nlogger.inbox.level = off\n"
        "appender.stderr.type = Console\nappender.stderr.name = stderr\nappender.stderr.target = SYSTEM_ERR\n"
        + logs.log4j()
    )
    return file
