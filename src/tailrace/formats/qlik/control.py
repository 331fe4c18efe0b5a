"""Reads and writes Qlik's control tables, with the types of spec/qlik.md §5. All times are UTC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..base import VendorColumn, VendorTable
from ..shape import conform
from ..spark_functions import F
from . import partitions as parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MEANS = {
    "TASK_NAME": "the task",
    "SERVER_NAME": "the replication server",
    "TABLE_OWNER": "schema of the table",
    "TABLE_NAME": "the table",
}


def _table(name: str, about: str, columns: str, needed: Sequence[str] = ()) -> VendorTable:
    """Declares a control table from `name type, name type`; columns that are not `needed` may be missing."""
    pairs = [c.split() for c in columns.split(",")]
    result = tuple(
        VendorColumn(n, t, _MEANS.get(n.upper(), n.lower().replace("_", " ")), optional=n not in needed)
        for n, t in pairs
    )
    return VendorTable(name, about, result)


TABLES = {
    t.name: t
    for t in (
        _table(
            "attrep_apply_exceptions",
            "changes that could not be applied, with statement and error; never purged",
            "TASK_NAME string, TABLE_OWNER string, TABLE_NAME string, ERROR_TIME timestamp, "
            "STATEMENT string, ERROR string",
            ("TASK_NAME", "TABLE_OWNER", "TABLE_NAME", "ERROR_TIME"),
        ),
        _table(
            "attrep_status",
            "one row per task: its state and progress",
            "server_name string, task_name string, task_status string, status_time timestamp, "
            "pending_changes bigint, disk_swap_size bigint, task_memory bigint, "
            "source_current_position string, source_current_timestamp timestamp, "
            "source_tail_position string, source_tail_timestamp timestamp, "
            "source_timestamp_applied timestamp",
            ("server_name", "task_name"),
        ),
        _table(
            "attrep_suspended_tables",
            "tables that are not replicated, and why",
            "server_name string, task_name string, table_owner string, table_name string, "
            "suspend_reason string, suspend_timestamp timestamp",
            ("server_name", "task_name", "table_owner", "table_name"),
        ),
        _table(
            "attrep_history",
            "one row per time slot: latency, rows and volume",
            "server_name string, task_name string, timeslot_type string, timeslot timestamp, "
            "timeslot_duration bigint, timeslot_latency bigint, timeslot_records bigint, "
            "timeslot_volume bigint",
            ("server_name", "task_name", "timeslot_type", "timeslot"),
        ),
        _table(
            "attrep_ddl_history",
            "one row per DDL statement, with the columns it added, dropped or altered as JSON",
            "SERVER_NAME string, TASK_NAME string, TABLE_OWNER string, TABLE_NAME string, CHANGE_SEQ string, "
            "TIMESTAMP timestamp, TABLE_VERSION int, DDL_TYPE string, DETAILS string",
            ("TABLE_NAME", "CHANGE_SEQ", "DDL_TYPE"),
        ),
        _table(
            parts.TABLE,
            "one row per closed partition; may occur more than once",
            "SERVER_NAME string, TASK_NAME string, PARTITION_NAME string, PARTITION_START_TIME timestamp, "
            "PARTITION_END_TIME timestamp, TABLE_OWNER string, TABLE_NAME string",
            ("PARTITION_NAME", "TABLE_NAME"),
        ),
    )
}
"""Name -> control table."""

DETAILS = (
    "owner string, `table` string, tableNewName string, version int, columns map<string, struct<"
    "columnNewName:string, action:string, type:string, length:int, precision:int, scale:int, "
    "primaryKeyPosition:int, nullable:boolean, ordinal:int>>"
)
"""The JSON of attrep_ddl_history's DETAILS, as a Spark schema."""


def plain(name: str) -> str:
    """Returns a control table's name without its schema, in lower case.

    >>> plain("dbo.ATTREP_status")
    'attrep_status'
    """
    return name.lower().rpartition(".")[2]


def is_control(name: str) -> bool:
    """Whether a table is a control table.

    >>> is_control("dbo.attrep_status"), is_control("dbo.attrep_changesBF4D335D7A4FD2C7")
    (True, False)
    """
    return plain(name) in TABLES


def conformed(name: str, df: DataFrame) -> DataFrame:
    """Returns a control table with the declared names and types; bad values get a reason in `WHY`.

    Raises:
        ConfigError: there is no such control table.
        FormatError: a required column is missing.
    """
    if not is_control(name):
        raise ConfigError(f"no control table {name!r}", hint=f"there are {', '.join(TABLES)}")
    return conform(df, TABLES[plain(name)], where=name)


def written(name: str, df: DataFrame) -> DataFrame:
    """Returns the rows to write, with exactly the declared columns and types of a control table.

    Raises:
        ConfigError: there is no such control table.
    """
    return conformed(name, df).select(*[c.name for c in TABLES[plain(name)].columns])


def control_table(name: str, df: DataFrame) -> DataFrame | None:
    """Returns a control table with the declared names and types, other columns last; None for other
    tables."""
    return conformed(name, df) if is_control(name) else None


def ddl_changes(history: DataFrame) -> DataFrame:
    """Returns the columns that DDL statements changed: one row per column of each row of attrep_ddl_history,
    CREATE as ADD."""
    details = F.from_json("DETAILS", DETAILS)
    rows = conformed("attrep_ddl_history", history).select(
        "TABLE_OWNER", "TABLE_NAME", "CHANGE_SEQ", "TABLE_VERSION", "DDL_TYPE", details.alias("_details")
    )
    return (
        rows.select(
            "TABLE_OWNER",
            "TABLE_NAME",
            F.col("_details.tableNewName").alias("TABLE_NEW_NAME"),
            "CHANGE_SEQ",
            "TABLE_VERSION",
            "DDL_TYPE",
            F.explode_outer("_details.columns").alias("COLUMN_NAME", "_column"),
        )
        .select("*", "_column.*")
        .drop("_column")
    )


def partition_rows(changes: DataFrame, name: str, table: str, *, server: str, task: str) -> DataFrame:
    """Returns rows of attrep_cdc_partitions for the completed partitions of a table's changes: all that end
    before or at its last change's commit. `name` and `change_seq` are columns of `changes`."""
    owner, _, plain_name = table.rpartition(".")
    last = F.try_to_timestamp(F.substring("change_seq", 1, 14), F.lit("yyyyMMddHHmmss"))
    each = changes.groupBy(F.col(name).alias("PARTITION_NAME")).agg(F.max(last).alias("_last"))
    start, end = parts.times_of(F.col("PARTITION_NAME"))
    now = each.agg(F.max("_last").alias("_now"))
    return (
        each.crossJoin(F.broadcast(now))
        .filter(end <= F.col("_now"))
        .select(
            F.lit(server).alias("SERVER_NAME"),
            F.lit(task).alias("TASK_NAME"),
            "PARTITION_NAME",
            start.alias("PARTITION_START_TIME"),
            end.alias("PARTITION_END_TIME"),
            F.lit(owner).alias("TABLE_OWNER"),
            F.lit(plain_name).alias("TABLE_NAME"),
        )
    )
