"""A history that is kept in a Delta table, and takes events in whatever order they come.

In addition to its versions, a history keeps its events (folder `_events`): whatever the order, the batches
and the repetitions in which they came, the versions are those that all of them make together. Events are
written first; what a crash kept out of the versions is done by the next batch, or by `finish`.
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

from ..engine.event_rows import EMPTIED, OPERATION, cleaned, placed
from ..engine.history import END_AT, START_AT
from ..engine.kept_history import SYSTEM_FROM, SYSTEM_TO, HistoryRules, Settled, Since, settle, sooner
from ..errors import ConcurrentCommitError, ConfigError, OvertakenError, PositionError, UnsupportedError, room
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..lake.thinning import Past, sweep, thin
from ..model.types import plain_schema
from .history_checks import conformed, differences, refuse
from .history_events import APP, HistoryEvents, first_cut, flow_app, stored
from .history_files import FILE, ROW, HistoryFiles, filled
from .history_places import FOLLOWS, HistoryPlaces
from .result import Result

EVENTS = "_events"
"""The folder of a history's events, in its own."""
RULES = "tailrace.history"
"""The table property that says what a history keeps, as JSON."""
_HINT = "give it another path, or make it anew"
_TRIES = 20
VACUUM_AFTER_S = 7 * 86_400.0
MAINTAIN_EVERY, SMALL_FILES = 100, 16
"""Batches between two times of maintenance, and the small files that it joins."""


@dataclass(frozen=True)
class HistoryBatch:
    """What a batch did: versions that came and went, events set aside, events that were known."""

    came: int = 0
    gone: int = 0
    aside: int = 0
    known: int = 0


