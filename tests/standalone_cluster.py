"""A standalone Spark cluster from the pyspark wheel: a master and workers, each in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pyspark

import tailrace
from tailrace.runtime.local_settings import QUICK
from tailrace.sources.postgresql.embedded_server import free_port

SPARK = Path(pyspark.__file__).parent
PACKAGES = Path(tailrace.__file__).parents[1]
"""Where this tailrace is imported from: on the path of executors, whatever is installed."""


def wait_until(what: Callable[[], bool], seconds: float = 120.0) -> None:
    """Waits until something is so; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.2)


class Processes:
    """Processes of Spark's wheel, with a log file each. A context manager: all that were started are killed at
    its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[psutil.Popen] = []

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in reversed(self.processes):
            for process in [*family(one), one]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            one.wait()
        if error is not None:
            for file in sorted(self.folder.glob("*.log")):
                said = [line for line in file.read_text().splitlines() if " INFO " not in line]
                print(f"--- {file.name}", *said[-30:], sep="\n")

    def start(
        self, name: str, command: Sequence[str], *, cwd: Path | None = None, **environment: str
    ) -> psutil.Popen:
        """Starts a process whose output goes to `NAME.log`."""
        given = {
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(PACKAGES),
        }
        variables: Mapping[str, str] = {**os.environ, **given, **environment}
        with (self.folder / f"{name}.log").open("ab") as log:
            made = psutil.Popen(
                command,
                cwd=cwd or self.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(made)
        return made

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.folder / f"{name}.log").read_text()


class StandaloneCluster(Processes):
    """One master and workers with one core each, on loopback addresses."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        super().__init__(folder)
        self._count = workers
        self.url = f"spark://127.0.0.1:{free_port()}"
        self.workers: list[psutil.Popen] = []

    def __enter__(self) -> Any:
        port = self.url.rpartition(":")[2]
        self._daemon("master", "master.Master", "--host", "127.0.0.1", "--port", port)
        wait_until(lambda: "I have been elected leader" in self.log("master"))
        self.workers = [self.start_worker(n) for n in range(self._count)]
        wait_until(lambda: self.log("master").count("Registering worker") == self._count)
        return self

    def start_worker(self, number: int) -> psutil.Popen:
        """Starts a worker, for the first time or again."""
        name, folder = f"worker{number}", self.folder / f"worker{number}"
        folder.mkdir(exist_ok=True)
        options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
        return self._daemon(name, "worker.Worker", *options, self.url, cwd=folder)

    def _daemon(self, name: str, kind: str, *options: str, cwd: Path | None = None) -> psutil.Popen:
        program = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        more = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK}
        return self.start(name, [*program, "--webui-port", "0", *options], cwd=cwd, **more)

    def executors(self) -> list[psutil.Process]:
        """The JVMs of all executors."""
        return [one for worker in self.workers for one in family(worker) if "CoarseGrained" in _command(one)]

    def kill_worker(self, number: int) -> None:
        """Kills a worker; its executors end by themselves."""
        self.workers[number].kill()
        self.workers[number].wait()


def family(process: psutil.Process) -> list[psutil.Process]:
    """The processes that a process has started, and those that these have."""
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
