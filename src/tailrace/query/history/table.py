"""A history in a Delta table, which accepts events in any order.

Beside its versions, a history stores its events (folder `_events`). The versions depend only on the set of
events, not on their order, batches or repetitions. Events are written first; after a crash, the next batch or
`finish` updates the versions.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ...engine.history import END_AT, START_AT
from ...engine.history_events import OPERATION, TRUNCATE_EVENT, clean_events, reject_late
from ...engine.history_updates import (
    SYSTEM_FROM,
    SYSTEM_TO,
    HistoryRules,
    HistoryUpdate,
    StartPerKey,
    earlier_starts,
    update_history,
)
from ...errors import (
    ConcurrentCommitError,
    ConfigError,
    OvertakenError,
    PositionError,
    UnsupportedError,
    room,
)
from ...lake import delta as lake
from ...lake.failpoints import reach
from ...lake.opened import open_table
from ...lake.storage import options_of
from ...lake.thinning import Past, sweep, thin
from ...model.positions import order_key
from ...model.types import plain_schema
from ..result import Result
from .checks import check_rules, conform_events, differences
from .events import APP, HistoryEvents, events_schema, first_truncate, flow_app_id
from .files import FILE, ROW, HistoryFiles, fill_columns
from .positions import FOLLOWS, HistoryPositions

EVENTS = "_events"
"""Folder of the events, within the history's folder."""
RULES = "tailrace.history"
"""Table property with the history's rules as JSON."""
_HINT = "choose another path, or create a new history"
_TRIES = 20
VACUUM_AFTER_S = 7 * 86_400.0
MAINTAIN_EVERY, SMALL_FILES = 100, 16
"""Number of batches between two maintenance runs, and of small files that one joins."""


@dataclass(frozen=True)
class HistoryBatch:
    """Counts of a batch: versions added and removed, events rejected, and events that were stored before."""

    added: int = 0
    removed: int = 0
    rejected: int = 0
    duplicates: int = 0


