"""What a PostgreSQL source declares beside types, in a PostgreSQL target: NOT NULL, defaults, enums.

Whoever captures brings a target every few seconds to what the source's catalog says (`bring`). The catalog is
ahead of the changes: a batch may hold a NULL from before a NOT NULL, or a label that came a moment ago. So
nothing that was brought here ever refuses a change: `make_room` looks at a batch's rows and loosens what they
need. What is brought again needs that all rows fulfil it.

`tailrace_declared` notes what was brought, by the numbers of the target and its columns: what others gave to
the table is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import psycopg

from ...engine.columns import KEPT, OP, OPER
from ...model.change import Relation
from ...sources.postgresql.connect import Session, literal, quoted
from ...sources.postgresql.declared import Declared
from ..fold import CARRIED
from .delta_local import NET
from .postgresql_place import Place, session
from .postgresql_progress import make_schema, one_at_a_time
from .postgresql_stage import Staged

TABLE = "tailrace_declared"
NOT_NULL, DEFAULT, CHECK, TYPE = "not null", "default", "check", "type"
Enums: TypeAlias = Literal["text", "check", "type"]
_COLUMNS = """
    relid oid NOT NULL,
    attnum int2 NOT NULL,
    kind text NOT NULL,
    said text[] NOT NULL,
    PRIMARY KEY (relid, attnum, kind)
"""
_THERE = """
SELECT a.attnum, a.attname::text, a.attnotnull, d.adbin IS NOT NULL, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
"""
_TEXT = re.compile(r"('(?:[^']|'')*')::.*")
"""A text that is cast to its type."""


@dataclass(frozen=True)
class Wanted:
    """What of the source's declarations a target is to have."""

    not_null: bool = False
    defaults: bool = False
    enums: Enums = "text"

    def __bool__(self) -> bool:
        return self.not_null or self.defaults or self.enums != "text"


@dataclass(frozen=True)
class _There:
    """A column of a target: number, name, whether it refuses NULL and has a default, type; what was brought
    to it."""

    attnum: int
    name: str
    not_null: bool
    default: bool
    type: str
    notes: dict[str, list[str]]

    @property
    def check(self) -> str:
        """The name of the constraint that lists an enum's labels."""
        return quoted(f"tailrace_labels_{self.attnum}")


