"""What an audited merge is given and what it gives back: the words between the driver and its one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ..engine.log_rows import KeyLogHeader
from ..engine.rules import Rules
from ..keylog.exceptions import Exceptions
from ..lake import delta as lake
from ..model.change import Relation
from ..wire.keylog_values import KeyLogField
from .merge_result import ApplyOutcome

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
    columns have in its column masks, in the order of `header.ordinals`. `logs`: the target has the changes;
    only the key log is written.
    """

    table: str
    rules: Rules
    exceptions: Exceptions
    header: KeyLogHeader
    keylog: LogPart | None = None
    counted: Mapping[str, int] = field(default_factory=dict)
    after: int = -1
    plain: bool = False
    places: tuple[int, ...] = ()
    logs: bool = False

    @property
    def archives(self) -> bool:
        """Whether the changes become rows themselves."""
        return self.rules.mode == "archive"


@dataclass(frozen=True)
class Audited:
    """What an audited merge found.

    Attributes:
        outcome: what it did to the target.
        upto: the change number reached; -1: the batch ended before its first change.
        counts: its changes by operation.
        tally: situation -> (how many, the first `change_seq`), of changes that did not meet what they expect.
        ends: `change_seq`, conflict and policy of the change before which the batch ended; None: it did not.
        why: what is wrong with the values of that change; None: nothing is.
        parts: of the key log, not committed; none: no rows, or few of them: see `logged`.
        logged: rows of the key log that are in no file yet; None: there are none.
        noted: an earlier attempt merged the changes, and a note of the target has what it found.
    """

    outcome: ApplyOutcome
    upto: int
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys("IUDT", 0))
    tally: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    ends: tuple[str, str, str] | None = None
    parts: tuple[lake.AddedFile, ...] = ()
    why: str | None = None
    logged: pa.Table | None = None
    noted: bool = False


def plain_audit(table: str, relation: Relation, places: tuple[int, ...], after: int) -> Audit:
    """The audit of a batch without rules and key log: all changes behind `after` are made to fit; `places`:
    the bits of the relation's columns in their masks."""
    fields = tuple(KeyLogField(c.name, c.type) for c in relation.columns)
    header = KeyLogHeader("", "", table, after, 0, 0, fields, places, tuple(relation.key), "")
    return Audit(table, Rules(), Exceptions("", ""), header, after=after, plain=True)
