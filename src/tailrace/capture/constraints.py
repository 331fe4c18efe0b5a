"""Copies NOT NULL, defaults and enums of a PostgreSQL source to a PostgreSQL target (`target.not_null`,
`defaults`, `enums`).

While a task is captured, its targets follow the source's catalog.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from ..apply.mapping.table_map import task_map
from ..apply.targets.postgresql.constraint_notes import TABLE
from ..apply.targets.postgresql.constraints import ConstraintSync, WantedConstraints
from ..apply.targets.postgresql.other_table import noted
from ..apply.targets.postgresql.place import Place, locked, session
from ..apply.targets.postgresql.progress import TABLE as PROGRESS
from ..config.task import Task
from ..errors import ApplyError, TailraceError
from ..lake import guards
from ..model.change import Relation
from ..sources.postgresql.column_declarations import Declared, declared
from ..sources.postgresql.connect import Session, asking, connect
from ..sources.postgresql.locks import PATIENCE
from ..state.layouts import policy
from ..state.open_warnings import CAPTURE, OpenWarnings

logger = logging.getLogger("tailrace.capture")
EVERY_S = 10.0
AGAIN_S = 3600.0
"""Seconds after which a statement that the target rejected is tried and reported again."""
_LOCK_WAIT = "5s"
_TARGETS = """
SELECT p."table", p.target, p.layout, to_regclass(p.target)::oid::bigint, {notes}
FROM {progress} p WHERE p.task = %s AND coalesce(to_jsonb(p) ->> 'part', '') = ''
    AND NOT coalesce((to_jsonb(p) ->> 'adopted')::boolean, false)
    AND to_regclass(p.target)::oid::bigint = coalesce({noted}, to_regclass(p.target)::oid::bigint)
ORDER BY 1
"""
_NOTES = """
(SELECT string_agg(n::text, ' ' ORDER BY attnum, kind) FROM {table} n WHERE relid = to_regclass(p.target))
"""


@dataclass(frozen=True)
class _Target:
    """A target table: its name as quoted SQL, its layout, its oid, and the notes of copied constraints."""

    table: str
    target: str
    layout: Relation
    oid: int
    notes: str | None


class ConstraintWatch:
    """Applies the source's declarations to a task's targets, during one run of capture."""

    def __init__(self, task: Task) -> None:
        self._task = task
        wanted = WantedConstraints(task.target.not_null, task.target.defaults, task.target.enums)
        self._place = Place.of(task.target.database) if task.target.database else None
        self._wanted = wanted
        self._seen: dict[str, object] = {}
        self._failed: dict[str, dict[tuple[int, str], str]] = {}
        self._open = OpenWarnings(task, CAPTURE)
        self._began = time.monotonic()

    @contextmanager
    def watched(self, stop: threading.Event, *, once: bool) -> Iterator[None]:
        """Checks every few seconds until the block ends and, with `once`, one last time then."""
        if self._place is None or not self._wanted:
            yield
            return
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(stop, over), daemon=True, name="declared")
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()
        if once:
            self.check()

    def _watch(self, stop: threading.Event, over: threading.Event) -> None:
        while not over.wait(EVERY_S) and not stop.is_set():
            try:
                self.check()
            except (TailraceError, psycopg.Error) as error:  # the source or target does not answer
                logger.info("constraints of the source were not copied to the target: %s", error)

    def check(self) -> None:
        """Alters every target that differs from its source's declarations.

        Raises:
            TailraceError: source or target does not answer.
        """
        task, place = self._task, self._place
        assert place is not None  # noqa: S101 - `watched` has checked it
        if time.monotonic() - self._began > AGAIN_S:
            self._began, self._failed, self._seen = time.monotonic(), {}, {}
        with session(place, place.label) as on:
            targets = self._targets(on, place)
        if not targets:
            return
        with asking(task.name):
            source = connect(task.source.url)
            try:
                source.execute(f"set lock_timeout = '{PATIENCE}'")  # reading an expression needs a lock
                found = declared(source, [one.layout.relid for one in targets])
            finally:
                source.close()
        for one in targets:
            said = found.get(one.layout.relid, [])
            if said and self._seen.get(one.table) != (one, said):
                guards.check()
                try:
                    self._sync(place, one, said)
                except ApplyError as error:  # it is in use, or was just renamed
                    logger.info("%s is altered later: %s", one.table, error, extra={"table": one.table})
                else:
                    self._seen[one.table] = one, said
        refused = {t: "; ".join(said.values()) for t, said in self._failed.items() if said}
        self._open.hold("constraints", refused)

    def _targets(self, on: Session, place: Place) -> list[_Target]:
        """Returns the targets that may be altered: copies of their sources that this task created."""
        own, progress = place.own(TABLE), place.own(PROGRESS)
        query = "SELECT to_regclass(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL"
        there = on.execute(query, (progress, own)).fetchone()
        if there is None or not there[0]:
            return []
        notes = _NOTES.format(table=own) if there[1] else "NULL"
        query = _TARGETS.format(progress=progress, notes=notes, noted=noted("p"))
        rows = on.execute(query.encode(), (self._task.name,)).fetchall()
        made = (
            _Target(t, target, Relation.from_json(layout), oid, notes)
            for t, target, layout, oid, notes in rows
        )
        return [one for one in made if self._follows(one.table)]

    def _follows(self, table: str) -> bool:
        return task_map(self._task, table).plain and self._task.table(table).rule_mode != "archive"

    def _sync(self, place: Place, one: _Target, said: list[Declared]) -> None:
        hidden = policy(self._task, one.table, one.layout).hidden(one.layout)
        failed = self._failed.setdefault(one.table, {})
        with locked(place, self._task.name, one.table) as on:
            on.execute(f"SET lock_timeout = '{_LOCK_WAIT}'")
            ConstraintSync(on, place, one.target, one.layout, said, self._wanted, hidden, failed).run()
