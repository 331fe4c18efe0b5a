"""A target in memory that takes nothing on trust: one change after the other, each must meet what it expects,
and a batch may hold nothing that its counts rule out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tailrace.errors import ApplyError, TailraceError
from tailrace.model import mask
from tailrace.model.change import PREFIX, Relation
from tailrace.model.positions import ChangeNumber, order_key
from tailrace.model.sequence import number_of
from tailrace.store.tables import kept_as
from tailrace.targets.base import Constraints
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.merge_result import ApplyOutcome, MergeResult
from tailrace.targets.multi_source import TargetLocation
from tailrace.targets.plans import SPECIAL

from .ram import RamLake

Values = dict[int, object]


class Find(BaseException):
    """Something that must never be: its kind, and what was seen. Not an Exception: the code under test would
    take it for a failure of the target."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind, self.what = kind, what

    def __reduce__(self) -> tuple[object, ...]:
        return Find, (self.kind, self.what)


PASSED_OVER: set[str] = set()
"""Kinds of finds that are known: a schedule goes on behind them."""


def found(kind: str, what: str) -> None:
    """Raises Find, but for a kind that is passed over."""
    if kind not in PASSED_OVER:
        raise Find(kind, what)


class NotFitError(ApplyError):
    """What a batch is refused with when the schedule says so."""


@dataclass(frozen=True)
class Image:
    """A change row: its number, operation, the columns it carries."""

    number: int
    oper: str
    position: str
    values: Values


@dataclass(frozen=True)
class Held:
    """What the target has of one table; each change makes another one."""

    relation: Relation
    rows: dict[object, Values] = field(default_factory=dict)
    progress: ChangeNumber | None = None
    versions: int = 0

    def shown(self) -> list[tuple[object, ...]]:
        columns = self.relation.columns
        return sorted((tuple(r.get(c.attnum) for c in columns) for r in self.rows.values()), key=repr)


def images(ram: RamLake, one: ChangeBatch) -> list[Image]:
    """The rows of a batch, as `ChangeBatch.read` chooses them."""
    table = ram.rows(one.changes)
    names = table.column_names
    at = {
        c.attnum: names.index(k)
        for c in one.relation.columns
        if (k := kept_as(names, c.name, one.range.end)) in names
    }
    made = []
    for row in table.to_pylist():
        number = number_of(row[PREFIX + "change_seq"])
        if not one.range.lower < number <= one.range.end or row[PREFIX + "stream_position"] < one.position:
            continue
        carried = row[PREFIX + "column_mask"]
        there = None if carried is None else set(mask.decode(carried))
        values = {a: row[names[k]] for a, k in at.items() if there is None or k in there}
        made.append(Image(number, row[PREFIX + "change_oper"], row[PREFIX + "stream_position"], values))
    return sorted(made, key=lambda i: (i.number, i.oper))


