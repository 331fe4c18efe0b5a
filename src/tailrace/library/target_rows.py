"""Rows of a version of a Delta target: the layout that they have, and which rows can take changes on top."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ..errors import UnsupportedError
from ..lake import log
from ..lake.log import Layout
from ..lake.past import LATER, files_there
from ..lake.reading import fitted, unread
from ..model import sequence
from ..model.change import Column, Relation
from ..model.types import arrow_type
from ..query.change_files import both
from ..query.layouts import broken
from ..query.watch import watched
from ..state.baselines import Baseline
from ..store.tables import widens
from .row_keys import RowKeys

_REACHED = "a place that the target has reached (its version after the change of the layout)"


def layouts_from(
    layouts: Sequence[Layout], taken: Baseline, hidden: Collection[str], number: int
) -> list[Layout]:
    """The layout of rows that stand upon a baseline and have reached a change number, and later ones.
    `hidden`: columns that are in no answer."""
    begun = begun_by(taken)
    kept = [c for c in taken.relation.columns if c.name not in hidden]
    begun = replace(begun, relation=taken.relation.with_columns(kept))
    later = [
        one for one in layouts if one.from_position >= begun.from_position and log.number(one) > taken.after
    ]
    passed = sum(log.number(one) <= number for one in later)
    return [begun, *later][passed:]


def begun_by(taken: Baseline) -> Layout:
    """The layout of a baseline's rows, from where they are valid."""
    return Layout(taken.relation, bytes.fromhex(taken.position), sequence.make(0, max(taken.after, 0)))


def in_order(fields: Iterable[pa.Field], relation: Relation) -> list[pa.Field]:
    """A target's columns in the order of a layout, others behind them: a target that was made anew with the
    same names keeps the order of before.

    >>> columns = (Column("id", 1, "int", "int4", "int"), Column("a", 2, "text", "text", "string"))
    >>> fields = [pa.field(n, pa.string()) for n in ("a", "kept", "id")]
    >>> [f.name for f in in_order(fields, Relation(1, "shop", "item", "d", columns))]
    ['id', 'a', 'kept']
    """
    places = {c.name: k for k, c in enumerate(relation.columns)}
    return sorted(fields, key=lambda f: places.get(f.name, len(places)))


def refuse_features(delta: DeltaTable, where: str, what: str = "the target") -> None:
    """Raises UnsupportedError for a table with features that this process does not read."""
    if more := unread(delta):
        raise UnsupportedError(
            f"{what} has {', '.join(more)}, which this process does not read",
            where=where,
            hint="read it with Spark: `tailrace sql --spark`, or by path (docs/readers.md)",
        )


def refuse_broken(layouts: Sequence[Layout], last: str, where: str) -> None:
    """Raises UnsupportedError when changes up to a change sequence cannot be laid over rows in the first of
    these layouts."""
    if (why := broken(layouts, "", last)) is not None:
        what = f"{why}, and the target has no version between that and this place"
        raise UnsupportedError(what, where=where, hint=f"ask for {_REACHED}, or for one of before")


def refuse_other(column: Column, have: pa.Schema, older: bool, where: str) -> None:
    """Raises UnsupportedError when a target's rows do not have the column that the changes have; `older`: the
    source had it when they were written."""
    if column.name not in have.names:
        why = "was added with a default" if column.missing is not None else None
        why = "is not in the target" if older else why
    else:
        old, new = have.field(column.name).type, arrow_type(column.type)
        why = None if old == new or widens(old, new) else "has another type"
    if why is not None:
        raise UnsupportedError(
            f"the column {column.name} {why}", where=where,
            hint=f"ask for {_REACHED}",
        )  # fmt: skip


def read(
    data: ds.Dataset, schema: pa.Schema, which: ds.Expression | None, where: str, keys: RowKeys | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a version, or those that have some keys; columns that it lacks are NULL."""
    names = [n for n in schema.names if n in data.schema.names]
    if keys is not None:
        which = both(which, keys.range(data.schema))
    with files_there(where, LATER):
        for fragment in watched("the target", list(data.get_fragments(filter=which))):
            if keys is None:
                batches = fragment.to_batches(schema=data.schema, columns=names, filter=which)
            else:
                batches = _with_keys(fragment, data.schema, names, which, keys)
            for batch in batches:
                yield fitted(batch, schema)


def _with_keys(
    fragment: ds.Fragment, schema: pa.Schema, names: list[str], which: ds.Expression | None, keys: RowKeys
) -> Iterable[pa.RecordBatch]:
    """The rows of a file that have some keys: other columns are read only if there are any."""
    found = keys.among(fragment.to_table(schema=schema, columns=keys.names, filter=which))
    if not pc.any(found).as_py():
        return []
    rows = fragment.to_table(schema=schema, columns=names, filter=which)
    return list(rows.filter(found).to_batches())
