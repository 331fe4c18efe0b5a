"""Spark's daemon of Python workers on one machine, with the modules that nearly all tasks need.

Each worker is a fork of this process. Otherwise each worker would load these modules again, which takes a
second, and so would the first one after a quiet minute.

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
from ..targets.delta import load  # noqa: F401

# Otherwise all workers would generate the same random numbers.
os.register_at_fork(after_in_child=np.random.seed)

if __name__ == "__main__":
    gc.freeze()  # garbage collection in a worker copies no page of this process
    manager()