class RamTarget(DeltaTarget):
    """Tables in memory; `held` survives processes."""

    def __init__(self, ram: RamLake, held: dict[str, Held], refuses: Callable[[str], bool]) -> None:
        self._ram, self.held, self._refuses, self._memory = ram, held, refuses, None

    def place(self, table: str) -> TargetLocation:
        return TargetLocation(table)

    def path(self, table: str) -> str:
        return f"target/{table}"

    def exists(self, table: str) -> bool:
        return table in self.held

    def progress(self, table: str) -> ChangeNumber | None:
        self._ram.at("look at", self.path(table))
        return self.held[table].progress if table in self.held else None

    def version_at(self, table: str, number: int) -> int:
        mine = self.held[table]
        assert order_key(mine.progress) >= number
        return mine.versions

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        self._ram.at("alter", self.path(table))
        if dry_run:
            return
        if table not in self.held:
            self.held[table] = Held(after)
            return
        mine = self.held[table]
        have = {c.attnum for c in mine.relation.columns}
        added = {
            c.attnum: None if c.missing is None else int(c.missing)
            for c in after.columns
            if c.attnum not in have
        }
        stays = {c.attnum for c in after.columns}
        rows = {k: {**{a: v for a, v in r.items() if a in stays}, **added} for k, r in mine.rows.items()}
        self.held[table] = replace(mine, relation=after, rows=rows, versions=mine.versions + 1)

    def rule_columns(self, table: str) -> set[str]:
        return set()

    def constraints(self, table: str) -> Constraints:
        return Constraints()

    def merge(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError]:
        return [self._merge(one) for one in batches]

    def _merge(self, batch: ChangeBatch) -> MergeResult | TailraceError:
        self._ram.at("apply to", self.path(batch.table))
        if self._refuses(batch.table):
            return NotFitError(f"the target refuses a batch of {batch.table}")
        if (mine := self.held.get(batch.table)) is None:
            return NotFitError(f"there is no target of {batch.table}")
        end, progress = batch.range.end, order_key(mine.progress)
        if progress >= end:
            return MergeResult(ApplyOutcome(version=mine.versions), end)
        new = [i for i in images(self._ram, batch) if i.number > progress]
        if batch.appends and (odd := {i.oper for i in new} - {"I"}):
            found("counts", f"a task that only adds rows gets {sorted(odd)} of {batch.table}")
        bounded(batch, new)
        outcome = self._write(batch, new)
        self._ram.at("wrote", self.path(batch.table))
        return MergeResult(outcome, end)

    def _write(self, batch: ChangeBatch, new: list[Image]) -> ApplyOutcome:
        table, relation, mine = batch.table, batch.relation, self.held[batch.table]
        if [c.name for c in mine.relation.columns] != [c.name for c in relation.columns]:
            found("layout", f"{table} has {mine.relation.columns}, its batch {relation.columns}")
        made = _Rows(table, dict(mine.rows), relation, batch.open_window)
        for k, one in enumerate(new):
            if one.oper == "U":
                before = (
                    new[k - 1] if k and new[k - 1].oper == "B" and new[k - 1].number == one.number else None
                )
                made.update(one, before)
            elif one.oper != "B":
                {"I": made.insert, "D": made.delete, "T": made.truncate}[one.oper](one)
        progress = ChangeNumber(batch.range.end)
        self.held[table] = replace(mine, rows=made.rows, progress=progress, versions=mine.versions + 1)
        return ApplyOutcome(made.inserted, made.updated, made.deleted, mine.versions + 1, "task_local")


def bounded(batch: ChangeBatch, new: list[Image]) -> None:
    """A count of 0 rules changes of its kind out."""
    width, seen = len(batch.relation.columns), dict.fromkeys(SPECIAL, 0)
    key = [c.attnum for c in batch.relation.columns if c.key]
    for k, one in enumerate(new):
        if one.oper in seen:
            seen[one.oper] += 1
        if one.oper == "U":
            seen["absent"] += len(one.values) < width
            before = new[k - 1] if k and new[k - 1].oper == "B" else None
            seen["key_changes"] += before is not None and any(
                before.values.get(a) != one.values.get(a) for a in key
            )
    if more := {k: n for k, n in seen.items() if n and not batch.counts.get(k, 0)}:
        found(
            "counts",
            f"{batch.table} up to {batch.range.end}: counts {dict(batch.counts)}, but there are {more}",
        )


@dataclass
class _Rows:
    table: str
    rows: dict[object, Values]
    relation: Relation
    open_window: bool
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def _key(self, one: Image) -> object:
        return tuple(one.values.get(c.attnum) for c in self.relation.columns if c.key)

    def _odd(self, one: Image, what: str) -> None:
        if not self.open_window:
            found("twice or never", f"{one.oper} of {self.table} at {one.number}: {what}")

    def insert(self, one: Image) -> None:
        key: object = self._key(one) if self.relation.key else len(self.rows) + one.number * 1000
        if key in self.rows:
            self._odd(one, f"the target has {key}")
        self.rows[key] = dict(one.values)
        self.inserted += 1

    def delete(self, one: Image) -> None:
        key = self._key(one) if self.relation.key else self._like(one)
        if key not in self.rows:
            self._odd(one, f"the target has no {key}")
        self.rows.pop(key, None)
        self.deleted += 1

    def truncate(self, one: Image) -> None:
        self.rows.clear()

    def update(self, one: Image, before: Image | None) -> None:
        if not self.relation.key:
            assert before is not None
            self.delete(before)
            self.insert(one)
            return
        old, new = self._key(before or one), self._key(one)
        if old not in self.rows:
            self._odd(one, f"the target has no {old}")
        if new != old and new in self.rows:
            self._odd(one, f"the target has {new}")
        was = self.rows.pop(old, None) or self.rows.get(new, {})
        self.rows[new] = {**was, **one.values}
        self.updated += 1

    def _like(self, one: Image) -> object:
        return next((k for k, r in self.rows.items() if r == one.values), None)
