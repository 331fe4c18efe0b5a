"""The control tables of an SQDR key log, as tailrace writes them. Source: spec/sqdr.md §8.

Public pages name the tables and the columns that join them (`id`, `run_id`, `group_id`, `subscription_id`)
and say what they are for; all other columns here are tailrace's own.

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
    """A control table; its first column is its key."""
    made = tuple(
        VendorColumn(n, kind, means, (n.replace("_", ""),), optional=i > 0)
        for i, (n, kind, means) in enumerate(columns)
    )
    return VendorTable(name, about, made)


TABLES = {
    t.name: t
    for t in (
        _table(
            GROUPS,
            "one row per group of subscriptions: a task, or a name used by `tailrace apply`",
            ("id", "string", "ir_keylog.group_id"),
            ("name", "string", "for people"),
            ("since", "timestamp", "when it first wrote to this key log"),
        ),
        _table(
            SUBSCRIPTIONS,
            "one row per table: where its changes come from and where they go",
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
            ("state", "string", "active, suspended: its changes wait, or removed; as the last run left it"),
            ("state_reason", "string", "why it is not active"),
            ("since", "timestamp", "when it first wrote to this key log"),
        ),
        _table(
            STATISTIC,
            "one row per run of a table: results of its baseline, and what was done with its changes",
            ("run_id", "string", "ir_keylog.run_id"),
            ("group_id", "string", "groups.id"),
            ("subscription_id", "string", "ir_subscription.subscription_id"),
            ("kind", "string", "apply, or repair"),
            ("state", "string", "running, ended, failed, or interrupted: it died without recording its end"),
            ("start_ts", "timestamp", "when it began"),
            ("end_ts", "timestamp", "when it ended; for an interrupted run its last row"),
            ("error", "string", "why it failed"),
            ("baseline_ts", "timestamp", "when its baseline was done"),
            ("baseline_rows", "bigint", "rows of that baseline"),
            ("baseline_seconds", "double", "how long it took"),
            ("change_count", "bigint", "changes logged"),
            ("insert_count", "bigint", "of them those that inserted a row"),
            ("update_count", "bigint", "of them those that updated one"),
            ("delete_count", "bigint", "of them those that deleted one"),
            ("truncate_count", "bigint", "of them truncates"),
            ("ignored_count", "bigint", "of them those skipped (`0x00`)"),
            ("flagged_count", "bigint", "of them flagged ones"),
            ("error_count", "bigint", "of them those with a `result_error`"),
            ("first_sort", "bigint", "least `keylog_sort`"),
            ("last_sort", "bigint", "greatest `keylog_sort`"),
            ("latency_avg_ms", "double", "mean of `keylog_ts` minus the change's time: two clocks"),
            ("latency_max_ms", "double", "the greatest of these differences"),
        ),
    )
}
"""Name -> control table."""


def table_of(columns: Sequence[str]) -> str | None:
    """Which control table has these columns, in any letter case; None: none.

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
    """A control table under the declared names and types, other columns last; None if it is not a control
    table."""
    kind = table_of(df.columns)
    return None if kind is None else conform(df, TABLES[kind], where=name)