@dataclass(frozen=True)
class Bringing:
    """Brings one target to what its source declares; `on` has the table for itself.

    Attributes:
        target: as quoted SQL.
        layout: the target's, with the numbers of the source's columns.
        said: what the source declares of them.
        hidden: columns whose values are not kept.
        told: is given each thing that cannot be had, in words.
        failed: those things, by column's number and kind: they are not tried again.
    """

    on: Session
    place: Place
    target: str
    layout: Relation
    said: Sequence[Declared]
    wanted: Wanted
    hidden: Collection[str]
    told: Callable[[str], None]
    failed: set[tuple[int, str]] = field(default_factory=set)

    def run(self) -> None:
        """Does it, each thing in a transaction of its own."""
        with self.on.transaction():
            one_at_a_time(self.on)
            make_schema(self.on, self.place.control)
            self.on.execute(f"CREATE TABLE IF NOT EXISTS {self._notes} ({_COLUMNS})".encode())
            gone = "NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = relid)"
            self.on.execute(f"DELETE FROM {self._notes} WHERE {gone}".encode())
        said = {d.attnum: d for d in self.said}
        numbers = {c.name: c for c in self.layout.columns}
        for there in _read(self.on, self.place, self.target):
            column = numbers.get(there.name)
            one = said.get(column.attnum) if column is not None else None
            if one is None or column is None:
                self._not_null(there, wanted=False)  # the source has it no more: new rows have NULL in it
                continue
            enum = one.enum is not None and not column.key and column.kind == "enum"
            now = self._enum(there, one) if enum else there
            kept = now.name not in self.hidden and not column.key
            self._not_null(now, wanted=self.wanted.not_null and one.not_null and kept)
            self._default(now, one if self.wanted.defaults else None)

    @property
    def _notes(self) -> str:
        return self.place.own(TABLE)

    def _not_null(self, there: _There, *, wanted: bool) -> None:
        ours = NOT_NULL in there.notes
        if wanted and not there.not_null and (there.attnum, NOT_NULL) not in self.failed:
            query = f"SELECT EXISTS (SELECT FROM {self.target} WHERE {quoted(there.name)} IS NULL)"
            row = self.on.execute(query.encode()).fetchone()
            if row and row[0]:
                self._failed(there, NOT_NULL, "its rows in the target have NULLs, so it gets no NOT NULL")
                return
            self._do(there, NOT_NULL, [], f"ALTER COLUMN {quoted(there.name)} SET NOT NULL")
        elif ours and not wanted:
            self._undo(there, NOT_NULL, f"ALTER COLUMN {quoted(there.name)} DROP NOT NULL")

    def _default(self, there: _There, one: Declared | None) -> None:
        ours, text = there.notes.get(DEFAULT), one.default if one else None
        if text is not None and text.startswith("nextval("):
            text = None  # the sequence is the source's
        if ours == [text] or (text is not None and there.default and ours is None):
            return
        if text is None:
            if ours is not None:
                self._undo(there, DEFAULT, f"ALTER COLUMN {quoted(there.name)} DROP DEFAULT")
            return
        plain = _TEXT.fullmatch(text)
        # The type has another schema here, or is text.
        value = plain[1] if plain and one is not None and one.enum is not None else text
        self._do(there, DEFAULT, [text], f"ALTER COLUMN {quoted(there.name)} SET DEFAULT {value}")

    def _enum(self, there: _There, one: Declared) -> _There:
        """The column with its enum's labels; as it is then."""
        if TYPE in there.notes:
            _grow(self.on, there.type, one.labels)
            return there
        known = there.notes.get(CHECK)
        drop = f"DROP CONSTRAINT IF EXISTS {there.check}"
        if self.wanted.enums != "check":
            if known is not None:
                self._undo(there, CHECK, drop)
        elif known is None or set(one.labels) - set(known):
            labels = self._labels(there, known or [], one.labels)
            self._do(there, CHECK, labels, f"{drop}, ADD {_labelled(there, labels)}")
        if self.wanted.enums == "type" and there.type == "text" and one.enum is not None:
            if (there.attnum, TYPE) not in self.failed:
                self._typed(there, one.enum, one.labels)
            return next(t for t in _read(self.on, self.place, self.target) if t.attnum == there.attnum)
        return there

    def _typed(self, there: _There, enum: tuple[str, str], labels: Sequence[str]) -> None:
        schema, name = self.place.split(".".join(enum))
        kind = f"{quoted(schema)}.{quoted(name)}"
        found = self.on.execute("SELECT typtype FROM pg_type WHERE oid = to_regtype(%s)", (kind,)).fetchone()
        if found is not None and found[0] not in ("e", b"e"):
            self._failed(there, TYPE, f"it stays text: {kind} is there, and no enum")
            return
        if found is None:
            with self.on.transaction():
                one_at_a_time(self.on)
                make_schema(self.on, schema)
                listed = ", ".join(map(literal, labels))
                self.on.execute(f"CREATE TYPE {kind} AS ENUM ({listed})".encode())
        _grow(self.on, kind, self._labels(there, labels, ()))
        column = quoted(there.name)
        steps = f"ALTER COLUMN {column} TYPE {kind} USING {column}::{kind}"
        if DEFAULT in there.notes:  # it comes again, in its new type
            self._undo(there, DEFAULT, f"ALTER COLUMN {column} DROP DEFAULT")
        self._do(there, TYPE, [], steps)

    def _labels(self, there: _There, known: Sequence[str], more: Sequence[str]) -> list[str]:
        """Labels with those that rows have: one that was renamed at the source is in rows as it was."""
        query = f"SELECT DISTINCT {quoted(there.name)}::text FROM {self.target}"
        rows = self.on.execute(f"{query} WHERE {quoted(there.name)} IS NOT NULL".encode()).fetchall()
        return list(dict.fromkeys([*known, *more, *sorted(r[0] for r in rows)]))

    def _do(self, there: _There, kind: str, said: list[str], step: str) -> None:
        """Alters the table and notes it; tells what the target says against it."""
        if (there.attnum, kind) in self.failed:
            return
        try:
            with self.on.transaction():
                self.on.execute(f"ALTER TABLE {self.target} {step}".encode())
                _note(self.on, self.place, self.target, there.attnum, kind, said)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            raise
        except psycopg.Error as error:
            words = str(error).strip().splitlines()[0]
            self._failed(there, kind, f"the target refuses `{step}`: {words}")

    def _failed(self, there: _There, kind: str, why: str) -> None:
        self.failed.add((there.attnum, kind))
        self.told(f"column {there.name}: {why}")

    def _undo(self, there: _There, kind: str, step: str) -> None:
        with self.on.transaction():
            self.on.execute(f"ALTER TABLE {self.target} {step}".encode())
            _forget(self.on, self.place, self.target, there.attnum, kind)


