"""The whole way into Delta and Iceberg, in a local folder and in an S3 server (moto, a Python program)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import load
import tasks
from load import Sizes
from measure import HERE, Row, say
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

FULL, QUICK = Sizes(0, 200_000, 400_000, 40_000, 0), Sizes(0, 20_000, 40_000, 2_000, 0)
KINDS = ("delta", "iceberg")


def rows(running: EmbeddedPostgres, folder: Path, *, quick: bool) -> list[Row]:
    """The bench `stores`: changes a second of capture, store and apply, each compared with Delta in a folder."""
    sys.path.insert(0, str(HERE.parent))
    from tests.object_store import object_store

    sizes, found = QUICK if quick else FULL, dict[str, float]()
    with object_store() as store:
        for kind in KINDS:
            found[f"{kind}, local"] = _rate(running, folder, f"local_{kind}", sizes, kind, {})
        for kind in KINDS:
            far = {"storage": {"endpoint": store.endpoint, "access_key": "bench", "secret_key": "bench"}}
            address = f"s3://{store.bucket}/{kind}"
            sections = {"home": f"{address}/home", **far}
            found[f"{kind}, S3"] = _rate(running, folder, f"far_{kind}", sizes, kind, sections, address)
    local = found["delta, local"]
    return [
        Row(f"whole way, {name}", rate, "changes/s", "delta, local", local) for name, rate in found.items()
    ]


def _rate(
    running: EmbeddedPostgres, folder: Path, name: str, sizes: Sizes, kind: str,
    sections: dict[str, Any], address: str = "",
) -> float:  # fmt: skip
    session = load.database(running, name)
    tables, url = load.small_tables(session, sizes), running.tcp_url(name)
    target = {"type": kind, "path": f"{address}/target" if address else f"{name}-target"}
    file = tasks.write(folder, name, url, tables, **{**sections, "target": target})
    say(f"{name}: baseline (not counted)")
    tasks.capture(file)
    first = sizes.transactions // load.WARM
    load.small(url, sizes, first)
    tasks.capture(file)
    spark = tasks.Drain(file, "all")
    changes = load.small(url, sizes, sizes.transactions, start=first)
    took = tasks.capture(file).seconds + spark.again().work
    session.close()
    return changes / took
