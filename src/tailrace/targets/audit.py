"""Settings by which the changes of a batch are checked against the target and logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ..engine.log_rows import KeyLogHeader
from ..engine.rules import Rules
from ..keylog.control_tables import ApplyExceptions
from ..model.change import Relation
from ..wire.keylog_values import KeyLogField

RESULT_LOST = "lost"
"""Returned by a merge that had committed before, in an attempt whose result was lost."""


@dataclass(frozen=True)
class KeyLogOutput:
    """The key log that tasks write rows for.

    Attributes:
        path: its folder.
        schema: its columns.
        header: the values that all rows have in common.
        mode: a name in `keylog.key_log.LOG_MODES`.
        visible: the last change number whose row readers see; -1 if logging has not begun.
        max_returned_rows: at most this number of rows is returned to the driver, which writes the rows of all
            tables to one file; more rows are written by the task.
        life: see `KeyLog.life`.
    """

    path: str
    schema: pa.Schema
    header: KeyLogHeader
    mode: str
    visible: int = -1
    max_returned_rows: int = 0
    life: str = ""

    @property
    def images(self) -> bool:
        """Whether its rows have images."""
        return self.mode != "keys"


@dataclass(frozen=True)
class Audit:
    """Settings by which a batch is audited.

    Attributes:
        table: the source table.
        rules: the rules of the table.
        exceptions: the table of flagged and skipped changes.
        header: the values that rows of exceptions have in common.
        keylog: the key log; None if changes are not logged.
        counts: the number of conflicts of each kind logged before, for the limits of the rules.
        start: the progress of the target before the batch; -1 if the target has no progress.
        plain: there are no rules; a NULL in a key refuses the whole batch.
        mask_bits: the bits of the data columns in the column masks of an archive, in the order of
            `header.ordinals`.
        log_only: the target has the changes already; only the key log is written.
    """

    table: str
    rules: Rules
    exceptions: ApplyExceptions
    header: KeyLogHeader
    keylog: KeyLogOutput | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    start: int = -1
    plain: bool = False
    mask_bits: tuple[int, ...] = ()
    log_only: bool = False

    @property
    def archives(self) -> bool:
        """Whether the changes themselves become rows of the target."""
        return self.rules.mode == "archive"


def plain_audit(table: str, relation: Relation, mask_bits: tuple[int, ...], start: int) -> Audit:
    """Returns the audit of a batch without rules and key log, whose changes are all upserted.

    Args:
        table: the source table.
        relation: the columns of the changes.
        mask_bits: the bits of these columns in the column masks of the changes.
        start: the changes up to this number are not part of the batch.
    """
    fields = tuple(KeyLogField(c.name, c.type) for c in relation.columns)
    header = KeyLogHeader("", "", table, start, 0, 0, fields, mask_bits, tuple(relation.key), "")
    return Audit(table, Rules(), ApplyExceptions("", ""), header, start=start, plain=True)
