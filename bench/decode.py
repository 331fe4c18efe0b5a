"""Decode alone: LOG records to change rows (`store.images.decode`), one core.

Run by `rows` as a process of its own, pinned to one processor: `decode.py LOG RELATIONS` prints JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import pyarrow as pa

import measure
import peer
import tasks
from capture import Bulk
from measure import HERE, Row, say
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model.types import header_schema, schema_of
from tailrace.store import images
from tailrace.store.task import LOG_COLUMNS

BATCH = 200_000  # as the session hands records to store tasks
ROUNDS = 3


def rows(bulk: Bulk) -> list[Row]:
    """The bench `decode`."""
    task = tasks.load(bulk.ours.file)
    say("decoding LOG on one core")
    command = [sys.executable, HERE / "decode.py", task.log_path, task.relations_path]
    done = measure.run(command, log=bulk.folder / "decode.log", core=0)
    rate = json.loads(done.output)["rate"]
    theirs = bulk.theirs.rate
    return [Row("decode of LOG records, one core", rate, "rows/s", peer.NAME, theirs, done.peak_mb, goal=10)]


def main(log_path: str, relations_path: str) -> None:
    """Decodes everything a few times; the median counts. Reading LOG is not counted."""
    pa.set_cpu_count(1)
    layout = log.layouts(relations_path)[0].relation
    table = lake.read(log_path, LOG_COLUMNS)
    table = table.filter(pa.array(np.isin(table["RECID"].to_numpy(), (log.INSERT, log.UPDATE, log.DELETE))))
    batches = [b for b in table.combine_chunks().to_batches(BATCH) if b.num_rows]
    schema = pa.schema([*header_schema(), *schema_of(layout.columns)])
    rates = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        made = sum(images.decode(batch, layout, schema).rows.num_rows for batch in batches)
        rates.append(made / (time.perf_counter() - began))
    print(json.dumps({"rate": statistics.median(rates), "rows": made}))


if __name__ == "__main__":
    main(*sys.argv[1:])
