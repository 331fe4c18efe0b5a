"""One store batch: LOG records in, change tables and TRACKING out.

Each batch is one job, whatever the number of tables: its tasks (`running.py`) decode and write Parquet parts
(`task.py`), the driver commits them. Order: change tables, the `stored` record, TRACKING. Each commit carries
the change number reached and is skipped if the table has it already, so a replayed batch, whole or with other
boundaries, changes nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ..config.policies import EVERYTHING, Policy
from ..errors import UnsupportedError
from ..execution import thread_pool
from ..lake import delta as lake
from ..lake import log
from ..lake.failpoints import reach
from ..model.change import Relation
from ..model.positions import ChangeNumber, ChangeSeq, Position, order_key
from ..model.types import header_schema
from ..state.declarations import QUARANTINE
from ..state.ledger import STORE_APP, Stored, write_stored
from . import gaps, tracking
from .kept import KEPT_APP
from .running import Run
from .tables import as_kept, ensure
from .task import KeptLayout, StorePlan, StoreResult, TablePlan
from .unstorable import TableSuspensions

_Versions = list[tuple[int, Relation]]
"""A relation's layouts, each with the change number from which it is valid."""
_SIDE_BY_SIDE = 8
"""With at least this number of change tables, commits are made by several threads."""


@dataclass(frozen=True)
class StorePaths:
    """Paths of a store batch: Delta tables that are read and written, and per table name the path and policy
    of the change table; `log`: LOG's path; `passed`: the change number up to which no target needs anything
    from LOG."""

    relations: str
    tracking: str
    stored: str
    quarantine: str
    changes: Callable[[str], str]
    policy: Callable[[str], Policy] = lambda _: EVERYTHING
    log: str = ""
    passed: Callable[[], int | None] = lambda: None


