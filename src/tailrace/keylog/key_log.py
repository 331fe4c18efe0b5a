"""The key log: one row per change with its outcome, in the columns of SQDR's `ir_keylog`.

The tasks that merge changes write its rows. A batch is one append. Its commit holds, per subscription, the
last change number, the flagged count and the greatest `keylog_sort`. So a replayed batch adds nothing, and
the next batch continues at its end.

`keylog_sort` is the change number plus an offset that puts it after all rows logged before. It needs no sort,
grows with every append, and does not depend on how a subscription's changes are divided into batches. One
process at a time writes a key log. Its tables may be written in parallel, and become visible together.
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
from ..lake.opened import open_table
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
FEW, _MAX_IN_MEMORY = 1_000, 100_000
"""Batches of at most `FEW` rows share a file. The rows of such batches are written to a file when they exceed
`_MAX_IN_MEMORY`."""


@dataclass(frozen=True)
class KeyLogState:
    """State of a subscription in a key log.

    Attributes:
        progress: the last change number that is logged; None if logging has not begun.
        flagged: the number of flagged changes.
        sort: the greatest `keylog_sort` of all subscriptions.
        baseline: the number of the baseline since which flagged changes are counted.
    """

    progress: ChangeNumber | None
    flagged: int
    sort: int
    baseline: int = 0


class KeyLog:
    """Writer of a key log.

    Args:
        path: the Delta table; created if it does not exist. Columns: `formats.sqdr.tables.KEYLOG_TABLE`.
        app_id: the application id of its progress.
        run_id: `run_id` of the rows of subscriptions that are not in `runs`.
        mode: a name in `LOG_MODES`.
        group_id: `group_id` of the rows, by which flagged rows are counted; default: `app_id`.
        at_once: whether `commit` makes rows visible. If false, the next `flush` makes the rows of all tables
            visible in one commit; `state` includes them before that.

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
        self._states: dict[str, KeyLogState] = {}
        self._visible: dict[str, ChangeNumber | None] = {}
        self._unflushed: dict[str, int] = {}
        self._files: list[Any] = []
        self._rows: list[pa.Table] = []
        self._flushed_sort, self._sort = -1, 0
        self._last: tuple[str, ChangeRange, int] | None = None
        self._life = ""
        self._table: DeltaTable | None = None  # the version before the first commit of this object

    @property
    def life(self) -> str:
        """The id of the Delta table; a table created later at the same path has another. Empty if there is no
        table."""
        with self._lock:
            if not self._life and lake.exists(self.path):
                self._life = str(open_table(self.path).metadata().id)
            return self._life

    def run_of(self, subscription: str) -> str:
        """`run_id` of a subscription's rows."""
        return self.runs.get(subscription, self.run_id)

    def state(self, subscription: str) -> KeyLogState:
        """Returns the state of a subscription, including commits that wait for `flush`."""
        with self._lock:
            return self._state(subscription)

    def visible(self, subscription: str) -> int:
        """Returns the last change number whose row readers see; -1 if logging has not begun."""
        with self._lock:
            self._state(subscription)
            found = self._visible.get(subscription)
            return -1 if found is None else found

    def begin(self, subscription: str, start: int, *, baseline: int = 0) -> None:
        """Starts to log a subscription's changes after the number `start`; does nothing if logging has begun
        before. A `baseline` with a larger number than before sets the flagged count to zero."""
        with self._lock:
            state = self._state(subscription)
            if state.progress is None:
                self._states[subscription] = state = replace(state, progress=ChangeNumber(start))
                self._unflushed[self._app_id(subscription)] = start
            if baseline > state.baseline:
                self._states[subscription] = replace(state, flagged=0, baseline=baseline)
                flagged = self._flagged_id(subscription)
                self._unflushed |= {flagged: 0, f"{self._app_id(subscription)}/baseline": baseline}
        if self._at_once:
            self.flush()

    def header(self, header: KeyLogHeader, state: KeyLogState) -> KeyLogHeader:
        """Returns the header of rows for a `state` that `reserve` returned."""
        run_id = self.run_of(header.subscription)
        return replace(header, run_id=run_id, group_id=self.group_id, flagged=state.flagged, sort=state.sort)

    def reserve(self, subscription: str, numbers: ChangeRange) -> KeyLogState:
        """Reserves values of `keylog_sort` for the rows of a range. Returns the state with the last value
        before them as `sort`. Each value is given to one subscription only. A retry of the same range gets
        the same values; values that no row uses are skipped."""
        with self._lock:
            state, length = self._state(subscription), numbers.end - numbers.lower
            if self._last == (subscription, numbers, state.sort):
                return replace(state, sort=state.sort - length)
            self._sort = state.sort + length
            self._last = (subscription, numbers, self._sort)
            return state

    def commit(
        self,
        subscription: str,
        end: int,
        *,
        flagged: int = 0,
        files: Sequence[Any] = (),
        rows: pa.Table | None = None,
    ) -> None:
        """Commits a subscription's changes up to the number `end`; does nothing if they are logged already.

        Args:
            subscription: the subscription.
            end: the last change number.
            flagged: the number of flagged changes.
            files: written files with their rows.
            rows: further rows, which are in no file.
        """
        reach("keylog.parts")
        with self._lock:
            state = self._state(subscription)
            if state.progress is None or state.progress < end:
                app_id, flagged = self._app_id(subscription), state.flagged + flagged
                self._states[subscription] = replace(state, progress=ChangeNumber(end), flagged=flagged)
                self._unflushed |= {app_id: end, self._flagged_id(subscription): flagged}
                self._files += files
                self._rows += [] if rows is None else [rows]
                if sum(table.num_rows for table in self._rows) > _MAX_IN_MEMORY:
                    self._write()
        if self._at_once:
            self.flush()

    def adopt(self, subscription: str, end: int, *, flagged: int, files: Sequence[Any], sort: int) -> None:
        """Commits files that another process wrote, whose greatest `keylog_sort` is `sort`; see `commit`."""
        with self._lock:
            self._state(subscription)
            self._sort = max(self._sort, sort)
            self.commit(subscription, end, flagged=flagged, files=files)

    @property
    def sort(self) -> int:
        """The greatest `keylog_sort` given to a row."""
        return self._sort

    def flush(self) -> None:
        """Makes everything committed visible, in one commit.

        Raises:
            OvertakenError: another process has written to the key log meanwhile.
        """
        with self._lock:
            if not self._unflushed:
                return
            try:
                lake.create(self.path, SCHEMA)
                self._write()
                reach("keylog.flush")
                progress = {**self._unflushed, _SORT: self._sort}
                lake.commit(
                    self.path,
                    self._files,
                    progress=progress,
                    after={_SORT: None if self._flushed_sort < 0 else self._flushed_sort},
                )
                reach("keylog.flushed")
            except OvertakenError as error:
                self.forget()
                hint = "let one process at a time write it; call again: what is missing is logged then"
                raise OvertakenError(error.what, where=error.where, hint=hint) from None
            except BaseException:
                self.forget()  # the table's own state counts
                raise
            self._flushed_sort, self._files, self._unflushed = self._sort, [], {}
            self._visible = {name: state.progress for name, state in self._states.items()}

    def forget(self) -> None:
        """Drops everything that is not flushed and reads the table's state again, because another process may
        have written to it."""
        with self._lock:
            self._states, self._visible, self._unflushed, self._files, self._rows = {}, {}, {}, [], []
            self._flushed_sort, self._sort, self._last = -1, 0, None

    def _write(self) -> None:
        """Writes the rows that are in no file yet."""
        if self._rows:
            self._files += lake.write_part(self.path, pa.concat_tables(self._rows))
            self._rows = []

    def _state(self, subscription: str) -> KeyLogState:
        if not self._states:
            self._table = open_table(self.path) if lake.exists(self.path) else None
            sort = self._stored(_SORT)
            self._flushed_sort, self._sort = (-1, 0) if sort is None else (sort, sort)
        if subscription not in self._states:
            app_id = self._app_id(subscription)
            flagged, baseline = (
                self._stored(self._flagged_id(subscription)),
                self._stored(f"{app_id}/baseline"),
            )
            number = self._stored(app_id)
            self._visible[subscription] = progress = None if number is None else ChangeNumber(number)
            self._states[subscription] = KeyLogState(progress, flagged or 0, 0, baseline or 0)
        return replace(self._states[subscription], sort=self._sort)

    def _stored(self, app_id: str) -> int | None:
        """Returns the number that the table has for an application id; None if it has none."""
        found = None if self._table is None else self._table.transaction_version(app_id)
        return None if found is None else int(found)

    def _app_id(self, subscription: str) -> str:
        return f"{self.app_id}/keylog/{subscription}"

    def _flagged_id(self, subscription: str) -> str:
        return f"{self.group_id}/keylog/{subscription}/flagged"
