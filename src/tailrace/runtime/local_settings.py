"""Settings of a Spark session that starts in this process: memory, the JVM, one machine's parallelism."""

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
"""Up to so many bytes of files to read, a command's time is that of Java's start and of compiling."""
_JVM = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods -Duser.timezone=UTC"
"""Throughput over pauses: the parallel collector is fastest and starts fastest. A table of many columns makes
generated methods of more than 8,000 bytes of bytecode, which Java by default never compiles
(docs/decisions/2026-11-24-huge-methods.md)."""
PIPELINE_HEAP_MB = 1024
"""Heap of the driver of a pipeline: its rows do not pass the JVM."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""One compiler, which is quick; with it Java would keep room for 48 MB of code only."""
PLAIN_PLANS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Of a plan that runs once over few rows no Java is made, and it is not made again between its stages."""
_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_STATUS = Path("/proc/self/status")
"""Where Linux tells a process about itself."""


def is_little(path: str) -> bool:
    """Whether a file, or all files in a folder, have at most `LITTLE_BYTES`; no for a place that is none."""
    place, size = Path(path), 0
    if place.is_file():
        return place.stat().st_size <= LITTLE_BYTES
    for folder, _, names in os.walk(place):
        for name in names:
            size += (Path(folder) / name).stat().st_size
            if size > LITTLE_BYTES:
                return False
    return place.is_dir()


def driver_options(*, little: bool) -> str:
    """What the driver's Java is started with; `little` as in `local_settings`."""
    return f"{_JVM} {QUICK if little else ''} -Dlog4j2.configurationFile={_log_file().as_uri()}"


def local_settings(
    master: str, *, little: bool = False, pipeline: bool = False, classes: str = ""
) -> dict[str, str]:
    """Settings of a session started here; the last group only if all of it runs on this machine. `little`:
    it is for a command that reads little (`is_little`). `pipeline`: rows do not pass the JVM. `classes`: see
    `class_archive.options`."""
    # Each task more is one more to start, and a Python worker.
    lanes = "1" if little else str(_lanes(master))
    settings = {
        "spark.driver.memory": f"{PIPELINE_HEAP_MB if pipeline else heap_megabytes()}m",
        "spark.driver.extraJavaOptions": f"{driver_options(little=little)} {classes}",
        "spark.executor.extraJavaOptions": _JVM,
        "spark.ui.enabled": str(pipeline).lower(),
        # Several sessions of one host have each a UI of its own.
        "spark.port.maxRetries": "100",
        "spark.ui.showConsoleProgress": "false",
        # A pipeline runs for months: keep little history of jobs in the driver.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.sql.streaming.numRecentProgressUpdates": "10",
        "spark.python.worker.reuse": "true",
        # Jobs of each kind of step share the slots (`execution.described` names their pools).
        "spark.scheduler.mode": "FAIR",
        **{f"spark.executorEnv.{name}": os.environ[name] for name in (_POOL,) if name in os.environ},
        # Hadoop sets permissions by itself, whatever the umask of the process is.
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
        "spark.default.parallelism": lanes,
        "spark.sql.shuffle.partitions": lanes,
        # The default of 50 tasks to read one small transaction log made a first MERGE take 29 s.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def _umask() -> str:
    """The umask of this process, as three octal digits. `os.umask` gives it only to who sets it, and other
    threads may write files meanwhile."""
    if _STATUS.exists() and (said := re.search(r"^Umask:\s*([0-7]+)$", _STATUS.read_text(), re.MULTILINE)):
        return f"{int(said[1], 8):03o}"
    folder = Path(tempfile.mkdtemp(dir=scratch())) / "whose"
    folder.mkdir(0o777)
    return f"{~folder.stat().st_mode & 0o777:03o}"


def heap_megabytes() -> int:
    """Heap for the driver in MB: a quarter of the available memory (machine or container), 1 to 8 GiB.

    The rest is for what lives outside the JVM: Python workers, task-local merges, the file cache, a database.
    """
    return max(1024, min(8192, memory_bytes() // 4 >> 20))


def _lanes(master: str) -> int:
    """How many tasks can run at once under that master: `local[4]` 4, `local-cluster[2,1,1024]` 2."""
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    threads = re.fullmatch(r"local\[\s*(\d+)\s*(?:,.*)?\]", master)
    if threads:
        return int(threads[1])
    return 1 if master == "local" else cores()


@cache
def scratch() -> Path:
    """A folder of this process, removed when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _log_file() -> Path:
    """Log settings from the start of the JVM; `setLogLevel` would come after the start-up warnings."""
    file = scratch() / "log4j2.properties"
    file.write_text(
        "rootLogger.level = error\nrootLogger.appenderRef.stderr.ref = stderr\n"
        # The logger whose level a Python session changes; it prints two lines about it unless it has the
        # root's level.
        "logger.py.name = org.apache.spark.api.python.PythonGatewayServer\nlogger.py.level = error\n"
        # What it logs is that a session ended while an executor was still starting.
        "logger.inbox.name = org.apache.spark.rpc.netty.Inbox\nlogger.inbox.level = off\n"
        "appender.stderr.type = Console\nappender.stderr.name = stderr\nappender.stderr.target = SYSTEM_ERR\n"
        + logs.log4j()
    )
    return file
