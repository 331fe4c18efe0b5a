"""Runs tasks on threads of the driver or as Spark tasks; other packages do not depend on which.

`map_tasks` runs one task for each input and returns typed results. `over_rows` runs a task on the rows of a
DataFrame. `thread_pool` gives threads to code that computes inside one task.
"""

from .driver import InlineExecutor, thread_pool
from .executor_check import check_executors
from .job import Job, JobCount, Work, counted, since, summary
from .map_tasks import executor_of, map_tasks, slots
from .session import BackgroundSession, background, has_started, ready_session, seconds_waited
from .spark import described, map_partitions, over_rows

__all__ = [
    "BackgroundSession", "InlineExecutor", "Job", "JobCount", "Work", "background", "check_executors",
    "counted", "described", "executor_of", "has_started", "map_partitions", "map_tasks", "over_rows",
    "ready_session", "seconds_waited", "since", "slots", "summary", "thread_pool",
]  # fmt: skip
