"""What was copied to a PostgreSQL target (`constraints`), noted in `tailrace_declared` by the
numbers of the target and its columns: what others gave to the table is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....sources.postgresql.connect import Session, literal, quoted
from .place import Place, exists

TABLE = "tailrace_declared"
NOT_NULL, DEFAULT, CHECK, TYPE = "not null", "default", "check", "type"
COLUMNS = """
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


@dataclass(frozen=True)
class TargetColumn:
    """A column of a target: number, name, whether it refuses NULL and has a default, type; what was copied
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


def ours(on: Session, place: Place, target: str) -> tuple[list[str], list[str], list[str]]:
    """What was copied to a target: columns with NOT NULL, names of constraints, columns that are enums."""
    found = read(on, place, target)
    checks = [t.check.strip('"') for t in found if CHECK in t.notes]
    return [t.name for t in found if NOT_NULL in t.notes], checks, [t.name for t in found if TYPE in t.notes]


def labelled(there: TargetColumn, labels: Sequence[str]) -> str:
    listed = ", ".join(map(literal, labels))
    return f"CONSTRAINT {there.check} CHECK ({quoted(there.name)} = ANY (ARRAY[{listed}]::text[]))"


def enum_labels(on: Session, kind: str) -> list[str]:
    query = "SELECT enumlabel::text FROM pg_enum WHERE enumtypid = to_regtype(%s) ORDER BY enumsortorder"
    return [r[0] for r in on.execute(query, (kind,)).fetchall()]


def grow(on: Session, kind: str, labels: Sequence[str]) -> None:
    """Adds labels to an enum, each behind the one before it."""
    there = enum_labels(on, kind)
    for place, label in enumerate(labels):
        if label in there:
            continue
        before = next((one for one in reversed(labels[:place]) if one in there), None)
        behind = f"AFTER {literal(before)}" if before else f"BEFORE {literal(there[0])}" if there else ""
        at = behind if set(labels) & set(there) else ""
        on.execute(f"ALTER TYPE {kind} ADD VALUE IF NOT EXISTS {literal(label)} {at}".encode())
        there.append(label)


def read(on: Session, place: Place, target: str) -> list[TargetColumn]:
    """The columns of a target with what was copied to them."""
    own = place.own(TABLE)
    notes: dict[int, dict[str, list[str]]] = {}
    if exists(on, own):
        query = f"SELECT attnum, kind, said FROM {own} WHERE relid = to_regclass({literal(target)})"
        for attnum, kind, said in on.execute(query.encode()).fetchall():
            notes.setdefault(attnum, {})[kind] = list(said)
    rows = on.execute(_THERE, (target,)).fetchall()
    return [TargetColumn(r[0], r[1], r[2], r[3], r[4], notes.get(r[0], {})) for r in rows]


def copied(on: Session, place: Place, target: str) -> bool:
    """Whether anything was copied to a target."""
    return any(one.notes for one in read(on, place, target))


def note(on: Session, place: Place, target: str, attnum: int, kind: str, said: list[str]) -> None:
    on.execute(
        f"INSERT INTO {place.own(TABLE)} VALUES (%s::regclass, %s, %s, %s::text[]) ON CONFLICT"
        " (relid, attnum, kind) DO UPDATE SET said = EXCLUDED.said".encode(),
        (target, attnum, kind, said),
    )


def forget(on: Session, place: Place, target: str, attnum: int, kind: str) -> None:
    on.execute(
        f"DELETE FROM {place.own(TABLE)} WHERE (relid, attnum, kind) = (%s::regclass, %s, %s)".encode(),
        (target, attnum, kind),
    )
