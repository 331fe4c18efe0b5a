"""The metrics, each declared once: name, kind, labels, meaning. `docs/metrics.md` is generated from them.

Names and units follow Prometheus' conventions: base units (seconds, bytes), `_total` for counters. Every
metric also has the label `task`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

CAPTURE, PIPELINE = "capture", "pipeline"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        kind: `gauge`, `counter` (starts at 0 with the process, or with the task if its help says so) or
            `histogram`.
        half: which process of a task has it: `capture`, `pipeline` or `both`. `tailrace run` has all.
        help: its meaning; a gauge without a value has no series.
        labels: its labels other than `task`.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    half: Literal["capture", "pipeline", "both"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its time series.

        >>> METRICS["tailrace_stage_seconds"].series[0]
        'tailrace_stage_seconds_bucket'
        """
        ends = ("_bucket", "_sum", "_count") if self.kind == "histogram" else ("",)
        return tuple(self.name + end for end in ends)


_ALL: Final = (
    Metric("tailrace_build_info", "gauge", "both", "1; the running release is in the label.", ("version",)),
    Metric(
        "tailrace_state_readable", "gauge", "both",
        "Whether the task's control tables could be read for this scrape (1) or not (0); metrics that "
        "come from them are missing then.",
    ),
    Metric(
        "tailrace_process_up", "gauge", "both",
        "Whether that process of the task is running (1) or not (0), on any host: `capture`, `pipeline`.",
        ("process",),
    ),
    Metric(
        "tailrace_process_state", "gauge", "both",
        "1 for the state that a running process (`capture`, `pipeline`) is in: `starting`, `running`, "
        "`reconnecting` (capture has lost its source, or the pipeline its target, and retries), "
        "`drained`, `stopped`.",
        ("process", "state"),
    ),
    Metric(
        "tailrace_process_start_time_seconds", "gauge", "both",
        "When the answering process started that part (`capture`, `pipeline`; Unix time).", ("process",),
    ),
    Metric(
        "tailrace_stage_last_success_timestamp_seconds", "gauge", "both",
        "When a stage last succeeded (Unix time): `capture` read from its source (also if there was "
        "nothing new); `store` and `apply` completed a batch since the process started; `maintenance` "
        "completed a round.",
        ("stage",),
    ),
    Metric(
        "tailrace_stage_seconds", "histogram", "both",
        "How long a stage's batches took: `capture` (a commit to LOG), `store`, `apply` (all tables of a "
        "batch).",
        ("stage",),
    ),
    Metric(
        "tailrace_source_lag_seconds", "gauge", "capture",
        "How long ago the newest transaction that capture has read was committed; 0 if it has read "
        "everything.",
    ),
    Metric(
        "tailrace_source_lag_bytes", "gauge", "capture",
        "Bytes of log between the source's end and the end of LOG.",
    ),
    Metric(
        "tailrace_source_retained_bytes", "gauge", "capture",
        "Bytes of log that the source keeps for the task (PostgreSQL: retained WAL, since the slot's "
        "`restart_lsn`).",
    ),
    Metric(
        "tailrace_source_headroom_bytes", "gauge", "capture",
        "How much more log can be written before the source discards what it keeps and changes are lost "
        "(PostgreSQL: `safe_wal_size`; no series while `max_slot_wal_keep_size` is -1).",
    ),
    Metric(
        "tailrace_source_position_bytes", "gauge", "capture",
        "Where LOG ends in the source's log (PostgreSQL: the LSN as a number; other sources have none).",
    ),
    Metric("tailrace_capture_records_total", "counter", "capture", "Log records committed to LOG."),
    Metric("tailrace_capture_bytes_total", "counter", "capture", "Their bytes."),
    Metric("tailrace_capture_transactions_total", "counter", "capture", "Their transactions."),
    Metric(
        "tailrace_change_number", "gauge", "pipeline",
        "The change number that a stage has reached: `captured`, `stored`, `applied`.",
        ("stage",),
    ),
    Metric(
        "tailrace_baseline_parts", "gauge", "capture",
        "Parts of a baseline that is being read.", ("table",),
    ),
    Metric(
        "tailrace_baseline_parts_done", "gauge", "capture",
        "How many of those parts have been read.", ("table",),
    ),
    Metric(
        "tailrace_table_state", "gauge", "pipeline",
        "1 for the state a table is in: `running`, `paused`, `suspended`, `removed`, `baseline`, "
        "`window open`, `waits for its baseline`, `waits for a new baseline`, `being renamed`, "
        "`tracked only`, `not captured`, `not applied`, `stopped`, `source unreachable`, "
        "`target unreachable`.",
        ("table", "state"),
    ),
    Metric(
        "tailrace_table_lag_seconds", "gauge", "pipeline",
        "The age of the oldest stored change that the target does not have; 0 if it has all.", ("table",),
    ),
    Metric(
        "tailrace_table_behind_rows", "gauge", "pipeline",
        "Stored change-table rows that the target does not have; a store batch that it has in part counts "
        "in full.",
        ("table",),
    ),
    Metric(
        "tailrace_table_errors", "gauge", "pipeline",
        "Consecutive errors of the table; it is retried.", ("table",),
    ),
    Metric(
        "tailrace_table_position_bytes", "gauge", "pipeline",
        "The target's position in the source's log; as `tailrace_source_position_bytes`.", ("table",),
    ),
    Metric(
        "tailrace_table_last_apply_timestamp_seconds", "gauge", "pipeline",
        "When changes were last applied to the target (Unix time).", ("table",),
    ),
    Metric(
        "tailrace_table_baseline_rows", "gauge", "pipeline",
        "Rows of the table's newest baseline.", ("table",),
    ),
    Metric(
        "tailrace_table_stored_rows_total", "counter", "pipeline",
        "Rows stored in the change table since the task was created.", ("table",),
    ),
    Metric(
        "tailrace_table_applied_rows_total", "counter", "pipeline",
        "Rows written to the target since the task was created: `insert`, `update`, `delete`. Those of a "
        "batch whose process was killed before it had recorded what it had committed are not counted.",
        ("table", "operation"),
    ),
    Metric(
        "tailrace_apply_seconds", "histogram", "pipeline",
        "Time to write one table's part of a batch, by plan.", ("plan",),
    ),
    Metric(
        "tailrace_conflicts_total", "counter", "pipeline",
        "Changes that did not find the row that their table's rules expect (docs/apply.md): "
        "`insert_exists`, `update_missing`, `delete_missing`, `data_error`.",
        ("table", "kind"),
    ),
    Metric(
        "tailrace_freshness_seconds", "gauge", "pipeline",
        "The interval between two batches of a table; `*`: of the task, and of all tables without a series.",
        ("table",),
    ),
    Metric(
        "tailrace_disk_bytes", "gauge", "pipeline",
        "Disk space by kind, measured by maintenance: `live` and `past` versions of targets, `changes`, "
        "`log`, `keylog`, `others`.", ("kind",),
    ),
    Metric("tailrace_disk_files", "gauge", "pipeline", "Number of files of the task."),
    Metric("tailrace_disk_free_bytes", "gauge", "pipeline", "Free bytes on the disk of the task."),
    Metric(
        "tailrace_disk_growth_bytes_per_day", "gauge", "pipeline",
        "Growth of the task over the last hours, in bytes per day.",
    ),
    Metric(
        "tailrace_flagged_changes_total", "counter", "pipeline",
        "Changes that were flagged in the key log.", ("table",),
    ),
)  # fmt: skip

METRICS: Final = {one.name: one for one in _ALL}
"""Name -> metric."""


def markdown() -> str:
    """The table of metrics, in Markdown.

    >>> markdown().splitlines()[0]
    '| metric | kind | labels | of | meaning |'
    """
    lines = ["| metric | kind | labels | of | meaning |", "| --- | --- | --- | --- | --- |"]
    for one in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.half} | {one.help} |")
    return "\n".join(lines)
