"""Declares the control tables of an SQDR key log, as tailrace writes them. Source: spec/sqdr.md §8.

Public pages contain the tables and their purpose, and the columns that join them (`id`, `run_id`, `group_id`,
`subscription_id`); all other columns here are tailrace's own.

    ir_keylog k JOIN ir_subscription i ON k.subscription_id = i.subscription_id
                JOIN groups g ON k.group_id = g.id
                LEFT JOIN statistic s ON k.run_id = s.run_id
                LEFT JOIN subscriptions t ON k.subscription_id = t.id
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base import VendorColumn, VendorTable
from ..shape import conform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUPS, SUBSCRIPTIONS = "groups", "subscriptions"
IR_SUBSCRIPTION, STATISTIC = "ir_subscription", "statistic"


def _table(name: str, about: str, *columns: tuple[str, str, str]) -> VendorTable:
    """Declares a control table; its first column is its key."""
    result = tuple(
        VendorColumn(n, kind, means, (n.replace("_", ""),), optional=i > 0)
        for i, (n, kind, means) in enumerate(columns)
    )
    return VendorTable(name, about, result)


TABLES = {
    t.name: t
    for t in (
        _table(
            GROUPS,
            "one row per group of subscriptions: a task, or a name used by `tailrace apply`",
            ("id", "string", "ir_keylog.group_id"),
            ("name", "string", "its name"),
            ("since", "timestamp", "the time of its first row in this key log"),
        ),
        _table(
            SUBSCRIPTIONS,
            "one row per table: the source and the destination of its changes",
            ("id", "string", "ir_keylog.subscription_id"),
            ("source_dsn", "string", "the source, without its password"),
            ("source_table", "string", "the table there, schema.name"),
            ("destination_dsn", "string", "the target: a folder, or a database without its password"),
            ("destination_table", "string", "the table there"),
        ),
        _table(
            IR_SUBSCRIPTION,
            "one row per table: its group, rules and state",
            ("subscription_id", "string", "ir_keylog.subscription_id"),
            ("group_id", "string", "groups.id"),
            ("apply_rules", "string", "strict, upsert, archive or soft_delete"),
            ("keylog_mode", "string", "which rows are logged: all, keys or errors"),
            ("flagged_count", "bigint", "flagged rows since the last baseline"),
            ("state", "string", "active, suspended (its changes wait) or removed, after the last run"),
            ("state_reason", "string", "the reason if it is not active"),
            ("since", "timestamp", "the time of its first row in this key log"),
        ),
        _table(
            STATISTIC,
            "one row per run of a table: results of its baseline and of its changes",
            ("run_id", "string", "ir_keylog.run_id"),
            ("group_id", "string", "groups.id"),
            ("subscription_id", "string", "ir_subscription.subscription_id"),
            ("kind", "string", "apply, or repair"),
            ("state", "string", "running, ended, failed, or interrupted (it died without recording its end)"),
            ("start_ts", "timestamp", "start of the run"),
            ("end_ts", "timestamp", "end of the run; of an interrupted run its last row"),
            ("error", "string", "the error of a failed run"),
            ("baseline_ts", "timestamp", "end of its baseline"),
            ("baseline_rows", "bigint", "rows of that baseline"),
            ("baseline_seconds", "double", "duration of that baseline"),
            ("change_count", "bigint", "changes logged"),
            ("insert_count", "bigint", "inserts among them"),
            ("update_count", "bigint", "updates among them"),
            ("delete_count", "bigint", "deletes among them"),
            ("truncate_count", "bigint", "truncates among them"),
            ("ignored_count", "bigint", "skipped ones among them (`0x00`)"),
            ("flagged_count", "bigint", "flagged ones among them"),
            ("error_count", "bigint", "those with a `result_error` among them"),
            ("first_sort", "bigint", "least `keylog_sort`"),
            ("last_sort", "bigint", "greatest `keylog_sort`"),
            ("latency_avg_ms", "double", "mean of `keylog_ts` minus the change's time: two clocks"),
            ("latency_max_ms", "double", "the greatest of these differences"),
        ),
    )
}
"""Name -> control table."""


def table_of(columns: Sequence[str]) -> str | None:
    """Returns the control table with these columns, in any letter case; otherwise None.

    >>> table_of(["run_id", "group_id", "START_TS"]), table_of(["id", "source_dsn"]), table_of(["id", "v"])
    ('statistic', 'subscriptions', None)
    """
    have = {c.lower() for c in columns}
    if {"run_id", "group_id"} <= have and "keylog_sort" not in have:
        return STATISTIC
    if {"subscription_id", "group_id"} <= have and "keylog_sort" not in have:
        return IR_SUBSCRIPTION
    if "id" in have and have & {"source_dsn", "source_table", "destination_dsn"}:
        return SUBSCRIPTIONS
    known = {c.name for c in TABLES[GROUPS].columns}
    return GROUPS if "id" in have and have <= known else None


def control_table(name: str, df: DataFrame) -> DataFrame | None:
    """Returns a control table with the declared names and types, other columns last; None for other
    tables."""
    kind = table_of(df.columns)
    return None if kind is None else conform(df, TABLES[kind], where=name)