def make_room(on: Session, place: Place, target: str, relation: Relation, staged: Staged) -> None:
    """Loosens what was brought to a target and would refuse staged rows; within a transaction, or without."""
    if not (notes := [t for t in _read(on, place, target) if t.notes]):
        return
    cells = {c.name: i for i, c in enumerate(relation.columns)}
    same = " AND ".join(
        f"t.{quoted(c.name)} = s.c{i}{staged.cast(i)}" for i, c in enumerate(relation.columns) if c.key
    )
    there = f"EXISTS (SELECT FROM {target} t WHERE {same})" if same else "false"
    for one in notes:
        place_ = cells.get(one.name)
        if NOT_NULL in one.notes and (place_ is None or _some(on, staged, _lacks(staged, place_, there))):
            on.execute(f"ALTER TABLE {target} ALTER COLUMN {quoted(one.name)} DROP NOT NULL".encode())
            _forget(on, place, target, one.attnum, NOT_NULL)
        if place_ is None:
            continue
        if (known := one.notes.get(CHECK)) is not None:
            if new := _new(on, staged, place_, known):
                labels = [*known, *new]
                step = f"DROP CONSTRAINT IF EXISTS {one.check}, ADD {_labelled(one, labels)}"
                on.execute(f"ALTER TABLE {target} {step}".encode())
                _note(on, place, target, one.attnum, CHECK, labels)
        elif TYPE in one.notes and (new := _new(on, staged, place_, _enum_labels(on, one.type))):
            with session(place, place.label) as beside:  # a label can be used once it is committed
                _grow(beside, one.type, new)


def ours(on: Session, place: Place, target: str) -> tuple[list[str], list[str], list[str]]:
    """What was brought to a target: columns with NOT NULL, names of constraints, columns that are enums."""
    found = _read(on, place, target)
    checks = [t.check.strip('"') for t in found if CHECK in t.notes]
    return [t.name for t in found if NOT_NULL in t.notes], checks, [t.name for t in found if TYPE in t.notes]


def _lacks(staged: Staged, place: int, there: str) -> str:
    """SQL: whether a staged row is to be written with NULL in a column. Where the image lacks the column, the
    row that is there has the value."""
    absent = [f"substr(s.{quoted(KEPT)}, {place + 1}, 1) = '1'"] if KEPT in staged.extra else []
    absent += [f"substr(s.{quoted(CARRIED)}, {place + 1}, 1) = '0'"] if CARRIED in staged.extra else []
    found = f"s.c{place} IS NULL"
    return f"{found} AND NOT (coalesce({' OR '.join(absent)}, false) AND {there})" if absent else found


