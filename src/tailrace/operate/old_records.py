"""Records of what went wrong, and of DDL: they are kept as long as `retention.records` says.

| table | goes by |
| --- | --- |
| `attrep_apply_exceptions`, the task's own rows | `ERROR_TIME` |
| `control/quarantine` | `noticed_at` |
| `control/ddl_history` | `CHANGE_SEQ`; layouts that came with a baseline stay, they tell no time |

Nobody has to read them first. The relation history and the events and decisions of DDL stay whole: what a
change of any age means follows from them. They grow with DDL alone.
"""

from __future__ import annotations

import datetime as dt

from deltalake import DeltaTable

from ..apply.keylog.exceptions import EXCEPTIONS
from ..capture.ddl_history import BEGINS
from ..config.quantities import FOREVER, ago
from ..config.task import Task
from ..lake import delta as lake
from ..model.sequence import TIME_DIGITS, time_part


def forget_old(task: Task, now: dt.datetime | None = None) -> None:
    """Deletes a task's records that are older than its `retention` allows; the task may be running."""
    if (keep := task.retention.of_records) == FOREVER:
        return
    limit = ago(keep, now)
    seq = time_part(limit)
    at = f"arrow_cast('{limit.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    _delete(task.control_path(EXCEPTIONS), f"TASK_NAME = '{task.name}' AND ERROR_TIME < {at}")
    _delete(task.control_path("quarantine"), f"noticed_at < {at}")
    history = task.control_path("ddl_history")
    if lake.exists(history) and lake.progress(history, BEGINS) < seq:
        lake.commit(history, [], progress={BEGINS: seq})  # otherwise capture would write them again
        _delete(history, f"CHANGE_SEQ < '{seq:0{TIME_DIGITS}d}' AND CHANGE_SEQ >= '{1:0{TIME_DIGITS}d}'")


def _delete(path: str, predicate: str) -> None:
    if lake.exists(path):
        lake.retried(lambda: DeltaTable(path).delete(predicate))
