"""Creates and marks the demo's folder; only a marked folder is replaced."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from ..errors import ConfigError
from ..lake import storage
from ..lake.folders import is_folder
from ..sources.postgresql.embedded_server import EmbeddedPostgres

MARK = "tailrace-demo.json"
DATABASE = "demo"


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


def refuse_used(store: str) -> None:
    """Makes an object store known before Spark starts; raises ConfigError if the folder there has files."""
    storage.register(storage.bucket_of(store), storage.options_of(store) or {})
    if is_folder(store):
        raise ConfigError("the folder has files", where=store, hint="give an empty one: --store ADDRESS")


def move_to(task_file: Path, store: str) -> None:
    """Puts home and targets of a task file into an object store."""
    text = task_file.read_text()
    place = f"home: {store}/home\ntarget: {store}/target\n"
    task_file.write_text(text.replace("target: demo/target\n", place))


def server_of(folder: Path) -> EmbeddedPostgres:
    """Returns the server of an earlier demo, not started; raises ConfigError without a demo."""
    mark = folder / MARK
    if not mark.exists():
        raise ConfigError("the folder has no demo", where=str(folder), hint="tailrace demo --folder NAME")
    return EmbeddedPostgres(folder / "pg", port=json.loads(mark.read_text())["port"])


def hints(folder: Path, task_file: Path, target: str) -> list[str]:
    """Returns commands to try after the demo, as typed in the current folder."""
    python = Path(sys.executable)
    ours = python.parent / "tailrace"
    found = shutil.which("tailrace")
    short = found is not None and Path(found) == ours
    tailrace, interpreter = ("tailrace", "python") if short else (_relative(ours), _relative(python))
    path = target if storage.is_remote(target) else _relative(Path(target))
    code = f"from deltalake import DeltaTable; print(DeltaTable({path!r}).to_pandas())"
    return [
        f"{tailrace} status {task_file}",
        f'{interpreter} -c "{code}"',
        f"{interpreter} -m tailrace.demo {folder}    # PostgreSQL again, for {tailrace} run {task_file}",
    ]


def _relative(path: Path) -> str:
    """Returns a path relative to the working directory, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
