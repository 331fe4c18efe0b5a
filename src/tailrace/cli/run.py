"""The commands that run a task: `run`, `capture`, `pipeline`."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from ..config import logs
from ..lake import json_files
from .output import out, print_json
from .params import Json, Metrics, Once, TaskFile
from .signals import stop_on_signals, stop_with_parent


def run(task: TaskFile, once: Once = False, metrics: Metrics = None, as_json: Json = False) -> None:
    """Run a task: capture, store and apply changes until Ctrl-C.

    Examples:
    tailrace run shop.yaml
    tailrace run shop.yaml --metrics localhost:9187
    tailrace run shop.yaml --once
    """
    from ..config.task import load
    from ..operate.status import status as status_of
    from ..runtime import processes
    from ..runtime.metrics import served
    from . import screen

    stop = threading.Event()
    began = stop_on_signals(stop, starting=True)
    live = screen.live if out.is_terminal and not as_json and not logs.in_json() else None
    with served(load(task), metrics, "capture", "pipeline") as watched:
        processes.run(task, once=once, stop=stop, screen=live, began=began, watched=watched)
    done = status_of(load(task))
    if as_json:
        print_json(done.as_dict())
    else:
        out.print(screen.status(done))


def capture(
    task: TaskFile,
    once: Once = False,
    parent: Annotated[
        int | None, typer.Option(hidden=True, help="Stop when this process no longer exists.")
    ] = None,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Run the capture half of a task: the source's log to LOG. No JVM.

    Mapped columns are checked for names, keys and constants. Their SQL
    expressions are checked by `tailrace check` and by the pipeline.

    Examples:
    tailrace capture shop.yaml
    tailrace capture shop.yaml --once
    """
    from ..capture.process import Capture
    from ..config.task import load
    from ..query.positions import format_lsn
    from ..runtime.metrics import served

    stop = threading.Event()
    began = stop_on_signals(stop, starting=True, child=parent is not None)
    if parent is not None:
        # The id comes from the parent itself: read here, it could already be too late.
        stop_with_parent(stop, parent)
    wanted = load(task)
    with served(wanted, metrics, "capture"):
        Capture(wanted, once=once, stop=stop, reload=lambda: load(task), began=began).run()
    state = json_files.read(wanted.run_path, "capture") or {}
    if as_json:
        print_json(state)
    elif parent is None:
        position = f" up to {format_lsn(state['position'])}" if state.get("position") else ""
        out.print(f"captured {state.get('records', 0):,} log records{position}")


def pipeline(task: TaskFile, once: Once = False, metrics: Metrics = None, as_json: Json = False) -> None:
    """Run the Spark half of a task: LOG to change tables and targets.

    It can be given to spark-submit (docs/spark.md, examples/submit.py).

    Examples:
    tailrace pipeline shop.yaml
    tailrace pipeline shop.yaml --once
    spark-submit --master spark://host:7077 submit.py pipeline shop.yaml
    """
    from ..capture.part_requests import reading_for_capture
    from ..config.task import load
    from ..execution import counted, summary
    from ..operate.status import status as status_of
    from ..runtime.metrics import served
    from ..runtime.pipeline import Pipeline
    from ..runtime.session import background_session
    from ..state import live

    stop = threading.Event()
    began = stop_on_signals(stop, starting=True)
    wanted = load(task)
    live.refuse(wanted.run_path, "pipeline")  # before anything is started
    with served(wanted, metrics, "pipeline") as watched:
        spark = background_session(f"tailrace {wanted.name}", wanted.spark, wanted.shared_folders)
        spark.begin()
        work = Pipeline(wanted, spark.as_session, stop=stop)
        watched.counted = work.counted
        began()
        with reading_for_capture(wanted, spark):
            work.drain() if once else work.run()
    if said := summary(counted()):
        logs.event(said)
    done = status_of(wanted).as_dict()
    print_json(done) if as_json else out.print(f"applied up to change {done['applied']:,}")
