"""The tables that a task keeps below `<home>/control`, as data.

Change numbers are those of change sequences; positions are 40 hex digits. A column without a value is NULL,
in Python None.
"""

from __future__ import annotations

import pyarrow as pa

from .rolling import Book
from .state_table import Declaration

_TEXT, _NUMBER, _TIME, _FLAG = pa.string(), pa.int64(), pa.timestamp("us", "UTC"), pa.bool_()
_REPLACED = "rows that a later one of their key replaces"
_NEVER = "none: it grows with DDL and new streams only"

COMMANDS = Declaration(
    "commands",
    (
        ("table", _TEXT), ("action", _TEXT), ("why", _TEXT), ("who", _TEXT), ("baseline", _NUMBER),
        ("target", _TEXT),
    ),
    ("number",),
    "commands older than `maintenance.keep_ledger` that no longer have an effect, and that show no gap",
    "commands.give",
)  # fmt: skip
"""Commands for single tables, of operators, policies and tailrace itself (`commands`)."""

FAILURES = Declaration(
    "errors", (("table", _TEXT), ("errors", _NUMBER), ("what", _TEXT)), ("table",), _REPLACED, "apply.errors"
)
"""Consecutive errors of tables that are retried; 0 errors: none now (`lifecycle`)."""

BASELINES = Declaration(
    "baselines",
    (
        ("table", _TEXT), ("relid", _NUMBER), ("position", _TEXT), ("rows", _NUMBER), ("version", _NUMBER),
        ("finished_at", _TIME), ("seconds", pa.float64()), ("layout", _TEXT), ("baseline", _NUMBER),
        ("order", _NUMBER), ("after", _NUMBER), ("window", _TEXT), ("closes", _NUMBER),
    ),
    ("table",),
    "rows that a later baseline of their table replaces, and that end no gap",
    "baselines.record",
)  # fmt: skip
"""Baselines whose rows are in their targets; one with an open window again when it closes (`baselines`)."""

MAPPED_LOADS = Declaration(
    "mapped",
    (("table", _TEXT), ("baseline", _NUMBER), ("digest", _TEXT), ("version", _NUMBER)),
    ("table",),
    _REPLACED,
    "apply.mapped",
)
"""Baselines that were loaded through a mapping: which one, and the target's version then."""

STREAMS = Declaration(
    "streams",
    (
        ("stream", _NUMBER), ("state", _TEXT), ("who", _TEXT), ("why", _TEXT), ("identity", _TEXT),
        ("after", _TEXT), ("change_seq", _TEXT),
    ),
    ("stream",),
    _NEVER,
    "streams.record",
)  # fmt: skip
"""The streams that the task has read from its source (`streams`)."""

TOKENS = Declaration(
    "tokens",
    (
        ("table", _TEXT), ("baseline", _NUMBER), ("change_number", _NUMBER), ("change_seq", _TEXT),
        ("position", _TEXT), ("stale", _FLAG),
    ),
    ("table", "baseline"),
    "tokens older than `maintenance.keep_ledger` that the key log has and whose window is closed",
    "windows.token",
)  # fmt: skip
"""Tokens that close the windows of baselines, as they arrived in LOG."""

DDL_DECISIONS = Declaration(
    "ddl_decisions",
    (("table", _TEXT), ("change_seq", _TEXT), ("kind", _TEXT), ("attnum", _NUMBER), ("policy", _TEXT)),
    ("table", "change_seq", "kind", "attnum"),
    _NEVER,
    "ddl.decision",
)
"""Decisions of apply for each change of a layout (`ddl`)."""

DDL_EVENTS = Declaration(
    "ddl_events",
    (
        ("table", _TEXT), ("relid", _NUMBER), ("kind", _TEXT), ("new_name", _TEXT), ("new_relid", _NUMBER),
        ("change_seq", _TEXT),
    ),
    ("number",),
    _NEVER,
    "ddl.event",
)  # fmt: skip
"""Tables that were dropped, renamed or created again: only the source's catalog shows it (`ddl`)."""

NOTES = Declaration(
    "notes",
    (("kind", _TEXT), ("subject", _TEXT), ("note", _TEXT)),
    ("kind", "subject"),
    _REPLACED,
    "state.note",
)
"""Notes of a process about single tables, as JSON: partitions, states of columns, open warnings (`notes`)."""

CONSUMERS = pa.schema(
    [
        ("name", _TEXT), ("acknowledged", _NUMBER), ("since", _TIME), ("at", _TIME), ("tables", _TEXT),
        ("log", _FLAG), ("until", _TIME),
    ]
)  # fmt: skip
"""Registered readers of changes, a keyed table (`operate.consumers`)."""

STORED = Book(
    pa.schema(
        [
            ("upto", _NUMBER), ("change_seq", _TEXT), ("position", _TEXT), ("commit_time", _TIME),
            ("table", _TEXT), ("relid", _NUMBER), ("rows", _NUMBER), ("counts", _TEXT), ("stored_at", _TIME),
        ]
    ),
    sums=("rows",), order=("upto",), gone="upto", time="stored_at",
)  # fmt: skip
"""Store batches, a row for each table and one for the batch (table NULL); rolled up (`ledger`)."""

APPLIED = Book(
    pa.schema(
        [
            ("upto", _NUMBER), ("change_seq", _TEXT), ("position", _TEXT), ("applied_at", _TIME),
            ("table", _TEXT), ("version", _NUMBER), ("inserted", _NUMBER), ("updated", _NUMBER),
            ("deleted", _NUMBER), ("missing", _NUMBER), ("plan", _TEXT), ("seconds", pa.float64()),
            ("committed_at", _TIME), ("number", _NUMBER),
        ]
    ),
    sums=("inserted", "updated", "deleted", "missing"), order=("number", "upto"), gone="applied_at",
    time="applied_at",
)  # fmt: skip
"""Apply batches, a row for each target and one for the batch (table NULL); rolled up (`ledger`)."""

QUARANTINE = pa.schema(
    [
        ("change_seq", _TEXT), ("table", _TEXT), ("column", _TEXT), ("value", _TEXT), ("reason", _TEXT),
        ("noticed_at", _TIME),
    ]
)  # fmt: skip
"""Values that their lake types cannot hold; removed by age (`retention.records`)."""

APPENDED = (COMMANDS, FAILURES, BASELINES, MAPPED_LOADS, STREAMS, TOKENS, DDL_DECISIONS, DDL_EVENTS, NOTES)
"""All append-only tables."""
