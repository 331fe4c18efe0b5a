"""NOT NULL, defaults and enums of a PostgreSQL source, copied to a PostgreSQL target.

The process that captures brings each target every few seconds in line with the source's catalog. The catalog
is ahead of the changes: a batch may hold a NULL from before a NOT NULL, or a label that was added a moment
ago. So nothing that was copied ever refuses a change: `relax` looks at a batch's rows and drops
what they violate. It is copied again once all rows satisfy it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import psycopg

from ....model.change import Relation
from ....sources.postgresql.column_declarations import Declared
from ....sources.postgresql.connect import Session, literal, quoted
from .constraint_notes import (
    CHECK,
    COLUMNS,
    DEFAULT,
    NOT_NULL,
    TABLE,
    TYPE,
    TargetColumn,
    forget,
    grow,
    labelled,
    note,
    read,
)
from .place import Place, holds
from .progress import make_schema, one_at_a_time

Enums: TypeAlias = Literal["text", "check", "type"]
_TEXT = re.compile(r"('(?:[^']|'')*')::.*")
"""A text that is cast to its type."""


@dataclass(frozen=True)
class WantedConstraints:
    """What of the source's declarations a target is to have."""

    not_null: bool = False
    defaults: bool = False
    enums: Enums = "text"

    def __bool__(self) -> bool:
        return self.not_null or self.defaults or self.enums != "text"


@dataclass(frozen=True)
class ConstraintSync:
    """Brings one target to what its source declares; `on` has the table for itself.

    Attributes:
        target: as quoted SQL.
        layout: the target's, with the numbers of the source's columns.
        said: what the source declares of them.
        hidden: columns whose values are not kept.
        failed: what cannot be had, in words, by column's number and kind: it is not tried again.
    """

    on: Session
    place: Place
    target: str
    layout: Relation
    said: Sequence[Declared]
    wanted: WantedConstraints
    hidden: Collection[str]
    failed: dict[tuple[int, str], str] = field(default_factory=dict)

    def run(self) -> None:
        """Does it, each thing in a transaction of its own."""
        with self.on.transaction():
            one_at_a_time(self.on)
            make_schema(self.on, self.place.control)
            self.on.execute(f"CREATE TABLE IF NOT EXISTS {self._notes} ({COLUMNS})".encode())
            gone = "NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = relid)"
            self.on.execute(f"DELETE FROM {self._notes} WHERE {gone}".encode())
        said = {d.attnum: d for d in self.said}
        numbers = {c.name: c for c in self.layout.columns}
        for there in read(self.on, self.place, self.target):
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

    def _not_null(self, there: TargetColumn, *, wanted: bool) -> None:
        ours = NOT_NULL in there.notes
        if wanted and not there.not_null and (there.attnum, NOT_NULL) not in self.failed:
            query = f"SELECT EXISTS (SELECT FROM {self.target} WHERE {quoted(there.name)} IS NULL)"
            if holds(self.on, query):
                self._failed(there, NOT_NULL, "its rows in the target have NULLs, so it gets no NOT NULL")
                return
            self._do(there, NOT_NULL, [], f"ALTER COLUMN {quoted(there.name)} SET NOT NULL")
        elif ours and not wanted:
            self._undo(there, NOT_NULL, f"ALTER COLUMN {quoted(there.name)} DROP NOT NULL")

    def _default(self, there: TargetColumn, one: Declared | None) -> None:
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

    def _enum(self, there: TargetColumn, one: Declared) -> TargetColumn:
        """The column with its enum's labels; as it is then."""
        if TYPE in there.notes:
            grow(self.on, there.type, one.labels)
            return there
        known = there.notes.get(CHECK)
        drop = f"DROP CONSTRAINT IF EXISTS {there.check}"
        if self.wanted.enums != "check":
            if known is not None:
                self._undo(there, CHECK, drop)
        elif known is None or set(one.labels) - set(known):
            labels = self._labels(there, known or [], one.labels)
            self._do(there, CHECK, labels, f"{drop}, ADD {labelled(there, labels)}")
        if self.wanted.enums == "type" and there.type == "text" and one.enum is not None:
            if (there.attnum, TYPE) not in self.failed:
                self._typed(there, one.enum, one.labels)
            return next(t for t in read(self.on, self.place, self.target) if t.attnum == there.attnum)
        return there

    def _typed(self, there: TargetColumn, enum: tuple[str, str], labels: Sequence[str]) -> None:
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
        grow(self.on, kind, self._labels(there, labels, ()))
        column = quoted(there.name)
        steps = f"ALTER COLUMN {column} TYPE {kind} USING {column}::{kind}"
        if DEFAULT in there.notes:  # it comes again, in its new type
            self._undo(there, DEFAULT, f"ALTER COLUMN {column} DROP DEFAULT")
        self._do(there, TYPE, [], steps)

    def _labels(self, there: TargetColumn, known: Sequence[str], more: Sequence[str]) -> list[str]:
        """Labels with those that rows have: one that was renamed at the source is in rows as it was."""
        query = f"SELECT DISTINCT {quoted(there.name)}::text FROM {self.target}"
        rows = self.on.execute(f"{query} WHERE {quoted(there.name)} IS NOT NULL".encode()).fetchall()
        return list(dict.fromkeys([*known, *more, *sorted(r[0] for r in rows)]))

    def _do(self, there: TargetColumn, kind: str, said: list[str], step: str) -> None:
        """Alters the table and notes it; tells what the target says against it."""
        if (there.attnum, kind) in self.failed:
            return
        try:
            with self.on.transaction():
                self.on.execute(f"ALTER TABLE {self.target} {step}".encode())
                note(self.on, self.place, self.target, there.attnum, kind, said)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            raise
        except psycopg.Error as error:
            words = str(error).strip().splitlines()[0]
            self._failed(there, kind, f"the target refuses `{step}`: {words}")

    def _failed(self, there: TargetColumn, kind: str, why: str) -> None:
        self.failed[there.attnum, kind] = f"column {there.name}: {why}"

    def _undo(self, there: TargetColumn, kind: str, step: str) -> None:
        with self.on.transaction():
            self.on.execute(f"ALTER TABLE {self.target} {step}".encode())
            forget(self.on, self.place, self.target, there.attnum, kind)