def _new(on: Session, staged: Staged, place: int, known: Sequence[str]) -> list[str]:
    """The labels that staged rows have and an enum has not."""
    which = f"{_written(staged)} AND s.c{place} IS NOT NULL AND s.c{place} <> ALL (%s)"
    query = f"SELECT DISTINCT s.c{place} FROM {staged.texts} WHERE {which} ORDER BY 1"
    return [r[0] for r in on.execute(query.encode(), (list(known),)).fetchall()]


def _some(on: Session, staged: Staged, condition: str) -> bool:
    query = f"SELECT EXISTS (SELECT FROM {staged.texts} WHERE {_written(staged)} AND {condition})"
    row = on.execute(query.encode()).fetchone()
    return bool(row and row[0])


def _written(staged: Staged) -> str:
    """SQL: whether a staged row is one that is written."""
    found = [f"s.{quoted(OP)} <> 'D'"] if OP in staged.extra else []
    found += [f"s.{quoted(OPER)} IN ('I', 'U')"] if OPER in staged.extra else []
    found += [f"s.{quoted(NET)} > 0"] if NET in staged.extra else []
    return " AND ".join(found) or "true"


def _labelled(there: _There, labels: Sequence[str]) -> str:
    listed = ", ".join(map(literal, labels))
    return f"CONSTRAINT {there.check} CHECK ({quoted(there.name)} = ANY (ARRAY[{listed}]::text[]))"


def _enum_labels(on: Session, kind: str) -> list[str]:
    query = "SELECT enumlabel::text FROM pg_enum WHERE enumtypid = to_regtype(%s) ORDER BY enumsortorder"
    return [r[0] for r in on.execute(query, (kind,)).fetchall()]


def _grow(on: Session, kind: str, labels: Sequence[str]) -> None:
    """Adds labels to an enum, each behind the one before it."""
    there = _enum_labels(on, kind)
    for place, label in enumerate(labels):
        if label in there:
            continue
        before = next((one for one in reversed(labels[:place]) if one in there), None)
        behind = f"AFTER {literal(before)}" if before else f"BEFORE {literal(there[0])}" if there else ""
        at = behind if set(labels) & set(there) else ""
        on.execute(f"ALTER TYPE {kind} ADD VALUE IF NOT EXISTS {literal(label)} {at}".encode())
        there.append(label)


def _read(on: Session, place: Place, target: str) -> list[_There]:
    """The columns of a target with what was brought to them."""
    own = place.own(TABLE)
    row = on.execute("SELECT to_regclass(%s) IS NOT NULL", (own,)).fetchone()
    notes: dict[int, dict[str, list[str]]] = {}
    if row and row[0]:
        query = f"SELECT attnum, kind, said FROM {own} WHERE relid = to_regclass({literal(target)})"
        for attnum, kind, said in on.execute(query.encode()).fetchall():
            notes.setdefault(attnum, {})[kind] = list(said)
    rows = on.execute(_THERE, (target,)).fetchall()
    return [_There(r[0], r[1], r[2], r[3], r[4], notes.get(r[0], {})) for r in rows]


def _note(on: Session, place: Place, target: str, attnum: int, kind: str, said: list[str]) -> None:
    on.execute(
        f"INSERT INTO {place.own(TABLE)} VALUES (%s::regclass, %s, %s, %s::text[]) ON CONFLICT"
        " (relid, attnum, kind) DO UPDATE SET said = EXCLUDED.said".encode(),
        (target, attnum, kind, said),
    )


def _forget(on: Session, place: Place, target: str, attnum: int, kind: str) -> None:
    on.execute(
        f"DELETE FROM {place.own(TABLE)} WHERE (relid, attnum, kind) = (%s::regclass, %s, %s)".encode(),
        (target, attnum, kind),
    )
