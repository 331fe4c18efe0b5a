"""Declares the tables of a StarQuest SQDR key log: columns, codes, options. Source: spec/sqdr.md §2-§5."""

from __future__ import annotations

from pydantic import Field, field_validator

from ...wire.keylog_values import IGNORED
from ..base import Options, VendorColumn, VendorTable
from ..option_names import names_in

KEYLOG, COLUMNS = "ir_keylog", "tailrace_columns"
"""The vendor's table, and tailrace's additional table about its columns."""


def _column(name: str, type: str, means: str, *, optional: bool = True) -> VendorColumn:
    return VendorColumn(name, type, means, (name.replace("_", ""),), optional)


KEYLOG_TABLE = VendorTable(
    KEYLOG,
    "one row per change and destination, with its outcome",
    (
        _column("run_id", "string", "native; statistic.run_id"),
        _column("group_id", "string", "native; groups.id"),
        _column("subscription_id", "string", "native; one source table", optional=False),
        _column("resync_state", "bigint", "change_seq, its first part: orders transactions", optional=False),
        _column("change_row_counter", "bigint", "change_seq, its second part: orders rows", optional=False),
        _column("change_row_timestamp", "timestamp", "timestamp, whole seconds"),
        _column("change_row_nanosecond", "int", "timestamp, the rest of it"),
        _column("change_row_type", "string", "change_oper", optional=False),
        _column("change_row_log_detail", "string", "native; user_name and recid in it"),
        _column("change_row_member", "string", "native; member of a multi-member file"),
        _column("action_taken", "string", "native; NULL, byte 0 and code differ"),
        _column("result_row_count", "bigint", "native; rows affected, as reported by the destination"),
        _column("result_error", "string", "native; the destination's error"),
        _column("flagged_count", "bigint", "native; number of flagged rows of the subscription so far"),
        _column("before_key", "string", "the key before, as text; native"),
        _column("after_key", "string", "the key after, as text; native"),
        _column("keylog_sort", "bigint", "native; order of insertion"),
        _column("keylog_ts", "timestamp", "native; insertion by the client's clock"),
        _column("insert_ts", "timestamp", "native; insertion"),
        _column("after_image", "string", "the image, as text"),
    ),
)

COLUMNS_TABLE = VendorTable(
    COLUMNS,
    "added by tailrace: names and types that the key log's text leaves open; optional",
    (
        _column("table_name", "string", "the source table, schema.name", optional=False),
        _column("place", "int", "position of the column, from 1"),
        _column("column_name", "string", "name of the column", optional=False),
        _column("type", "string", "its Spark SQL type; NULL: string"),
        _column("is_key", "boolean", "whether it is part of the row key; NULL: no"),
        _column("octet", "boolean", "whether its text is octets: numeric escapes have two digits; NULL: no"),
    ),
    declares=True,
)

NAMES = tuple(c.name for c in KEYLOG_TABLE.columns)
CHANGES = {"I": "I", "U": "U", "D": "D", "B": "D", "T": "T"}
"""`change_row_type` of row changes -> operation; `B` is a delete of a horizontal partition."""
SIGNALS = {
    "R": "table reorganized",
    "S": "snapshot required",
    "A": "source table altered",
    "X": "source table dropped",
    "C": "close-window signal",
}
"""`change_row_type` of rows that change no row: they go to `Read.pending`."""
ACTIONS = {
    "D": "delete row",
    "M": "update row (strict)",
    "U": "update row (upsert)",
    "I": "insert row",
    "T": "truncate table",
    "S": "snapshot required",
    "A": "source table altered",
    "X": "source table dropped",
    "C": "close-window signal",
    "#": "stale close-window token",
    IGNORED: "ignored",
    "?": "unrecognized change_row_type",
}
"""`action_taken`; NULL: only the subscription's state changed."""

DEST = "dest"
"""The `<Dest>` of an image becomes `header__native_dest`."""
KEPT = tuple(n for n in NAMES if n not in ("change_row_timestamp", "after_image"))
"""Columns that become `header__native_<name>`, so that the key log can be written again unchanged."""


class SqdrOptions(Options):
    """Options of `sqdr`."""

    columns: str = Field(
        "",
        description="Types of columns without a table `tailrace_columns`: `id int, at timestamp`; string "
        "otherwise.",
    )
    key: str = Field(
        "",
        description="The row key: `id,pos` for all tables, or `shop.item=id; shop.line=id,pos`; otherwise "
        "it is in `tailrace_columns` or `before_key` (no key if that has all columns).",
    )
    octet: str = Field(
        "",
        description="Names of text columns whose numeric escapes have two digits (octets), separated by "
        "commas; Unicode, four digits, otherwise.",
    )
    counter_digits: int = Field(
        8,
        ge=1,
        le=18,
        description="Digits of `change_row_counter` in the 19 digits of a change number; the others are "
        "`resync_state`'s.",
    )
    subscriptions: dict[str, str] = Field(
        {},
        description="The tables of subscriptions: `31=SHOP.ITEM; 32=SHOP.LINE`; otherwise they are in "
        "`<Dest>` of their rows (`tailrace apply` keeps the names of earlier runs).",
    )
    check_flags: bool = Field(
        False,
        description="Whether rows whose `flagged_count` does not follow from the previous rows are bad.",
    )

    @field_validator("subscriptions", mode="before")
    @classmethod
    def _names_of_subscriptions(cls, value: object) -> object:
        return names_in(value, "31=SHOP.ITEM; 32=SHOP.LINE")
