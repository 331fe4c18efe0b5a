"""Columns of change rows by their identity: values from before and after a rename are one column's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import MaskBits
from ..lake import log
from ..lake.log import Layout
from ..model.change import PREFIX
from ..model.mask import pack
from ..store.tables import kept_as

Names = Literal["now", "then"]
"""Which names the columns of an answer have: those of the newest layout (one that is gone: its last one), or
those at the end of the range."""
_MASKS = (f"{PREFIX}change_mask", f"{PREFIX}column_mask")


def all_names(layouts: Sequence[Layout], columns: Sequence[str]) -> set[str]:
    """Every name that these columns, named as of any time, have had."""
    every = [(one.relation.relid, c) for one in layouts for c in one.relation.columns]
    mine = {(relid, c.attnum) for relid, c in every if c.name in columns}
    return {*columns, *(c.name for relid, c in every if (relid, c.attnum) in mine)}


def named_as(layout: Layout, layouts: Sequence[Layout], names: Names | Mapping[int, str]) -> Layout:
    """A layout with other names for its columns; `names` may also be those of columns by number."""
    if names == "then":
        return layout
    if isinstance(names, str):
        names = _newest(layout, layouts)
    columns = [replace(c, name=names.get(c.attnum, c.name)) for c in layout.relation.columns]
    return replace(layout, relation=layout.relation.with_columns(columns))


def _newest(layout: Layout, layouts: Sequence[Layout]) -> dict[int, str]:
    """The last names of a layout's columns; one that is gone gives way to a column that has its name now."""
    mine = [one for one in layouts if one.relation.relid == layout.relation.relid]
    last = {c.attnum: (c.name, k) for k, one in enumerate(mine) for c in one.relation.columns}
    now = {c.name for c in mine[-1].relation.columns}
    made: dict[int, str] = {}
    for c in layout.relation.columns:
        name, k = last[c.attnum]
        gone = k + 1 < len(mine) and name in now
        made[c.attnum] = f"{name}__until_{log.number(mine[k + 1])}" if gone else name
    return made


def with_gone(layout: Layout, layouts: Sequence[Layout], names: Sequence[str]) -> Layout:
    """A layout with the columns that it has no more, as earlier ones had them; without those whose place in
    the change table (`names`: its columns) another column has by now."""
    number, columns = log.number(layout), list(layout.relation.columns)
    used = {kept_as(names, c.name, number) for c in columns}
    for one in reversed(layouts):
        for c in one.relation.columns:
            place = kept_as(names, c.name, number)
            if place not in used and c.attnum not in {have.attnum for have in columns}:
                columns.append(replace(c, key=False))
                used.add(place)
    return replace(layout, relation=layout.relation.with_columns(columns))


def by_identity(
    rows: pa.Table,
    names: Sequence[str],
    layouts: Sequence[Layout],
    there: Layout,
    shown: Layout,
    defaults: Mapping[int, pa.Array] | None = None,
) -> tuple[pa.Table, list[str]]:
    """Rows of several layouts with the columns of one, and the names of all columns of the change table, to
    go with these rows: a place among them is a bit of the masks.

    Args:
        rows: headers, and data columns under the names of the change table.
        names: all of that table's names, in order.
        layouts: those that the rows have.
        there: the one that the columns have.
        shown: its columns that are wanted, under the names that they get.
        defaults: of columns by number the value in rows from before they were added; NULL by default.
    """
    defaults = defaults or {}
    headers = [n for n in rows.column_names if n.startswith(PREFIX)]
    wanted = {c.attnum: c.name for c in shown.relation.columns}
    kept = {n: k for n, k in _kept(names, there).items() if n in wanted}
    kept = dict(sorted(kept.items(), key=lambda one: names.index(one[1])))
    called = {k: wanted[n] for n, k in kept.items()}
    # A column that was set aside has its name back, and the one that has it since goes without.
    bits = [called.get(n, "" if n in called.values() else n) for n in names]
    if all(_alike(_kept(names, layout), kept, defaults) for layout in layouts):
        mine = [n for n in rows.column_names if n in called or n.startswith(PREFIX)]
        return rows.select(mine).rename_columns([called.get(n, n) for n in mine]), bits
    places = [names.index(k) for k in kept.values()]
    types = {n: rows.schema.field(k).type for n, k in kept.items()}
    parts = list[pa.Table]()
    for layout, part in _parts(rows, layouts):
        old = _kept(names, layout)
        heads = {h: part[h] for h in headers}
        before = [names.index(old[n]) if n in old else None for n in kept]
        for mask in _MASKS:
            if mask in heads:
                heads[mask] = _moved(part[mask], before, places, mask == _MASKS[1])
        many = part.num_rows
        data = {
            wanted[n]: part[old[n]].cast(types[n]) if n in old else _older(defaults.get(n), types[n], many)
            for n in kept
        }
        parts.append(pa.table(heads | data))
    return pa.concat_tables(parts), bits


def _kept(names: Sequence[str], layout: Layout) -> dict[int, str]:
    """The column of the change table that has each of a layout's columns."""
    number = log.number(layout)
    return {c.attnum: kept_as(names, c.name, number) for c in layout.relation.columns}


def _older(value: pa.Array | None, kind: pa.DataType, many: int) -> pa.Array:
    """The values of a column in rows from before it was added."""
    return pa.nulls(many, kind) if value is None else pa.repeat(value[0], many).cast(kind)


def _alike(old: Mapping[int, str], kept: Mapping[int, str], defaults: Mapping[int, pa.Array]) -> bool:
    """Whether images of an older layout have the same columns in the same places, or NULL there."""
    other = {k for n, k in old.items() if n not in kept}
    return all(old[n] == k if n in old else k not in other and n not in defaults for n, k in kept.items())


def _parts(rows: pa.Table, layouts: Sequence[Layout]) -> list[tuple[Layout, pa.Table]]:
    """The rows that each layout has; the first one has those of before it, too."""
    seqs = rows[f"{PREFIX}change_seq"]
    found = list[tuple[Layout, pa.Table]]()
    for k, layout in enumerate(layouts):
        mine = np.ones(rows.num_rows, np.bool_)
        if k:
            mine &= _since(seqs, layout)
        if k + 1 < len(layouts):
            mine &= ~_since(seqs, layouts[k + 1])
        found.append((layout, rows.filter(pa.array(mine))))
    return found


def _since(seqs: pa.ChunkedArray, layout: Layout) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.greater_equal(seqs, layout.from_seq).fill_null(False).to_numpy()
    return found


def _moved(
    masks: pa.ChunkedArray, old: Sequence[int | None], new: Sequence[int], unless: bool
) -> pa.ChunkedArray:
    """Masks with their bits at other places; `unless`: the bit of a column that there was not."""
    known = MaskBits.of(masks, [0 if n is None else n for n in old], null=False)
    bits = known.bits[:-1].copy()
    bits[:, [k for k, n in enumerate(old) if n is None]] = unless
    absent = known.codes == len(bits)
    return pa.chunked_array([pack(bits, list(new)).take(pa.array(known.codes, mask=absent))], pa.binary())
