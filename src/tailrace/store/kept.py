"""Records after which change a table is complete: retention removes old changes, and notes this in its
commits.

A commit that removes changes carries their greatest change number under the app id `KEPT_APP`, and the time
of that change. Up to it changes may be missing, after it none is. A reader that requests older changes gets
an error. The check and the list of files are read from the same snapshot of the table, so a concurrent commit
cannot make them disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, Transaction

from ..errors import PositionError
from ..lake import delta as lake
from ..lake.opened import open_table
from ..model.positions import ChangeNumber
from ..model.sequence import TIME_DIGITS, WIDTH, number_of

KEPT_APP = "tailrace/kept"
_TIME_APP, _TIMED_APP = "tailrace/kept-time", "tailrace/kept-timed"
"""The time part of the sequence of the change that `KEPT_APP` numbers, and that number again: a commit that
sets `KEPT_APP` alone has no time."""


@dataclass(frozen=True)
class Span:
    """A file of a table, according to its commit: path inside the table, bytes, rows, time of writing (ms),
    smallest and largest change number and sequence (numbers -1: unknown)."""

    path: str
    size: int
    rows: int
    modified: float
    low: int = -1
    high: int = -1
    low_seq: str = ""
    high_seq: str = ""

    @property
    def known(self) -> bool:
        """Whether its change numbers are known."""
        return self.low >= 0 and self.high >= 0


def kept(table: DeltaTable | str) -> ChangeNumber | None:
    """Returns the change number after which a table is complete; None if nothing was ever removed."""
    return lake.reached(open_table(table) if isinstance(table, str) else table, KEPT_APP)


def kept_time(table: DeltaTable) -> int | None:
    """Returns the time part of the change sequence (16 digits) after which a table is complete; None if
    unknown."""
    reached = {app: lake.reached(table, app) for app in (KEPT_APP, _TIMED_APP, _TIME_APP)}
    return reached[_TIME_APP] if reached[KEPT_APP] == reached[_TIMED_APP] else None


def keeping(number: int, seq: str) -> list[Transaction]:
    """Returns the records of a commit that removes changes up to a number; `seq`: that change's sequence,
    empty if it has none."""
    found = {KEPT_APP: max(number, 0)}
    if len(seq) == WIDTH and seq.isdecimal():
        found |= {_TIME_APP: int(seq[:TIME_DIGITS]), _TIMED_APP: found[KEPT_APP]}
    return [Transaction(app, value) for app, value in found.items()]


def spans(delta: DeltaTable, column: str) -> list[Span]:
    """Returns the files of a table; `column` contains change sequences, or change numbers."""
    actions = pa.table(delta.get_add_actions(flatten=True))
    have = set(actions.column_names)
    nothing = [None] * actions.num_rows
    low = actions[f"min.{column}"].to_pylist() if f"min.{column}" in have else nothing
    high = actions[f"max.{column}"].to_pylist() if f"max.{column}" in have else nothing
    found = []
    for k, (a, b) in enumerate(zip(low, high, strict=True)):
        one = (actions[n][k].as_py() for n in ("path", "size_bytes", "num_records", "modification_time"))
        path, size, rows, modified = one
        at = modified.timestamp() * 1000 if hasattr(modified, "timestamp") else float(modified)
        texts = (str(v) if isinstance(v, str) else "" for v in (a, b))
        found.append(Span(path, size, rows or 0, at, number(a), number(b), *texts))
    return found


def number(value: object) -> int:
    """Returns the change number in a statistic; -1 if it has none, such as a truncated sequence."""
    if isinstance(value, str):
        return number_of(value) if len(value) == WIDTH and value.isdecimal() else -1
    return value if isinstance(value, int) else -1


def files_between(table: str, delta: DeltaTable, column: str, after: int, upto: int) -> list[str]:
    """Returns the paths of a change table's files that may contain changes with numbers in (after, upto];
    `delta` is the open table.

    Raises:
        PositionError: some of these changes may have been removed.
    """
    if upto <= after:
        return []
    refuse_older(delta, after, where=table)
    root = table.rstrip("/")
    found = (s for s in spans(delta, column) if not s.known or (s.high > after and s.low <= upto))
    return sorted(f"{root}/{s.path}" for s in found)


def refuse_older(delta: DeltaTable, after: int, *, where: str) -> None:
    """Raises PositionError if changes after `after` may have been removed from a table."""
    complete_after = kept(delta)
    if complete_after is not None and after < complete_after:
        raise PositionError(
            f"changes after number {max(after, 0)} are needed; only those after {complete_after} are kept",
            where=where,
            hint="retention removed them (docs/retention.md): request later ones, or take a new baseline "
            "(`tailrace resync`)",
        )
