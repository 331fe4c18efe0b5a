"""Creates and marks the demo's folder; only a marked folder is replaced."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ..config.task import Task
from ..errors import ConfigError
from ..lake import storage
from ..lake.folders import is_folder
from ..sources.postgresql.embedded_server import EmbeddedPostgres

MARK = "tailrace-demo.json"
DATABASE = "demo"


@dataclass(frozen=True)
class TaskTables:
    """Where the demo's task has its home and targets.

    Attributes:
        store: an empty folder of an object store; the demo's folder if it is not given.
        iceberg: the targets are Iceberg tables.
    """

    store: str = ""
    iceberg: bool = False

    def prepare(self) -> None:
        """Registers the object store, before Spark starts.

        Raises:
            ConfigError: the folder in the store has files.
        """
        if not self.store:
            return
        storage.register(storage.bucket_of(self.store), storage.options_of(self.store) or {})
        if is_folder(self.store):
            raise ConfigError(
                "the folder has files", where=self.store, hint="give an empty one: --store ADDRESS"
            )

    def write_to(self, task_file: Path) -> None:
        """Writes it to a task file."""
        target = f"{self.store}/target" if self.store else "demo/target"
        lines = f"home: {self.store}/home\n" if self.store else ""
        lines += f"target: {{type: iceberg, path: '{target}'}}\n" if self.iceberg else f"target: {target}\n"
        task_file.write_text(task_file.read_text().replace("target: demo/target\n", lines))


def make(folder: Path) -> EmbeddedPostgres:
    """Creates an empty folder with the demo's mark, or replaces an earlier demo's; returns the server to
    start in it.

    Raises:
        ConfigError: the folder was not created by a demo.
    """
    folder = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            "the demo's folder is a file", where=str(folder), hint="give another one: --folder NAME"
        )
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise ConfigError(
                "the folder is not empty and was not created by a demo: it is left unchanged",
                where=str(folder),
                hint="give another one: --folder NAME",
            )
        if (folder / "pg" / "postmaster.pid").exists():
            server_of(folder).stop()
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    server = EmbeddedPostgres(folder / "pg", port=0)
    (folder / MARK).write_text(json.dumps({"made by": "tailrace demo", "port": server.port}) + "\n")
    return server


def server_of(folder: Path) -> EmbeddedPostgres:
    """Returns the server of an earlier demo, not started; raises ConfigError without a demo."""
    mark = folder / MARK
    if not mark.exists():
        raise ConfigError("the folder has no demo", where=str(folder), hint="tailrace demo --folder NAME")
    return EmbeddedPostgres(folder / "pg", port=json.loads(mark.read_text())["port"])


def hints(folder: Path, task_file: Path, task: Task) -> list[str]:
    """Returns commands to try after the demo, as typed in the current folder."""
    python = Path(sys.executable)
    ours = python.parent / "tailrace"
    found = shutil.which("tailrace")
    short = found is not None and Path(found) == ours
    tailrace, interpreter = ("tailrace", "python") if short else (_relative(ours), _relative(python))
    target = task.target_path("shop.customer")
    path = target if storage.is_remote(target) else _relative(Path(target))
    code = f"from deltalake import DeltaTable; print(DeltaTable({path!r}).to_pandas())"
    read = f'{interpreter} -c "{code}"'
    if task.target.type == "iceberg":
        read = f"{tailrace} sql {task_file} 'select * from shop.customer'"
    return [
        f"{tailrace} status {task_file}",
        read,
        f"{interpreter} -m tailrace.demo {folder}    # PostgreSQL again, for {tailrace} run {task_file}",
    ]


def _relative(path: Path) -> str:
    """Returns a path relative to the working directory, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
