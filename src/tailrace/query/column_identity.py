"""Columns of change rows by their identity: values before and after a rename belong to one column."""

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
"""Names of a result's columns: `now` for the newest layout (or the last one that has the column), `then` for
the layout at the end of the range."""
_MASKS = (f"{PREFIX}change_mask", f"{PREFIX}column_mask")


def names_over_time(layouts: Sequence[Layout], columns: Sequence[str]) -> set[str]:
    """Returns every name that the given columns have had, in any layout."""
    every = [(one.relation.relid, c) for one in layouts for c in one.relation.columns]
    mine = {(relid, c.attnum) for relid, c in every if c.name in columns}
    return {*columns, *(c.name for relid, c in every if (relid, c.attnum) in mine)}


def rename_layout(layout: Layout, layouts: Sequence[Layout], names: Names | Mapping[int, str]) -> Layout:
    """Returns a layout with other column names; `names` may be a mapping from column numbers."""
    if names == "then":
        return layout
    if isinstance(names, str):
        names = _newest(layout, layouts)
    columns = [replace(c, name=names.get(c.attnum, c.name)) for c in layout.relation.columns]
    return replace(layout, relation=layout.relation.with_columns(columns))


def _newest(layout: Layout, layouts: Sequence[Layout]) -> dict[int, str]:
    """Returns the last names of a layout's columns by number.

    A dropped column whose name is used by another column now gets the suffix `__until_` and a change number.
    """
    mine = [one for one in layouts if one.relation.relid == layout.relation.relid]
    last = {c.attnum: (c.name, k) for k, one in enumerate(mine) for c in one.relation.columns}
    now = {c.name for c in mine[-1].relation.columns}
    made: dict[int, str] = {}
    for c in layout.relation.columns:
        name, k = last[c.attnum]
        gone = k + 1 < len(mine) and name in now
        made[c.attnum] = f"{name}__until_{log.number(mine[k + 1])}" if gone else name
    return made


def with_dropped(layout: Layout, layouts: Sequence[Layout], names: Sequence[str]) -> Layout:
    """Returns a layout with the columns that were dropped, as earlier layouts had them.

    A dropped column is left out if another column uses its position in the change table (`names`: its
    columns).
    """
    number, columns = log.number(layout), list(layout.relation.columns)
    used = {kept_as(names, c.name, number) for c in columns}
    for one in reversed(layouts):
        for c in one.relation.columns:
            place = kept_as(names, c.name, number)
            if place not in used and c.attnum not in {have.attnum for have in columns}:
                columns.append(replace(c, key=False))
                used.add(place)
    return replace(layout, relation=layout.relation.with_columns(columns))


def align_columns(
    rows: pa.Table,
    names: Sequence[str],
    layouts: Sequence[Layout],
    there: Layout,
    shown: Layout,
    defaults: Mapping[int, pa.Array] | None = None,
) -> tuple[pa.Table, list[str]]:
    """Returns rows of several layouts with the columns of one layout, and the column names for the mask bits.

    The index of a name in the returned list is its bit in the masks.

    Args:
        rows: headers, and data columns under the names of the change table.
        names: all column names of the change table, in order.
        layouts: the layouts of the rows.
        there: the layout of the result's columns.
        shown: the wanted columns of `there`, with the names that they get.
        defaults: values, by column number, for rows from before the column was added; NULL by default.
    """
    defaults = defaults or {}
    headers = [n for n in rows.column_names if n.startswith(PREFIX)]
    wanted = {c.attnum: c.name for c in shown.relation.columns}
    kept = {n: k for n, k in _stored_names(names, there).items() if n in wanted}
    kept = dict(sorted(kept.items(), key=lambda one: names.index(one[1])))
    called = {k: wanted[n] for n, k in kept.items()}
    # A column that was stored under another name gets its own name back; its successor gets no name.
    bits = [called.get(n, "" if n in called.values() else n) for n in names]
    if all(_same_columns(_stored_names(names, layout), kept, defaults) for layout in layouts):
        mine = [n for n in rows.column_names if n in called or n.startswith(PREFIX)]
        return rows.select(mine).rename_columns([called.get(n, n) for n in mine]), bits
    places = [names.index(k) for k in kept.values()]
    types = {n: rows.schema.field(k).type for n, k in kept.items()}
    parts = list[pa.Table]()
    for layout, part in _parts(rows, layouts):
        old = _stored_names(names, layout)
        heads = {h: part[h] for h in headers}
        before = [names.index(old[n]) if n in old else None for n in kept]
        for mask in _MASKS:
            if mask in heads:
                heads[mask] = _move_bits(part[mask], before, places, mask == _MASKS[1])
        many = part.num_rows
        data = {
            wanted[n]: part[old[n]].cast(types[n])
            if n in old
            else _values_before(defaults.get(n), types[n], many)
            for n in kept
        }
        parts.append(pa.table(heads | data))
    return pa.concat_tables(parts), bits


def _stored_names(names: Sequence[str], layout: Layout) -> dict[int, str]:
    """Returns the change table's column for each column number of a layout."""
    number = log.number(layout)
    return {c.attnum: kept_as(names, c.name, number) for c in layout.relation.columns}


def _values_before(value: pa.Array | None, kind: pa.DataType, many: int) -> pa.Array:
    """Returns the values of a column in rows from before it was added."""
    return pa.nulls(many, kind) if value is None else pa.repeat(value[0], many).cast(kind)


def _same_columns(old: Mapping[int, str], kept: Mapping[int, str], defaults: Mapping[int, pa.Array]) -> bool:
    """Returns whether rows of an older layout need no change: the columns are at the same
    positions, or NULL."""
    other = {k for n, k in old.items() if n not in kept}
    return all(old[n] == k if n in old else k not in other and n not in defaults for n, k in kept.items())


def _parts(rows: pa.Table, layouts: Sequence[Layout]) -> list[tuple[Layout, pa.Table]]:
    """Returns the rows of each layout; the first layout includes earlier rows."""
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


def _move_bits(
    masks: pa.ChunkedArray, old: Sequence[int | None], new: Sequence[int], unless: bool
) -> pa.ChunkedArray:
    """Returns masks with their bits at other positions.

    Args:
        masks: the masks.
        old, new: positions of each bit before and after; an old one is None for a column that did not exist.
        unless: the bit of a column that did not exist.
    """
    known = MaskBits.of(masks, [0 if n is None else n for n in old], null=False)
    bits = known.bits[:-1].copy()
    bits[:, [k for k, n in enumerate(old) if n is None]] = unless
    absent = known.codes == len(bits)
    return pa.chunked_array([pack(bits, list(new)).take(pa.array(known.codes, mask=absent))], pa.binary())
