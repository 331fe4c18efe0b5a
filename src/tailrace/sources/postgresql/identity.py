"""Which attribute of the catalog each column of a Relation message is: proved, or unknown. Pure.

A message has names and types, no attribute numbers, and the catalog is read later than the change was made.
What holds in between, whatever DDL ran:

- Numbers are given in rising order, never again, and a message lists its columns by rising number.
- A dropped attribute stays dropped, and keeps its number and the physical form of its type.
- An attribute whose row in pg_attribute is the same (`xmin`) in a look before the change and in one after it
  was, at the change, exactly what both say.
- As long as the table's file is the same, no type got another physical form (length, by value, alignment):
  that would have rewritten the table. A value for older rows (`attmissingval`) says that nothing has
  rewritten the table since the column came.

Names prove nothing by themselves: a column may have been renamed, or dropped and made again, in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...wire.pgmessages import RelationColumn
from .evidence import Evidence, LiveColumn, LiveTable, Look


@dataclass(frozen=True)
class Identified:
    """The identified columns of a message. `numbers`: each column's attribute number, None if unknown;
    `exists`: attributes up to this number existed; `gone`: attributes that had been dropped by then."""

    numbers: tuple[int | None, ...]
    exists: int
    gone: frozenset[int]


@dataclass(frozen=True)
class _Slot:
    """What one attribute can be: a bit for each column of the message, and whether it must be one."""

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
        columns: the message's.
        forms: physical form by type oid; a type that is gone is not in it.
        before: a look at the catalog from before the change, if there is one.
        after: the catalog after it.
        earlier: what was known at an earlier change of the table.
    """
    exists = max(before.count if before else 0, earlier.exists if earlier else 0)
    gone = (before.gone if before else frozenset()) | (earlier.gone if earlier else frozenset())
    slots = _slots(columns, forms, before, after, gone)
    possible, least = _possible(slots, len(columns), exists)
    numbers: list[int | None] = [n.bit_length() if n and n & (n - 1) == 0 else None for n in possible]
    if not all(possible):  # the assumptions do not hold: only what was the same before and after is certain
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
    """Whether an attribute is the same as in the look before."""
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
    unknown = 0  # columns whose type is gone
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
            # A column that is not in the publication's list, or is generated, may be missing from the
            # message.
            hidden = after.listed or bool(one.generated)
            slots.append(_Slot(fits, must=not one.dropped and not hidden))
    return slots


def _possible(slots: Sequence[_Slot], count: int, exists: int) -> tuple[list[int], int]:
    """All ways to assign a message's columns to attributes, in order: for each column the attributes it can
    be (bit n - 1 for number n), and the least number of attributes that existed.

    A state is how many columns are given away, a set of states the bits of a number.
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
