"""The rules that a task gives its tables, and the columns that they add to targets."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from ..engine.rules import SOFT_COLUMN, Rules
from ..model.change import PREFIX, Column, Relation

if TYPE_CHECKING:
    from ..config.task import Task

ARCHIVE = {
    "change_seq": "string",
    "change_oper": "string",
    "timestamp": "timestamp",
    "column_mask": "binary",
}
"""Header columns that an archive has before the data columns: it is a change table itself. The bits of its
mask are the positions of the columns in the archive."""


RULE = "rule"
"""`Column.kind` of columns that rules add to a target."""


def rules_of(task: Task, table: str) -> Rules:
    """Returns the rules of a task for a table."""
    one = task.table(table)
    return Rules.of(one.rule_mode, one.on, one.soft_delete or SOFT_COLUMN)


def added_by(rules: Rules) -> dict[str, str]:
    """Returns the names and Spark SQL types of the columns that a mode adds to a target.

    >>> added_by(Rules.of("soft_delete", {}, "gone"))
    {'gone': 'string'}
    """
    if rules.mode == "soft_delete":
        return {rules.soft_column: "string"}
    return {PREFIX + name: kind for name, kind in ARCHIVE.items()} if rules.mode == "archive" else {}


def rule_column(name: str, kind: str) -> Column:
    """Returns a column that rules add, for use in a layout."""
    return Column(name, zlib.crc32(name.encode()), kind, RULE, kind)


def split_rule_columns(relation: Relation) -> tuple[Relation, dict[str, str]]:
    """Returns a target's layout without the columns that rules add, and these columns, as in `added_by`."""
    added = {c.name: c.type for c in relation.columns if c.kind == RULE}
    return relation.with_columns([c for c in relation.columns if c.name not in added]), added
