"""Spark's daemon of Python workers on one machine: each worker is a fork of it, with what nearly all tasks
need loaded. Otherwise each would load that anew, the next one after a quiet minute, too: a second each time.

Run as `python -m tailrace.runtime.daemon` (`spark.python.daemon.module`).
"""

from __future__ import annotations

import gc
import os

import numpy as np
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from ..formats import text  # noqa: F401
from ..targets.delta import local  # noqa: F401

# Otherwise all workers would draw the same numbers.
os.register_at_fork(after_in_child=np.random.seed)

if __name__ == "__main__":
    gc.freeze()  # a worker that collects garbage copies no page of this
    manager()
