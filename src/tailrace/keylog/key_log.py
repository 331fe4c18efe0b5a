"""The key log: one row per change with its outcome, in the columns of SQDR's `ir_keylog`.

The tasks that merge changes write its rows. A batch is one append whose commit holds, per subscription, the
change number reached, the flagged count and the greatest `keylog_sort`; so a replayed batch adds nothing, and
the next one continues where this one ended.

`keylog_sort` is the change number, moved behind everything logged before: it needs no sort, grows with every
append, and one subscription's rows have the same however its changes are cut into batches. One process at a
time writes a key log; its tables may be written side by side, and become visible together.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from ..engine.log_rows import KeyLogHeader
from ..errors import ConfigError, OvertakenError
from ..formats.sqdr.tables import KEYLOG_TABLE
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..model.positions import ChangeNumber, ChangeRange
from ..model.types import arrow_type

LOG_MODES = {
    "all": "every change, with keys and images",
    "keys": "every change, with keys, without images",
    "errors": "flagged changes, with keys and images",
    "off": "nothing",
}
SCHEMA = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in KEYLOG_TABLE.columns])
_SORT = "tailrace/keylog/sort"
FEW, _HELD = 1_000, 100_000
"""Up to so many rows of a batch are no file of their own; so many are held at most."""


@dataclass(frozen=True)
class Standing:
    """State of a subscription in a key log.

    Attributes:
        reached: the last change number that is logged; None if logging has not begun.
        flagged: the number of flagged changes.
        sort: the greatest `keylog_sort` of all subscriptions.
        baseline: the number of the baseline since which flagged changes are counted.
    """

    reached: ChangeNumber | None
    flagged: int
    sort: int
    baseline: int = 0


class KeyLog:
    """A key log that is written to.

    Args:
        path: the Delta table; made when it is missing. Columns: `formats.sqdr.tables.KEYLOG_TABLE`.
        app_id: under which name its progress stands.
        run_id: `run_id` of the rows of subscriptions that are not in `runs`.
        mode: a name in `LOG_MODES`.
        group_id: `group_id` of the rows, under which flagged rows are counted; `app_id` when not given.
        at_once: False: what is committed becomes visible at the next `flush`, all tables of a batch in one
            commit; `standing` counts it already.

    Attributes:
        runs: subscription -> `run_id` of its rows from now on.

    Any thread may call it.
    """

    def __init__(
        self,
        path: str,
        *,
        app_id: str,
        run_id: str,
        mode: str = "all",
        group_id: str | None = None,
        at_once: bool = True,
    ) -> None:
        if mode not in LOG_MODES:
            raise ConfigError(f"no key log mode {mode!r}", hint=f"use one of {', '.join(LOG_MODES)}")
        self.path, self.app_id, self.run_id, self.mode = path.rstrip("/"), app_id, run_id, mode
        self.group_id = app_id if group_id is None else group_id
        self.runs: dict[str, str] = {}
        self._at_once, self._lock = at_once, threading.RLock()
        self._known: dict[str, Standing] = {}
        self._visible: dict[str, ChangeNumber | None] = {}
        self._moved: dict[str, int] = {}
        self._files: list[Any] = []
        self._rows: list[pa.Table] = []
        self._begun, self._sort = -1, 0
        self._last: tuple[str, ChangeRange, int] | None = None
        self._life = ""
        self._table: DeltaTable | None = None  # as it was before anything of ours

    @property
    def life(self) -> str:
        """What tells it from another one that is made at its path later; empty while there is none."""
        with self._lock:
            if not self._life and lake.exists(self.path):
                self._life = str(DeltaTable(self.path).metadata().id)
            return self._life

    def run_of(self, subscription: str) -> str:
        """`run_id` of a subscription's rows."""
        return self.runs.get(subscription, self.run_id)

    def standing(self, subscription: str) -> Standing:
        """Where a subscription stands, parts that wait for `flush` included."""
        with self._lock:
            return self._standing(subscription)

    def visible(self, subscription: str) -> int:
        """The change number up to which a subscription's rows are there for everybody; -1: it never began."""
        with self._lock:
            self._standing(subscription)
            found = self._visible.get(subscription)
            return -1 if found is None else found

    def begin(self, subscription: str, reached: int, *, baseline: int = 0) -> None:
        """Notes that a subscription is logged from the change after `reached` on; nothing happens when it
        began before, but that its flagged count begins anew with a `baseline` of a larger number."""
        with self._lock:
            at = self._standing(subscription)
            if at.reached is None:
                self._known[subscription] = at = replace(at, reached=ChangeNumber(reached))
                self._moved[self._name(subscription)] = reached
            if baseline > at.baseline:
                self._known[subscription] = replace(at, flagged=0, baseline=baseline)
                flagged = self._flagged(subscription)
                self._moved |= {flagged: 0, f"{self._name(subscription)}/baseline": baseline}
        if self._at_once:
            self.flush()

    def header(self, header: KeyLogHeader, at: Standing) -> KeyLogHeader:
        """The header of rows whose numbers are `reserve`d."""
        run_id = self.run_of(header.subscription)
        return replace(header, run_id=run_id, group_id=self.group_id, flagged=at.flagged, sort=at.sort)

    def reserve(self, subscription: str, numbers: ChangeRange) -> Standing:
        """Reserves the `keylog_sort` of the rows of a range; in the result, `sort` is the last one before
        them. No two subscriptions get the same. The next attempt at the same range gets the same ones again;
        those that no row uses are skipped."""
        with self._lock:
            at, many = self._standing(subscription), numbers.end - numbers.lower
            if self._last == (subscription, numbers, at.sort):
                return replace(at, sort=at.sort - many)
            self._sort = at.sort + many
            self._last = (subscription, numbers, self._sort)
            return at

    def commit(
        self,
        subscription: str,
        end: int,
        *,
        flagged: int = 0,
        files: Sequence[Any] = (),
        rows: pa.Table | None = None,
    ) -> None:
        """Logs a subscription's changes up to the number `end`, `flagged` of which are flagged: makes written
        files visible, and `rows` that are in none. With `at_once` false they are visible at the next
        `flush`. Does nothing if the changes are logged already."""
        reach("keylog.parts")
        with self._lock:
            at = self._standing(subscription)
            if at.reached is None or at.reached < end:
                name, flagged = self._name(subscription), at.flagged + flagged
                self._known[subscription] = replace(at, reached=ChangeNumber(end), flagged=flagged)
                self._moved |= {name: end, self._flagged(subscription): flagged}
                self._files += files
                self._rows += [] if rows is None else [rows]
                if sum(held.num_rows for held in self._rows) > _HELD:
                    self._write()
        if self._at_once:
            self.flush()

    def adopt(self, subscription: str, end: int, *, flagged: int, files: Sequence[Any], sort: int) -> None:
        """Commits files that another process wrote, whose greatest `keylog_sort` is `sort`; see `commit`."""
        with self._lock:
            self._standing(subscription)
            self._sort = max(self._sort, sort)
            self.commit(subscription, end, flagged=flagged, files=files)

    @property
    def sort(self) -> int:
        """The greatest `keylog_sort` given to a row."""
        return self._sort

    def flush(self) -> None:
        """Makes everything committed visible, in one commit.

        Raises:
            OvertakenError: another process has written to the key log since this one began.
        """
        with self._lock:
            if not self._moved:
                return
            try:
                lake.create(self.path, SCHEMA)
                self._write()
                reach("keylog.flush")
                progress = {**self._moved, _SORT: self._sort}
                lake.commit(
                    self.path,
                    self._files,
                    progress=progress,
                    after={_SORT: None if self._begun < 0 else self._begun},
                )
                reach("keylog.flushed")
            except OvertakenError as error:
                self._forget()
                hint = "let one process at a time write it; call again: what is missing is logged then"
                raise OvertakenError(error.what, where=error.where, hint=hint) from None
            except BaseException:
                self._forget()  # what stands in the table counts
                raise
            self._begun, self._files, self._moved = self._sort, [], {}
            self._visible = {name: one.reached for name, one in self._known.items()}

    def _write(self) -> None:
        """Writes the rows that are in no file yet."""
        if self._rows:
            self._files += lake.write_part(self.path, pa.concat_tables(self._rows))
            self._rows = []

    def _standing(self, subscription: str) -> Standing:
        if not self._known:
            self._table = DeltaTable(self.path) if lake.exists(self.path) else None
            there = self._number(_SORT)
            self._begun, self._sort = (-1, 0) if there is None else (there, there)
        if subscription not in self._known:
            name = self._name(subscription)
            flagged, baseline = self._number(self._flagged(subscription)), self._number(f"{name}/baseline")
            number = self._number(name)
            self._visible[subscription] = reached = None if number is None else ChangeNumber(number)
            self._known[subscription] = Standing(reached, flagged or 0, 0, baseline or 0)
        return replace(self._known[subscription], sort=self._sort)

    def _number(self, name: str) -> int | None:
        found = None if self._table is None else self._table.transaction_version(name)
        return None if found is None else int(found)

    def look_again(self) -> None:
        """Goes by what stands in the table from now on: another writer was let in between."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._known, self._visible, self._moved, self._files, self._rows = {}, {}, {}, [], []
        self._begun, self._sort, self._last = -1, 0, None

    def _name(self, subscription: str) -> str:
        return f"{self.app_id}/keylog/{subscription}"

    def _flagged(self, subscription: str) -> str:
        return f"{self.group_id}/keylog/{subscription}/flagged"
