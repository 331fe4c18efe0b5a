"""Rows of a version of a target: their layout, and whether changes can be applied to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..errors import UnsupportedError
from ..lake import log
from ..lake.data_files import FileDataset, FileFragment
from ..lake.log import Layout
from ..lake.past import LATER, files_there
from ..lake.reading import fitted
from ..model import sequence
from ..model.change import Column, Relation
from ..model.positions import ChangeNumber, ChangeSeq
from ..model.types import arrow_type
from ..query.change_files import and_filter
from ..query.schema import incompatibility
from ..query.watch import with_progress
from ..state.baselines import Baseline
from ..store.tables import widens
from .row_keys import RowKeys

_REACHED = "a position that the target has reached (its version after the change of the layout)"


def layouts_from(
    layouts: Sequence[Layout], taken: Baseline, hidden: Collection[str], number: ChangeNumber
) -> list[Layout]:
    """Returns the layout of rows of a baseline with the changes up to a number, and the later layouts.

    Args:
        hidden: columns that are in no result.
    """
    begun = baseline_layout(taken)
    kept = [c for c in taken.relation.columns if c.name not in hidden]
    begun = replace(begun, relation=taken.relation.with_columns(kept))
    later = [
        one for one in layouts if one.from_position >= begun.from_position and log.number(one) > taken.after
    ]
    passed = sum(log.number(one) <= number for one in later)
    return [begun, *later][passed:]


def baseline_layout(taken: Baseline) -> Layout:
    """Returns the layout of a baseline's rows, from the position at which they are valid."""
    return Layout(taken.relation, bytes.fromhex(taken.position), sequence.make(0, taken.after))


def order_columns(fields: Iterable[pa.Field], relation: Relation) -> list[pa.Field]:
    """Returns a target's columns in the order of a layout, followed by others.

    A target that is created again with the same column names keeps its earlier order.

    >>> columns = (Column("id", 1, "int", "int4", "int"), Column("a", 2, "text", "text", "string"))
    >>> fields = [pa.field(n, pa.string()) for n in ("a", "kept", "id")]
    >>> [f.name for f in order_columns(fields, Relation(1, "shop", "item", "d", columns))]
    ['id', 'a', 'kept']
    """
    places = {c.name: k for k, c in enumerate(relation.columns)}
    return sorted(fields, key=lambda f: places.get(f.name, len(places)))


def refuse_features(more: Sequence[str], where: str, what: str = "the target") -> None:
    """Raises UnsupportedError for a table with features that this process cannot read, see
    `LakeTable.unread`."""
    if more:
        raise UnsupportedError(
            f"{what} has {', '.join(more)}, which this process cannot read",
            where=where,
            hint="read it with Spark: `tailrace sql --spark`, or by path (docs/readers.md)",
        )


def refuse_incompatible(layouts: Sequence[Layout], last: ChangeSeq, where: str) -> None:
    """Raises UnsupportedError if changes up to a change sequence cannot be applied to rows in the first of
    these layouts."""
    if (why := incompatibility(layouts, sequence.FIRST, last)) is not None:
        what = f"{why}, and the target has no version between that and this position"
        raise UnsupportedError(what, where=where, hint=f"use {_REACHED}, or an earlier one")


def refuse_differing_column(column: Column, have: pa.Schema, older: bool, where: str) -> None:
    """Raises UnsupportedError if a target's rows do not have the column that the changes have.

    Args:
        older: whether the source had the column when the rows were written.
    """
    if column.name not in have.names:
        why = "was added with a default" if column.missing is not None else None
        why = "is not in the target" if older else why
    else:
        old, new = have.field(column.name).type, arrow_type(column.type)
        why = None if old == new or widens(old, new) else "has another type"
    if why is not None:
        raise UnsupportedError(
            f"the column {column.name} {why}", where=where,
            hint=f"use {_REACHED}",
        )  # fmt: skip


def read_rows(
    data: ds.Dataset | FileDataset,
    schema: pa.Schema,
    which: ds.Expression | None,
    where: str,
    keys: RowKeys | None = None,
) -> Iterator[pa.RecordBatch]:
    """Returns the rows of a version, or those with some keys; missing columns are NULL."""
    names = [n for n in schema.names if n in data.schema.names]
    if keys is not None:
        which = and_filter(which, keys.range_filter(data.schema))
    with files_there(where, LATER):
        for fragment in with_progress("the target", list(data.get_fragments(filter=which))):
            if keys is None:
                batches = fragment.to_batches(schema=data.schema, columns=names, filter=which)
            else:
                batches = _with_keys(fragment, data.schema, names, which, keys)
            for batch in batches:
                yield fitted(batch, schema)


def _with_keys(
    fragment: ds.Fragment | FileFragment,
    schema: pa.Schema,
    names: list[str],
    which: ds.Expression | None,
    keys: RowKeys,
) -> Iterable[pa.RecordBatch]:
    """Returns the rows of a file with some keys; other columns are read only if there are any."""
    found = keys.contained(fragment.to_table(schema=schema, columns=keys.names, filter=which))
    if not pc.any(found).as_py():
        return []
    rows = fragment.to_table(schema=schema, columns=names, filter=which)
    return list(rows.filter(found).to_batches())