class Store:
    """Stores batches of LOG records; holds the layouts and the change number stored per change table.

    `suspend`: suspends tables for changes that their change tables cannot hold, before the batch is visible;
    None: values become NULL, and a layout causes an error.
    """

    def __init__(self, paths: StorePaths, *, suspend: TableSuspensions | None = None) -> None:
        self._paths, self._suspend = paths, suspend
        self._layouts: dict[int, _Versions] = {}
        self._seen: int | None = None
        self._history: list[log.Layout] = []
        self._plans: dict[int, TablePlan] = {}
        self._refused: dict[tuple[int, int], UnsupportedError] = {}  # layouts, by relation and start
        lake.create(paths.tracking, tracking.SCHEMA)
        self._tracking_after = order_key(lake.progress(paths.tracking, STORE_APP))
        self._stored_after = order_key(lake.progress(paths.stored, STORE_APP))
        self._bad_after = order_key(lake.progress(paths.quarantine, STORE_APP))

    @property
    def reached(self) -> int:
        """The change number up to which everything is stored; -1 if nothing is stored."""
        return self._tracking_after

    def batch(self, run: Run) -> Stored | None:
        """Stores the records of one batch, whose tasks `run` runs; returns what was stored, or None if there
        was nothing new."""
        self._refresh()
        plan = StorePlan(
            self._plans,
            self._paths.tracking,
            self._tracking_after,
            self._paths.quarantine,
            self._stored_after,
            self._bad_after,
        )
        found = self._results(run, plan)
        runs = [(first, last) for one in found if one.kind == "numbers" for first, last in one.info["runs"]]
        gaps.refuse(gaps.missing(self._tracking_after, runs), self._paths.log)
        commits = [one.info for one in found if one.kind == "commit"]
        end = max((c["number"] for c in commits), default=self._tracking_after)
        gaps.refuse_half(runs, end, self._paths.log)
        if end <= self._tracking_after:
            return None
        last = max(commits, key=lambda c: c["number"])
        return self._commit(found, last)

    def begin(self) -> int:
        """Checks that LOG has everything that is not stored yet; returns the change number to continue after.

        If only records that no target needs are missing, the store continues after them, and marks change
        tables and TRACKING as complete from there on.

        Raises:
            PositionError: records are missing, or LOG is another one.
        """
        lost = gaps.holes(self._paths.log, self._tracking_after)
        if lost:
            self._refresh()
            last = lost[-1][1]
            if last > order_key(self._paths.passed()):
                gaps.refuse(lost, self._paths.log)
            # A change table is ahead of TRACKING if a batch ended in between.
            self._plans = {relid: replace(p, after=max(p.after, last)) for relid, p in self._plans.items()}
            reached = {p.path: p.after for p in self._plans.values() if lake.exists(p.path)}
            for path, after in (*sorted(reached.items()), (self._paths.tracking, last)):
                reach("store.behind")
                lake.commit(path, [], progress={KEPT_APP: last, STORE_APP: after})
            self._tracking_after = last
        return self._tracking_after

    def _results(self, run: Run, plan: StorePlan) -> Sequence[StoreResult]:
        try:
            return run(plan)
        except Exception:
            if self._paths.log:  # the cause may be a missing file
                gaps.refuse(gaps.holes(self._paths.log, self._tracking_after), self._paths.log)
            raise

    def _commit(self, found: Sequence[StoreResult], last: Mapping[str, object]) -> Stored:
        upto = int(str(last["number"]))
        progress = {STORE_APP: upto}
        parts: dict[tuple[str, int], list[lake.AddedFile]] = {}
        counts: dict[int, dict[str, int]] = {}
        for one in found:
            if one.file is not None:
                parts.setdefault((one.kind, one.relid or 0), []).append(one.file)
            if one.kind == "changes":
                size = {} if one.file is None else {"bytes": one.file.size}
                _add(counts.setdefault(one.relid or 0, {}), {**one.info, **size})
        self._suspend_for(found)  # before values are quarantined: these are not reported again
        if bad := parts.get(("quarantine", 0)):
            lake.create(self._paths.quarantine, QUARANTINE)
            reach("store.quarantine")
            lake.commit(
                self._paths.quarantine, bad, progress=progress, after={STORE_APP: _known(self._bad_after)}
            )
            self._bad_after = upto
        # By path, not by relation: a table that was dropped and created again has two relation ids and one
        # change table.
        relids: dict[str, list[int]] = {}
        for relid, plan in self._plans.items():
            relids.setdefault(plan.path, []).append(relid)

        def change_table(path: str) -> None:
            mine = relids[path]
            if files := [f for relid in mine for f in parts.get(("changes", relid), [])]:
                reach("store.change_table")
                after = {STORE_APP: _known(self._plans[mine[0]].after)}  # the rows are derived from it
                lake.commit(path, files, progress=progress, after=after)
                self._plans |= {relid: replace(self._plans[relid], after=upto) for relid in mine}

        with thread_pool("store", worth=len(relids) >= _SIDE_BY_SIDE) as pool:
            list(pool.map(change_table, sorted(relids)))
        tables: dict[str, dict[str, int]] = {}
        for relid, mine in counts.items():
            _add(tables.setdefault(self._plans[relid].table, {}), mine)
        done = Stored(
            ChangeNumber(upto),
            ChangeSeq(str(last["change_seq"])),
            Position(str(last["position"])),
            dt.datetime.fromtimestamp(int(str(last["commit_us"])) / 1e6, dt.timezone.utc),
            tables,
        )
        reach("store.stored")
        by_table = {p.table: relid for relid, p in self._plans.items()}
        write_stored(self._paths.stored, done, by_table, {STORE_APP: _known(self._stored_after)})
        self._stored_after = max(upto, self._stored_after)
        reach("store.tracking")
        tracked, after = parts.get(("tracking", 0), []), {STORE_APP: _known(self._tracking_after)}
        lake.commit(self._paths.tracking, tracked, progress=progress, after=after)
        reach("store.tracked")
        self._tracking_after = upto
        return done

    def _suspend_for(self, found: Sequence[StoreResult]) -> None:
        if self._suspend is None:
            return
        self._suspend.for_values(v for one in found for v in one.info.get("bad", ()))
        for one in found:
            if one.kind == "left":
                left = one.info["left"]
                self._suspend.for_layout(left, self._refused[left.relid, left.start])

    def _refresh(self) -> None:
        """Reads layouts that capture has recorded since the last batch."""
        newest = lake.version(self._paths.relations)
        if newest == self._seen:
            return
        self._history = log.layouts(self._paths.relations)
        self._seen = newest
        by_relid: dict[int, _Versions] = {}
        names: set[str] = set()
        for one in self._history:
            # The first layout is valid from the beginning; that of a table created again from where it
            # appeared.
            again = one.relation.relid in by_relid or one.relation.table in names
            names.add(one.relation.table)
            start = log.number(one) if again else 0
            by_relid.setdefault(one.relation.relid, []).append((start, one.relation))
        for relid, layouts in by_relid.items():
            if (seen := self._layouts.get(relid, [])) != layouts:
                for start, layout in layouts[max(len(seen) - 1, 0) :]:
                    self._adapt(relid, self._changes(layouts), start, layout)
        # Two relations may have one change table (dropped and created again): each writes its newest schema,
        # in which columns of the earlier one may have other names.
        paths = {path for path in map(self._changes, by_relid.values()) if lake.exists(path)}
        schemas = {path: lake.arrow_schema(path) for path in paths}
        self._plans = {k: self._plan(k, layouts, schemas) for k, layouts in by_relid.items()}
        self._layouts = by_relid

    def _adapt(self, relid: int, path: str, start: int, layout: Relation) -> None:
        """Adapts a change table to a layout, or records that it cannot hold it."""
        try:
            ensure(path, layout, start)
        except UnsupportedError as error:
            if self._suspend is None:
                raise
            self._refused[relid, start] = error

    def _changes(self, layouts: _Versions) -> str:
        """Returns the path of a relation's change table; a table keeps the name under which it was first
        seen."""
        return self._paths.changes(layouts[0][1].table)

    def _plan(self, relid: int, layouts: _Versions, schemas: Mapping[str, pa.Schema]) -> TablePlan:
        known, name, path = self._plans.get(relid), layouts[0][1].table, self._changes(layouts)
        schema = schemas.get(path, header_schema())
        if known and known.schema == schema and self._layouts[relid] == layouts:
            return known
        after = known.after if known else order_key(lake.progress(path, STORE_APP))
        policy = self._paths.policy(name)
        layouts_kept = tuple(
            KeptLayout(
                start,
                as_kept(schema, layout, start),
                tuple(policy.of(layout)),
                refused=(relid, start) in self._refused,
            )
            for start, layout in layouts
        )
        return TablePlan(name, path, schema, layouts_kept, after, policy.level)


def _known(number: int) -> ChangeNumber | None:
    """A change number as `lake.commit` expects it: None for -1."""
    return None if number < 0 else ChangeNumber(number)


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for k, v in more.items():
        total[k] = total.get(k, 0) + v
