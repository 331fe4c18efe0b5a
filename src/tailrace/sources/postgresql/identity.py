"""Identifies the catalog attribute of each column of a Relation message: proved, or unknown.

A message has names and types, but no attribute numbers, and the catalog is read later than the change was
made. These facts hold in between, whatever DDL ran:

- Numbers are assigned in ascending order and never reused, and a message lists its columns by ascending
  number.
- A dropped attribute stays dropped, and keeps its number and the physical form of its type.
- An attribute whose row in pg_attribute is the same (`xmin`) in an observation before the change and in one
  after it had exactly that state at the change.
- While the table's file is the same, no type got another physical form (length, by-value flag, alignment),
  which would have rewritten the table. A value for older rows (`attmissingval`) proves that the table was not
  rewritten since the column was added.

Names prove nothing: a column may have been renamed, or dropped and created again, in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...wire.pgmessages import RelationColumn
from .evidence import Evidence, LiveColumn, LiveTable, Look


@dataclass(frozen=True)
class Identified:
    """The identified columns of a message.

    Attributes:
        numbers: each column's attribute number; None if unknown.
        exists: attributes up to this number existed.
        gone: attributes that had been dropped by then.
    """

    numbers: tuple[int | None, ...]
    exists: int
    gone: frozenset[int]


@dataclass(frozen=True)
class _Slot:
    """The possible columns of an attribute, one bit per column of the message, and whether it must be one of
    them."""

    may: int
    must: bool


def identify(
    columns: Sequence[RelationColumn],
    forms: Mapping[int, str],
    before: Look | None,
    after: LiveTable,
    earlier: Evidence | None = None,
) -> Identified:
    """Identifies the attributes of a Relation message's columns.

    Args:
        columns: the message's columns.
        forms: physical form by type oid, for existing types.
        before: an observation of the catalog from before the change, if there is one.
        after: the catalog after it.
        earlier: the facts known at an earlier change of the table.
    """
    exists = max(before.count if before else 0, earlier.exists if earlier else 0)
    gone = (before.gone if before else frozenset()) | (earlier.gone if earlier else frozenset())
    slots = _slots(columns, forms, before, after, gone)
    possible, least = _possible(slots, len(columns), exists)
    numbers: list[int | None] = [n.bit_length() if n and n & (n - 1) == 0 else None for n in possible]
    if not all(possible):  # the assumptions do not hold: only attributes equal before and after are certain
        least = exists
        sure = {c.name: c.attnum for c in after.columns if _same(c, before) and not c.dropped}
        numbers = [sure.get(c.name) for c in columns]
    else:
        seen = 0
        for one in possible:
            seen |= one
        known = earlier.columns if earlier else frozenset()
        dropped = {c.attnum for c in after.columns if c.dropped}
        gone |= {n for n in known & dropped if not seen >> (n - 1) & 1} if not after.listed else frozenset()
    return Identified(tuple(numbers), max([least, *(n for n in numbers if n)]), gone)


def _same(column: LiveColumn, before: Look | None) -> bool:
    """Returns whether an attribute is the same as in the earlier observation."""
    return (
        before is not None
        and column.attnum <= before.count
        and before.stamps[column.attnum - 1] == column.stamp
    )


def _slots(
    columns: Sequence[RelationColumn],
    forms: Mapping[int, str],
    before: Look | None,
    after: LiveTable,
    gone: frozenset[int],
) -> list[_Slot]:
    every = (1 << len(columns)) - 1
    places = {c.name: 1 << k for k, c in enumerate(columns)}
    of_form: dict[str, int] = {}
    unknown = 0  # columns whose type does not exist any more
    for k, c in enumerate(columns):
        if c.type_oid in forms:
            of_form[forms[c.type_oid]] = of_form.get(forms[c.type_oid], 0) | 1 << k
        else:
            unknown |= 1 << k
    kept = before is not None and before.file == after.file != 0
    slots = []
    for one in after.columns:
        fits = of_form.get(one.physical, 0) | unknown if kept or one.missing is not None else every
        if one.attnum in gone:
            slots.append(_Slot(0, must=False))
        elif _same(one, before):
            place = 0 if one.dropped else places.get(one.name, 0)
            slots.append(_Slot(place, must=bool(place)))
        else:
            # A column that is generated, or not in the publication's list, may be missing in the message.
            hidden = after.listed or bool(one.generated)
            slots.append(_Slot(fits, must=not one.dropped and not hidden))
    return slots


def _possible(slots: Sequence[_Slot], count: int, exists: int) -> tuple[list[int], int]:
    """Returns for each column its possible attributes (bit n - 1 for number n), and the minimum number of
    existing attributes.

    All ways to assign a message's columns to attributes in order are considered. A state is the number of
    assigned columns; a set of states is the bits of an integer.
    """
    total = len(slots)
    forward = [1]
    for slot in slots:
        here = forward[-1]
        forward.append((here & slot.may) << 1 | (0 if slot.must else here))
    end = 1 << count
    backward = [0] * total + [end]
    for n in range(total, 0, -1):
        slot, later = slots[n - 1], backward[n]
        not_yet = end if n > exists else 0  # neither this attribute nor any after it existed
        backward[n - 1] = (later >> 1) & slot.may | (0 if slot.must else later) | not_yet
    possible = [0] * count
    for n in range(1, total + 1):
        given = forward[n - 1] & slots[n - 1].may & backward[n] >> 1
        while given:
            low = given & -given
            possible[low.bit_length() - 1] |= 1 << (n - 1)
            given ^= low
    least = next((n for n in range(exists, total) if forward[n] & end), total)
    return possible, least