@dataclass(frozen=True)
class HistoryTable:
    """A history: its Delta table's path, and what it keeps."""

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
        """The history at a path, made when there is none. One that is there gets the columns that it has not
        got yet.

        Args:
            path: of its Delta table.
            data: names and types of the data columns.
            rules: what it keeps.
            sequence: the type of what orders its events.
            properties: of a new table, in addition to its own.
            older: the values that new columns have in all versions of before; NULL by default.

        Raises:
            ConfigError: there is another table, or a history that keeps something else; a key column is not
                there.
        """
        refuse(rules, data, path)
        if lake.exists(path):
            found = HistoryTable.open(path)
            grown = found.rules.grown(rules)
            if grown is None or found.sequence != sequence:
                raise ConfigError(
                    "the history that is there keeps something else: "
                    + differences((found.rules, found.sequence), (rules, sequence)),
                    where=path,
                    hint=_HINT,
                )
            return found if grown == found.rules else found._grown(grown, plain_schema(data), older or {})
        made = HistoryTable(path, rules, sequence)
        data = plain_schema(data)
        with room(path):
            for place, schema in (
                (made.events_path, stored(data, sequence)),
                (path, rules.schema(data, sequence)),
            ):
                DeltaTable.create(
                    place, schema, mode="ignore", raise_if_key_not_exists=False,
                    configuration={**lake.PROPERTIES, **(properties or {}), RULES: json.dumps(asdict(rules))},
                )  # fmt: skip
        return made

    @staticmethod
    def open(path: str) -> HistoryTable:
        """The history at a path.

        Raises:
            ConfigError: there is none.
        """
        said = DeltaTable(path).metadata().configuration.get(RULES) if lake.exists(path) else None
        if said is None:
            raise ConfigError("there is no history", where=path, hint="make one: HistoryTable.make")
        settings = json.loads(said)
        for name in ("key", "columns", "tracked"):
            settings[name] = None if settings[name] is None else tuple(settings[name])
        return HistoryTable(path, HistoryRules(**settings), lake.arrow_schema(path).field(START_AT).type)

    def _grown(self, rules: HistoryRules, data: pa.Schema, older: Mapping[str, pa.Array]) -> HistoryTable:
        """With more columns. The rules are the last to know them: until then the same is done again."""
        new = [data.field(n) for n in rules.columns if n not in self.rules.columns]
        refuse(rules, pa.schema([*self.data, *new]), self.path)
        for path in (self.events_path, self.path):
            lake.add_columns(path, new)
            filled(path, {f.name: older[f.name] for f in new if f.name in older})
            reach("history.columns")
        DeltaTable(self.path).alter.set_table_properties(
            {RULES: json.dumps(asdict(rules))}, raise_if_not_exists=False
        )
        return HistoryTable(self.path, rules, self.sequence)

    @property
    def events_path(self) -> str:
        """The Delta table of its events."""
        return f"{self.path.rstrip('/')}/{EVENTS}"

    @property
    def data(self) -> pa.Schema:
        """Names and types of its data columns."""
        have = lake.arrow_schema(self.path)
        return pa.schema([have.field(n) for n in self.rules.columns])

    def apply(
        self, events: pa.Table, *, flow: str = "", batch: int | None = None, at: dt.datetime | None = None
    ) -> HistoryBatch:
        """Takes events.

        Args:
            events: data columns, `__sequence`, `__operation` (`U`, `D`, `T`), and, where known, `__carries`
                and `__time`; see `engine.event_rows`.
            flow: who sends them; batch: its number of this batch: one that was taken is not taken again.
            at: with a bitemporal history, the system's time; now by default.

        Raises:
            ConfigError: a column is missing, or has another type.
            ConcurrentCommitError: another process writes to the history, too.
        """
        taken = batch is not None and lake.reached(self.events().delta, flow_app(flow)) >= batch
        return self.take(events, {} if batch is None else {flow_app(flow): batch}, at=at, taken=taken)

    def take(
        self,
        events: pa.Table,
        progress: Mapping[str, int],
        *,
        at: dt.datetime | None = None,
        taken: bool = False,
    ) -> HistoryBatch:
        """The same with the progress that is noted with the events; `taken`: they are there already."""
        there = self.events()
        found = cleaned(conformed(events, there.schema, self.path), self.rules.key)
        found = placed(found, there.horizon)
        aside = found.aside.num_rows
        if taken:
            known, aside = found.events.num_rows, 0
        else:
            known = there.append(found, progress)
        settled = self._settled(at or dt.datetime.now(dt.timezone.utc))
        if (there.number + 1) % MAINTAIN_EVERY == MAINTAIN_EVERY - 1:
            self.maintain()
        return HistoryBatch(settled.came.num_rows, len(settled.gone), aside, known)

    @property
    def cut_off(self) -> bool:
        """Whether events are not in the versions yet: a crash kept them out, if nobody else writes."""
        return self.events().number > lake.reached(DeltaTable(self.path), APP)

    def finish(self) -> None:
        """Does what a crash kept out of the versions.

        Raises:
            ConcurrentCommitError: another process writes to the history, too.
        """
        if self.cut_off:
            self._settled(dt.datetime.now(dt.timezone.utc))

    def _settled(self, at: dt.datetime) -> Settled:
        for _ in range(_TRIES):
            with suppress(CommitFailedError):
                return self._settle(at)
        raise ConcurrentCommitError(
            "another process writes to the history all the time", where=self.path, hint="let one write to it"
        )

    def current(self) -> Result:
        """The rows that are in force."""
        return self._result(ds.field(END_AT).is_null())

    def as_of(self, sequence: object, *, system: dt.datetime | None = None) -> Result:
        """The rows as they stood at a sequence (included); of a history that follows a change table at a
        time, a `change_seq` or a change number. `system`: as a bitemporal history knew it then.

        Raises:
            ConfigError: it is no value of the sequence, or no place.
            UnsupportedError: type 1 keeps no older rows.
        """
        if self.rules.scd_type == 1:
            raise UnsupportedError("a history of type 1 has the newest rows only", where=self.path)
        return self._result(self._places.valid(sequence), system)

    def versions(self, *, system: dt.datetime | None = None) -> Result:
        """All versions; of a bitemporal history those that it knows now, or knew at a time."""
        return self._result(None, system)

    def aside(self) -> Result:
        """Events that do not count, each once, with the reason in `why`."""
        return Result.of(self.events().aside())

    def forget(self, before: object) -> int:
        """Takes out the events before a place (as `as_of` takes it); versions stay. Events that come for a
        place before it are then set aside; how many events are gone.

        Raises:
            ConfigError: it is no value of the sequence, or no place.
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
        """Joins small files of events, and deletes files that no version within a time needs. `apply` does it
        once in a while."""
        lake.compact(self.events_path, SMALL_FILES)
        for path in (self.events_path, self.path):
            thin(path, Past(vacuum_after_s))
            sweep(path)

    def events(self) -> HistoryEvents:
        """Its events, as of now."""
        return HistoryEvents.at(self.events_path, self.rules.key, self.data, self.sequence)

    @property
    def _places(self) -> HistoryPlaces:
        follows = FOLLOWS in DeltaTable(self.path).metadata().configuration
        return HistoryPlaces(self.path, self.sequence, follows)

    def _result(self, which: ds.Expression | None, system: dt.datetime | None = None) -> Result:
        if self.rules.bitemporal:
            known = ds.field(SYSTEM_TO).is_null()
            if system is not None:
                known = (ds.field(SYSTEM_FROM) <= system) & (known | (ds.field(SYSTEM_TO) > system))
            which = known if which is None else which & known
        elif system is not None:
            raise PositionError("the history is not bitemporal: it keeps no system times", where=self.path)
        schema = lake.arrow_schema(self.path)
        data = lake.dataset(DeltaTable(self.path))
        return Result(schema, lambda: (b.cast(schema) for b in data.to_batches(filter=which)))

    def _settle(self, at: dt.datetime) -> Settled:
        """Does what the stored events change in the versions."""
        delta, there = DeltaTable(self.path), self.events()
        done = lake.reached(delta, APP)
        new = there.after(done)
        files = HistoryFiles(self.path, delta, lake.arrow_schema(self.path))
        since, cut = Since.of(new, self.rules.key), first_cut(new)
        if cut.is_valid:
            truncates = new.filter(pc.equal(new[OPERATION], EMPTIED))
            since = since.also(files.cut(truncates, self.rules.key))

        def read() -> tuple[pa.Table, pa.Table]:
            return there.known(since, cut, done), files.read(since)

        known, rows = read()
        if (earlier := sooner(known, rows, self.rules, since)) is not None:
            since = since.also(earlier)
            known, rows = read()
        settled = settle(new, known, rows, self.rules, since)
        gone = rows.take(pa.array(settled.gone))
        came = self._with_system_times(settled.came, gone, at)
        files.exchange(gone.select([FILE, ROW]), came, {APP: there.number})
        return settled

    def _with_system_times(self, came: pa.Table, gone: pa.Table, at: dt.datetime) -> pa.Table:
        """The versions that are written: those that came, and, in a bitemporal history, those that they
        replace."""
        if not self.rules.bitemporal:
            return came
        now = pa.scalar(at, pa.timestamp("us", "UTC"))
        fresh = came.append_column(SYSTEM_FROM, pa.repeat(now, came.num_rows))
        fresh = fresh.append_column(SYSTEM_TO, pa.nulls(came.num_rows, now.type))
        old = gone.select([n for n in gone.column_names if n not in (FILE, ROW, SYSTEM_TO)])
        old = old.append_column(SYSTEM_TO, pa.repeat(now, gone.num_rows))
        return pa.concat_tables([fresh, old.select(fresh.column_names).cast(fresh.schema)])


def batch_of(path: str, flow: str) -> int | None:
    """The last batch of a flow that the history at a path has; None: none."""
    if not lake.exists(path):
        return None
    found = lake.reached(DeltaTable(f"{path.rstrip('/')}/{EVENTS}"), flow_app(flow))
    return None if found < 0 else found
