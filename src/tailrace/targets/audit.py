"""How the changes of a batch are checked against the target and logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ..engine.log_rows import KeyLogHeader
from ..engine.rules import Rules
from ..keylog.control_tables import ApplyExceptions
from ..model.change import Relation
from ..wire.keylog_values import KeyLogField

LOST = "lost"


@dataclass(frozen=True)
class LogPart:
    """Where the rows of a key log go: its folder and schema, what they have in common, and the key log's
    mode (see `keylog.LOG_MODES`); `visible`: the change number up to which rows are there for everybody.
    `handed`: up to so many rows are handed to the driver, which writes those of all tables into one file.
    `life`: see `KeyLog.life`."""

    path: str
    schema: pa.Schema
    header: KeyLogHeader
    mode: str
    visible: int = -1
    handed: int = 0
    life: str = ""

    @property
    def images(self) -> bool:
        """Whether its rows have images."""
        return self.mode != "keys"


@dataclass(frozen=True)
class Audit:
    """How a batch is audited: its rules, where flagged changes are kept, and its key log, if it has one.

    `header`: how changes are written in exceptions. `counted`: how many conflicts of each kind were logged
    before, for the limits of the rules; `after`: the change number that the target had reached. `plain`:
    without rules; a NULL in a key refuses the batch whole. `places`: of an archive, the bits that the data
    columns have in its column masks, in the order of `header.ordinals`. `log_only`: the target has the
    changes; only the key log is written.
    """

    table: str
    rules: Rules
    exceptions: ApplyExceptions
    header: KeyLogHeader
    keylog: LogPart | None = None
    counted: Mapping[str, int] = field(default_factory=dict)
    after: int = -1
    plain: bool = False
    places: tuple[int, ...] = ()
    log_only: bool = False

    @property
    def archives(self) -> bool:
        """Whether the changes become rows themselves."""
        return self.rules.mode == "archive"


def plain_audit(table: str, relation: Relation, places: tuple[int, ...], after: int) -> Audit:
    """The audit of a batch without rules and key log: all changes behind `after` are made to fit; `places`:
    the bits of the relation's columns in their masks."""
    fields = tuple(KeyLogField(c.name, c.type) for c in relation.columns)
    header = KeyLogHeader("", "", table, after, 0, 0, fields, places, tuple(relation.key), "")
    return Audit(table, Rules(), ApplyExceptions("", ""), header, after=after, plain=True)
