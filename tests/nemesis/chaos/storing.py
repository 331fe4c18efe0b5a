"""Stores a task's LOG without a JVM: the driver's part and the tasks' are tailrace's own, the batches are cut here."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.config.task import Task
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.runtime.pipeline import store_paths
from tailrace.store.writer import Store

from ..applying import of_tables


def store(task: Task, random: Random) -> int:
    """Stores everything that is not stored yet, in random batches; gives how many there were."""
    lake.create(task.log_path, log.SCHEMA, log.PROPERTIES)
    lake.create(task.relations_path, log.RELATIONS_SCHEMA)
    done, made = 0, Store(store_paths(task))
    rows = lake.read(task.log_path).sort_by("CHANGE_SEQ")
    ends = pc.indices_nonzero(
        pc.is_in(rows["RECID"], pa.array([log.COMMIT, log.MESSAGE], pa.int32()))
    ).to_pylist()
    start = 0
    while ends:
        end = ends[min(random.randrange(200), len(ends) - 1)]
        ends = [e for e in ends if e > end]
        batch = of_tables([rows.slice(start, end + 1 - start)])
        start = end + 1
        done += made.batch(batch) is not None
    return done
