"""Relaxes what was copied from a source to a PostgreSQL target, so that it refuses no row of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.columns import ADD, KEPT, OP, OPER
from ....model.change import Relation
from ....sources.postgresql.connect import Session, quoted
from .constraint_notes import CHECK, NOT_NULL, TYPE, enum_labels, forget, grow, labelled, note, read
from .place import Place, holds, session
from .stage import CARRIED, Staged


def relax(on: Session, place: Place, target: str, relation: Relation, staged: Staged) -> None:
    """Drops or widens what was copied to a target and would refuse staged rows."""
    if not (notes := [t for t in read(on, place, target) if t.notes]):
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
            forget(on, place, target, one.attnum, NOT_NULL)
        if place_ is None:
            continue
        if (known := one.notes.get(CHECK)) is not None:
            if new := _new(on, staged, place_, known):
                labels = [*known, *new]
                step = f"DROP CONSTRAINT IF EXISTS {one.check}, ADD {labelled(one, labels)}"
                on.execute(f"ALTER TABLE {target} {step}".encode())
                note(on, place, target, one.attnum, CHECK, labels)
        elif TYPE in one.notes and (new := _new(on, staged, place_, enum_labels(on, one.type))):
            with session(place, place.label) as second:  # a label can be used once it is committed
                grow(second, one.type, new)


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
    return holds(on, query)


def _written(staged: Staged) -> str:
    """SQL: whether a staged row is one that is written."""
    found = [f"s.{quoted(OP)} <> 'D'"] if OP in staged.extra else []
    found += [f"s.{quoted(OPER)} IN ('I', 'U')"] if OPER in staged.extra else []
    found += [f"s.{quoted(ADD)} > 0"] if ADD in staged.extra else []
    return " AND ".join(found) or "true"