@dataclass(frozen=True)
class HistoryTable:
    """A history: the path of its Delta table, its rules, and the type of its sequence."""

    path: str
    rules: HistoryRules
    sequence: pa.DataType

    @staticmethod
    def make(
        path: str,
        data: pa.Schema,
        rules: HistoryRules,
        sequence: pa.DataType,
        properties: Mapping[str, str] | None = None,
        older: Mapping[str, pa.Array] | None = None,
    ) -> HistoryTable:
        """Opens the history at a path, or creates it. An existing history gets new columns.

        Args:
            path: folder of its Delta table.
            data: names and types of the data columns.
            rules: its rules.
            sequence: the type of the value that orders its events.
            properties: more properties for a new table.
            older: the values of new columns in all existing versions; NULL by default.

        Raises:
            ConfigError: there is another table, or a history with other rules; or a key column does not
                exist.
        """
        check_rules(rules, data, path)
        if lake.exists(path):
            found = HistoryTable.open(path)
            grown = found.rules.grown(rules)
            if grown is None or found.sequence != sequence:
                raise ConfigError(
                    "the existing history has other rules: "
                    + differences((found.rules, found.sequence), (rules, sequence)),
                    where=path,
                    hint=_HINT,
                )
            return found if grown == found.rules else found._grown(grown, plain_schema(data), older or {})
        made = HistoryTable(path, rules, sequence)
        data = plain_schema(data)
        with room(path):
            for place, schema in (
                (made.events_path, events_schema(data, sequence)),
                (path, rules.schema(data, sequence)),
            ):
                DeltaTable.create(
                    place, schema, mode="ignore", raise_if_key_not_exists=False,
                    configuration={**lake.PROPERTIES, **(properties or {}), RULES: json.dumps(asdict(rules))},
                    storage_options=options_of(place),
                )  # fmt: skip
        return made

    @staticmethod
    def open(path: str) -> HistoryTable:
        """Opens the history at a path.

        Raises:
            ConfigError: there is no history.
        """
        said = open_table(path).metadata().configuration.get(RULES) if lake.exists(path) else None
        if said is None:
            raise ConfigError("there is no history", where=path, hint="create one: HistoryTable.make")
        settings = json.loads(said)
        for name in ("key", "columns", "tracked"):
            settings[name] = None if settings[name] is None else tuple(settings[name])
        return HistoryTable(path, HistoryRules(**settings), lake.arrow_schema(path).field(START_AT).type)

    def _grown(self, rules: HistoryRules, data: pa.Schema, older: Mapping[str, pa.Array]) -> HistoryTable:
        """Adds columns. The rules are written last, so that a crash before that repeats the step."""
        new = [data.field(n) for n in rules.columns if n not in self.rules.columns]
        check_rules(rules, pa.schema([*self.data, *new]), self.path)
        for path in (self.events_path, self.path):
            lake.add_columns(path, new)
            fill_columns(path, {f.name: older[f.name] for f in new if f.name in older})
            reach("history.columns")
        open_table(self.path).alter.set_table_properties(
            {RULES: json.dumps(asdict(rules))}, raise_if_not_exists=False
        )
        return HistoryTable(self.path, rules, self.sequence)

    @property
    def events_path(self) -> str:
        """Folder of the events' Delta table."""
        return f"{self.path.rstrip('/')}/{EVENTS}"

    @property
    def data(self) -> pa.Schema:
        """Names and types of the data columns."""
        have = lake.arrow_schema(self.path)
        return pa.schema([have.field(n) for n in self.rules.columns])

    def apply(
        self, events: pa.Table, *, flow: str = "", batch: int | None = None, at: dt.datetime | None = None
    ) -> HistoryBatch:
        """Applies events.

        Args:
            events: data columns, `__sequence`, `__operation` (`U`, `D`, `T`), and optionally `__carries` and
                `__time`; see `engine.history_events`.
            flow: name of the sender.
            batch: the flow's number of this batch; a batch that was applied is not applied again.
            at: system time for a bitemporal history; now by default.

        Raises:
            ConfigError: a column is missing, or has another type.
            ConcurrentCommitError: another process writes to the history, too.
        """
        taken = batch is not None and order_key(lake.reached(self.events().delta, flow_app_id(flow))) >= batch
        return self.take(events, {} if batch is None else {flow_app_id(flow): batch}, at=at, taken=taken)

    def take(
        self,
        events: pa.Table,
        progress: Mapping[str, int],
        *,
        at: dt.datetime | None = None,
        taken: bool = False,
    ) -> HistoryBatch:
        """Applies events like `apply`, with progress that is stored with the events.

        `taken` means that the events are stored already.
        """
        there = self.events()
        found = clean_events(conform_events(events, there.schema, self.path), self.rules.key)
        found = reject_late(found, there.horizon)
        aside = found.aside.num_rows
        if taken:
            known, aside = found.events.num_rows, 0
        else:
            known = there.append(found, progress)
        settled = self._settled(at or dt.datetime.now(dt.timezone.utc))
        if (order_key(there.number) + 1) % MAINTAIN_EVERY == MAINTAIN_EVERY - 1:
            self.maintain()
        return HistoryBatch(settled.added.num_rows, len(settled.removed), aside, known)

    @property
    def has_pending_events(self) -> bool:
        """Whether stored events are not in the versions yet; after a crash, if no other process writes."""
        return order_key(self.events().number) > order_key(lake.reached(open_table(self.path), APP))

    def finish(self) -> None:
        """Applies events that a crash left out of the versions.

        Raises:
            ConcurrentCommitError: another process writes to the history, too.
        """
        if self.has_pending_events:
            self._settled(dt.datetime.now(dt.timezone.utc))

    def _settled(self, at: dt.datetime) -> HistoryUpdate:
        for _ in range(_TRIES):
            with suppress(CommitFailedError):
                return self._settle(at)
        raise ConcurrentCommitError(
            "another process keeps writing to the history", where=self.path, hint="use one writing process"
        )

    def current(self) -> Result:
        """Returns the rows that are valid now."""
        return self._result(ds.field(END_AT).is_null())

    def as_of(self, sequence: object, *, system: dt.datetime | None = None) -> Result:
        """Returns the rows at a sequence (included).

        Args:
            sequence: a value of the sequence. For a history that follows a change table: a time, a
                `change_seq` or a change number.
            system: for a bitemporal history, the system time whose knowledge is used.

        Raises:
            ConfigError: it is not a value of the sequence, or not a position.
            UnsupportedError: a history of type 1 keeps no older rows.
        """
        if self.rules.scd_type == 1:
            raise UnsupportedError("a history of type 1 has the newest rows only", where=self.path)
        return self._result(self._places.valid(sequence), system)

    def versions(self, *, system: dt.datetime | None = None) -> Result:
        """Returns all versions; of a bitemporal history those known now, or at a system time."""
        return self._result(None, system)

    def rejects(self) -> Result:
        """Returns the rejected events, each once, with the reason in `why`."""
        return Result.of(self.events().rejects())

    def forget(self, before: object) -> int:
        """Removes the events before a position and returns their number. Versions stay.

        Later events for a position before it are rejected. Positions are those of `as_of`.

        Raises:
            ConfigError: it is not a value of the sequence, or not a position.
            PositionError: a history that follows a change table has not reached it.
            OvertakenError, ConcurrentCommitError: another process writes to the history, too.
        """
        self._settled(dt.datetime.now(dt.timezone.utc))
        there = self.events()
        at = self._places.cut(before, there)
        if there.horizon.is_valid and pc.less_equal(at, there.horizon).as_py():
            return 0
        inside = (ds.field(START_AT) < at) & (ds.field(END_AT).is_null() | (ds.field(END_AT) >= at))
        rows = self._result(inside).table()
        gone = there.forget(at, rows, START_AT)
        if gone is None:
            raise OvertakenError("another process writes to the history", where=self.path)
        return gone

    def maintain(self, *, vacuum_after_s: float = VACUUM_AFTER_S) -> None:
        """Joins small files of events, and deletes files that no version within a time needs. `apply` calls
        it regularly."""
        lake.compact(self.events_path, SMALL_FILES)
        for path in (self.events_path, self.path):
            thin(path, Past(vacuum_after_s))
            sweep(path)

    def events(self) -> HistoryEvents:
        """Returns the current version of its events."""
        return HistoryEvents.at(self.events_path, self.rules.key, self.data, self.sequence)

    @property
    def _places(self) -> HistoryPositions:
        follows = FOLLOWS in open_table(self.path).metadata().configuration
        return HistoryPositions(self.path, self.sequence, follows)

    def _result(self, which: ds.Expression | None, system: dt.datetime | None = None) -> Result:
        if self.rules.bitemporal:
            known = ds.field(SYSTEM_TO).is_null()
            if system is not None:
                known = (ds.field(SYSTEM_FROM) <= system) & (known | (ds.field(SYSTEM_TO) > system))
            which = known if which is None else which & known
        elif system is not None:
            raise PositionError("the history is not bitemporal: it keeps no system times", where=self.path)
        schema = lake.arrow_schema(self.path)
        data = lake.dataset(open_table(self.path))
        return Result(schema, lambda: (b.cast(schema) for b in data.to_batches(filter=which)))

    def _settle(self, at: dt.datetime) -> HistoryUpdate:
        """Applies stored events to the versions."""
        delta, there = open_table(self.path), self.events()
        done = lake.reached(delta, APP)
        new = there.after(done)
        files = HistoryFiles(self.path, delta, lake.arrow_schema(self.path))
        since, cut = StartPerKey.of(new, self.rules.key), first_truncate(new)
        if cut.is_valid:
            truncates = new.filter(pc.equal(new[OPERATION], TRUNCATE_EVENT))
            since = since.also(files.cut(truncates, self.rules.key))

        def read() -> tuple[pa.Table, pa.Table]:
            return there.stored_for(since, cut, done), files.read(since)

        known, rows = read()
        if (earlier := earlier_starts(known, rows, self.rules, since)) is not None:
            since = since.also(earlier)
            known, rows = read()
        settled = update_history(new, known, rows, self.rules, since)
        gone = rows.take(pa.array(settled.removed))
        came = self._with_system_times(settled.added, gone, at)
        files.exchange(gone.select([FILE, ROW]), came, {} if there.number is None else {APP: there.number})
        return settled

    def _with_system_times(self, came: pa.Table, gone: pa.Table, at: dt.datetime) -> pa.Table:
        """Returns the versions to write: new ones and, in a bitemporal history, those that they replace."""
        if not self.rules.bitemporal:
            return came
        now = pa.scalar(at, pa.timestamp("us", "UTC"))
        fresh = came.append_column(SYSTEM_FROM, pa.repeat(now, came.num_rows))
        fresh = fresh.append_column(SYSTEM_TO, pa.nulls(came.num_rows, now.type))
        old = gone.select([n for n in gone.column_names if n not in (FILE, ROW, SYSTEM_TO)])
        old = old.append_column(SYSTEM_TO, pa.repeat(now, gone.num_rows))
        return pa.concat_tables([fresh, old.select(fresh.column_names).cast(fresh.schema)])


def last_batch(path: str, flow: str) -> int | None:
    """Returns the last batch of a flow that the history at a path has, or None."""
    if not lake.exists(path):
        return None
    return lake.reached(open_table(f"{path.rstrip('/')}/{EVENTS}"), flow_app_id(flow))
