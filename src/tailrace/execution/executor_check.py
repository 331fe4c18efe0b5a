"""Compares Python, packages and folders of a session's executors with those of the driver.

The check is pickled by value, so that it also runs where tailrace cannot be imported: inside a task, this
module must not use other modules of tailrace.
"""

from __future__ import annotations

import atexit
import json
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.machine import one_machine
from ..errors import PYTHON_CURE, ApplyError, ConfigError, from_spark
from .job import Job
from .session import has_rdds
from .spark import described, slots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

PACKAGES = ("tailrace", "pyarrow", "deltalake", "numpy", "psycopg")
"""Packages that tasks use; their major and minor versions must be those of the driver."""
ROUNDS = 3
"""The maximum number of jobs; executors that have run no task of the check by then are not checked."""


@dataclass(frozen=True)
class _Probe:
    """The function of a partition: reports the Python process that runs it, as JSON.

    Attributes:
        packages: packages whose versions are reported.
        modules: modules to load; they stay loaded in the worker.
        marks: a file that the driver has written, for each shared folder.
        seconds: the minimum duration of a task, so that all slots get one.
    """

    packages: tuple[str, ...]
    modules: tuple[str, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __call__(self, rows: Iterable[Any]) -> Iterator[str]:
        for _ in rows:
            yield json.dumps(self.report())

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports the process as rows of `mapInArrow`."""
        import pyarrow as pa

        for batch in rows:
            reports = pa.array([json.dumps(self.report())] * batch.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays([reports], ["report"])

    def report(self) -> dict[str, Any]:
        """Returns host, folder, Python and versions of this process, and what it cannot load, read or
        write."""
        import importlib
        import importlib.util
        import os
        import platform
        import socket
        import time
        from importlib import metadata

        began = time.monotonic()
        versions: dict[str, str | None] = {}
        failed: dict[str, str] = {}
        unseen: dict[str, str] = {}
        for name in self.packages:
            try:
                module = importlib.import_module(name)
                versions[name] = str(getattr(module, "__version__", "") or metadata.version(name))
            except Exception as error:  # noqa: BLE001 - the driver raises it
                versions[name] = None
                missing = isinstance(error, ModuleNotFoundError) and error.name == name
                failed[name] = "" if missing else f"{type(error).__name__}: {error}"
        if not failed:
            for name in self.modules:
                try:
                    importlib.import_module(name)
                except Exception as error:  # noqa: BLE001 - the driver raises it
                    failed[name] = f"{type(error).__name__}: {error}"
        for folder, mark in self.marks.items():
            try:
                with open(mark) as file:  # noqa: PTH123 - plain code that runs anywhere
                    token = file.read()
                with open(f"{mark}-{os.getpid()}-{time.time_ns()}", "w") as file:  # noqa: PTH123
                    file.write(token)
            except OSError as error:
                unseen[folder] = error.strerror or str(error)
        time.sleep(max(0.0, self.seconds - (time.monotonic() - began)))
        return {
            "host": socket.gethostname(), "folder": str(Path.cwd()), "python": platform.python_version(),
            "program": sys.executable, "versions": versions, "failed": failed, "unseen": unseen,
        }  # fmt: skip


def check_executors(session: SparkSession, modules: Sequence[str] = (), shared: Sequence[str] = ()) -> None:
    """Loads modules in the Python workers of a session, and compares these with the driver.

    Args:
        session: a running session.
        modules: modules that nearly all tasks need.
        shared: folders that driver and executors both read and write.

    Raises:
        ConfigError: the Python of an executor has another version, has no usable version of a package, or
            does not share a folder with the driver.
    """
    alone = has_rdds(session) and one_machine(session.sparkContext.master or "")
    with _marked(() if alone else shared) as marks:
        packages = () if alone else PACKAGES
        probe = _Probe(packages, tuple(modules), marks, 0.0 if alone else 0.5)
        driver, seen = _Probe(packages).report(), set[tuple[str, str]]()
        for _ in range(1 if alone else ROUNDS):
            for found in _reports(session, probe):
                _refuse(found, driver)
                seen.add((found["host"], found["folder"]))
            if len(seen) >= _executors(session):
                break
        for folder, mark in marks.items():
            _refuse_unwritten(folder, Path(mark), session)


def _reports(session: SparkSession, probe: _Probe) -> list[dict[str, Any]]:
    """Returns the reports of one job's tasks; more tasks than slots, since the number of slots may grow."""
    from pyspark import cloudpickle

    many = max(slots(session), _executors(session))
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        with described(
            session, Job("warm-up", "start Python workers and check them", counts=False), count=False
        ):
            if has_rdds(session):
                numbers = session.sparkContext.parallelize(range(many), many)
                reports = numbers.mapPartitions(probe).collect()
            else:
                rows = session.range(0, many, 1, many).mapInArrow(probe.batches, "report string").collect()
                reports = [row["report"] for row in rows]
    except Exception as error:
        found = from_spark(error, where=_where(session))
        if isinstance(found, ApplyError):  # a job failed for an unknown cause
            what = f"executors cannot run tasks in Python: {found.what}"
            found = ConfigError(what, where=found.where, hint=PYTHON_CURE)
        raise found from error
    finally:
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return [json.loads(one) for one in reports]


def _executors(session: SparkSession) -> int:
    """The number of executors that are registered now; 1 if unknown."""
    return max(1, len(_listed(session)))


def _listed(session: SparkSession) -> list[Any]:
    """Returns Spark's summaries of the registered executors."""
    if not has_rdds(session):
        return []
    listed = session.sparkContext._jsc.sc().statusStore().executorList(True)
    found = [listed.apply(at) for at in range(listed.size())]
    return [one for one in found if one.id() != "driver"]


def _where(session: SparkSession) -> str:
    """Describes the executors of an error: those with failed tasks, if there are any."""
    if not has_rdds(session):
        return "the Spark server"
    hosts = sorted({one.hostPort() for one in _listed(session) if one.failedTasks()})
    said = ", ".join(hosts) if hosts else "executors"
    return f"{said} of {session.sparkContext.master}"


def _refuse(found: Mapping[str, Any], driver: Mapping[str, Any]) -> None:
    """Raises an error if a Python cannot run the driver's tasks."""
    where = f"executor on host {found['host']}, Python {found['python']} ({found['program']})"
    for name, version in driver["versions"].items():
        version_there = found["versions"][name]
        if version_there is None:
            why = f": {said}" if (said := found["failed"].get(name)) else ""
            what = f"{name} cannot be imported on an executor{why}; the driver has {version}"
            raise ConfigError(what, where=where, hint=PYTHON_CURE)
        if version is not None and _minor(version_there) != _minor(version):
            what = f"an executor has {name} {version_there}, the driver has {version}"
            raise ConfigError(what, where=where, hint=PYTHON_CURE)
    for name, said in found["failed"].items():
        raise ConfigError(f"{name} cannot be loaded on an executor: {said}", where=where, hint=PYTHON_CURE)
    for folder, said in found["unseen"].items():
        raise ConfigError(
            f"an executor does not share the folder {folder} with the driver: {said}",
            where=where,
            hint="mount the folders of the task (`home`, `target`) under the same path on all hosts; the "
            "user of the executors needs the right to read and write there (see `--umask`)",
        )


def _minor(version: str) -> list[str]:
    """Returns major and minor version.

    >>> _minor("2.10.1") == _minor("2.10"), _minor("2.10.1") == _minor("2.1.1")
    (True, False)
    """
    return version.split(".")[:2]


def _refuse_unwritten(folder: str, mark: Path, session: SparkSession) -> None:
    """Raises an error if executors have another folder at that path, or write files that the driver cannot
    read."""
    try:
        written = list(mark.parent.glob(f"{mark.name}-*"))
        if written and all(one.read_text() == mark.name for one in written):
            return
        said = "the driver does not see what executors write there"
    except OSError as error:
        said = f"the driver cannot read what executors write there ({error.strerror})"
    raise ConfigError(
        f"executors do not share the folder {folder} with the driver: {said}",
        where=_where(session),
        hint="mount the folders of the task (`home`, `target`) under the same path on all hosts",
    )


@contextmanager
def _marked(folders: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields a new file per folder; removed at the end, with the files that executors have written next to
    it, also if this process ends early."""
    marks: dict[str, str] = {}
    atexit.register(_remove, marks)
    try:
        for folder in folders:
            Path(folder).mkdir(parents=True, exist_ok=True)
            mark = Path(folder) / f".tailrace-shared-{uuid.uuid4().hex}"
            mark.write_text(mark.name)
            marks[folder] = str(mark)
        yield marks
    finally:
        _remove(marks)
        atexit.unregister(_remove)


def _remove(marks: Mapping[str, str]) -> None:
    for mark in map(Path, marks.values()):
        for file in mark.parent.glob(f"{mark.name}*"):
            with suppress(OSError):
                file.unlink()
