"""Converts OpenEdge's arrays to separate columns, `Phones` to `Phones1`, `Phones2`, ...: any target can hold
them.

Names are numbered as consumers of OpenEdge's tables number them (spec/openedge.md §6.5). All elements of an
array have the bit of its column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...model import mask
from ...model.change import PREFIX, ChangeTable
from ...model.quoting import quoted
from ..base import ADDED_COLUMNS
from ..shape import TypedColumns
from ..spark_functions import F
from ..types import join_array, split_array

if TYPE_CHECKING:
    from pyspark.sql import Column

FLAT = "openedgeFlat"
"""Metadata of the column change_seq: array -> the names of its elements."""
_MASKS = ("change_mask", "column_mask")


def spread(ct: ChangeTable, extents: Mapping[str, int], types: Mapping[str, str]) -> ChangeTable:
    """Returns the change table with a column for each element of its arrays (text in the vendor's tables), of
    the array's type; an array with more elements than its extent is a bad row.

    Raises:
        FormatError: an element's column would have the name of another column.
    """
    flat = {c: [f"{c}{n}" for n in range(1, extents[c] + 1)] for c in ct.columns if c in extents}
    if not flat:
        return ct
    names = [n for c in ct.columns for n in flat.get(c, [c])]
    times = Counter(n.lower() for n in names)
    if twice := sorted(n for n in names if times[n.lower()] > 1):
        raise FormatError(f"two columns {', '.join(twice)}", where=ct.name, hint="set arrays=text")
    typed = TypedColumns()
    for column in ct.columns:
        if column not in flat:
            typed.values[column] = F.col(quoted(column))
            continue
        elements = split_array(F.col(quoted(column)))
        for n, name in enumerate(flat[column]):
            typed.add(name, F.get(elements, F.lit(n)), types.get(column, "string"))
        more = F.coalesce(F.size(elements) > extents[column], F.lit(False))
        typed.bad.append((more, f"{column} has more than {extents[column]} elements"))
    return _arranged(ct.with_df(typed.marked(ct.df)), names, typed.values, flat, {FLAT: flat})


def gathered(ct: ChangeTable) -> ChangeTable:
    """Returns the change table with spread arrays as the vendor's text again; others unchanged."""
    flat = ct.df.schema[PREFIX + "change_seq"].metadata.get(FLAT)
    if not flat or not all(n in ct.columns for some in flat.values() for n in some):
        return ct
    first = {some[0]: column for column, some in flat.items()}
    inside = {n for some in flat.values() for n in some}
    names = [first.get(c, c) for c in ct.columns if c in first or c not in inside]
    values: dict[str, Column] = {c: F.col(quoted(c)) for c in names if c not in flat}
    for column, some in flat.items():
        text = join_array(F.array(*[F.col(quoted(n)).cast("string") for n in some]))
        known = F.col(ct.header("column_mask"))
        there = known.isNull() | mask.is_set(known, ct.ordinal(some[0]))
        values[column] = F.when(there, text)
    return _arranged(ct, names, values, {n: [c] for c, some in flat.items() for n in some}, {})


def _arranged(
    ct: ChangeTable,
    names: Sequence[str],
    values: Mapping[str, Column],
    became: Mapping[str, Sequence[str]],
    metadata: Mapping[str, Mapping[str, Sequence[str]]],
) -> ChangeTable:
    """Returns the change table with these columns and adapted masks; `became`: a column -> its new
    columns."""
    data = set(ct.columns)
    added = [c for c in ADDED_COLUMNS if c in ct.df.columns]
    heads = [c for c in ct.df.columns if c not in data and c not in added]
    place = {n: len(heads) + i for i, n in enumerate(names)}
    old = {c: i for i, c in enumerate(ct.df.columns)}
    now = {c: [place[n] for n in became.get(c, [c])] for c in ct.columns}
    result = []
    for head in heads:
        value = F.col(quoted(head))
        if head.removeprefix(ct.prefix) in _MASKS:
            words = mask.words(value, len(ct.df.columns))
            moved = mask.moved(words, {old[c]: at[0] for c, at in now.items()})
            moved += [F.lit(0).cast("bigint")] * (-(-(len(heads) + len(names)) // mask.WORD) - len(moved))
            more = {at: c for c, some in now.items() for at in some[1:]}
            set_ = {
                at: F.getbit(words[old[c] // mask.WORD], F.lit(old[c] % mask.WORD)) == 1
                for at, c in more.items()
            }
            value = F.when(value.isNotNull(), mask.from_words(mask.set_bits(moved, set_)))
        kept = dict(ct.df.schema[head].metadata)
        if head == PREFIX + "change_seq":
            kept = {k: v for k, v in kept.items() if k != FLAT} | dict(metadata)
        result.append(value.alias(head, metadata=kept))
    columns = [values[n].alias(n) for n in names]
    return ChangeTable(ct.df.select(*result, *columns, *added), ct.key, list(names), ct.prefix, ct.name)
