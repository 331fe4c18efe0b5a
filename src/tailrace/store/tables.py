"""Creates change tables on Delta, and adapts them to their source table's layout.

Columns are only ever appended, so an ordinal (a bit of the masks) always means the same column. A column
whose type becomes wider is widened in place (one rewrite). If it gets another type, the old values stay under
`<name>__until_<change number>`, and a new column is appended under the name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ..errors import UnsupportedError
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..model.change import PREFIX, Relation
from ..model.types import arrow_type, header_schema, schema_of

PROPERTIES = {"delta.enableDeletionVectors": "false"}
SEQ = PREFIX + "change_seq"
_UNTIL = "__until_"

_WIDER = {
    pa.int16(): (pa.int32(), pa.int64(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of one type is also a value of the other, unchanged.

    >>> widens(pa.int32(), pa.int64()), widens(pa.int64(), pa.int32())
    (True, False)
    >>> widens(pa.decimal128(10, 2), pa.decimal128(12, 2)), widens(pa.decimal128(10, 2), pa.decimal128(10, 3))
    (True, False)
    """
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if pa.types.is_decimal(new) and pa.types.is_integer(old):
        digits = {pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}[old]
        return bool(new.precision - new.scale >= digits)
    return new in _WIDER.get(old, ())


def kept_as(names: Iterable[str], column: str, number: int) -> str:
    """Returns the name, in a change table, of a column called `column` in the layout valid at a change
    number.

    >>> names = ["n__until_50", "n__until_90", "n"]
    >>> [kept_as(names, "n", number) for number in (7, 49, 50, 90)]
    ['n__until_50', 'n__until_50', 'n__until_90', 'n']
    """
    start = f"{column}{_UNTIL}"
    ends = [int(n[len(start) :]) for n in names if n.startswith(start) and n[len(start) :].isdigit()]
    later = [end for end in ends if end > number]
    return f"{start}{min(later)}" if later else column


def plain_name(column: str) -> str:
    """Returns the name that a column of a change table had in the source.

    >>> plain_name("n__until_50"), plain_name("n")
    ('n', 'n')
    """
    name, found, number = column.rpartition(_UNTIL)
    return name if found and number.isdigit() else column


def as_kept(schema: pa.Schema, relation: Relation, number: int) -> Relation:
    """Returns a layout valid at a change number, with its columns' names in the change table."""
    return relation.with_columns(
        [replace(c, name=kept_as(schema.names, c.name, number)) for c in relation.columns]
    )


def ensure(table: str, relation: Relation, number: int = 0) -> pa.Schema:
    """Adapts the change table to a layout valid from a change number on, and returns its schema; does nothing
    if it fits already, or if later layouts have renamed columns of this one.

    Raises:
        UnsupportedError: names of two columns are equal or differ in letter case only; or a column has a name
            under which earlier values of another column are kept.
    """
    wanted = pa.schema([*header_schema(), *schema_of(relation.columns)])
    _refuse_twins(wanted.names, relation.table)
    if not lake.exists(table):
        _refuse_kept(relation, wanted.names)
        lake.create(table, wanted, PROPERTIES)
        return wanted
    have = lake.arrow_schema(table)
    _refuse_kept(relation, [*wanted.names, *have.names])
    relation = as_kept(have, relation, number)
    kinds = {f.name: f.type for f in have}
    changed = {
        c.name: arrow_type(c.type)
        for c in relation.columns
        if c.name in kinds and kinds[c.name] != arrow_type(c.type)
    }
    # An earlier layout may be narrower than the table: its values fit unchanged.
    changed = {name: kind for name, kind in changed.items() if not widens(kind, kinds[name])}
    if changed:
        _rewrite(table, have, changed, number)
    missing = [f for f in schema_of(relation.columns) if f.name not in kinds]
    if missing:
        _refuse_twins([*kinds, *(f.name for f in missing)], relation.table)
        reach("store.layout")
        lake.add_columns(table, missing)
    return lake.arrow_schema(table) if changed or missing else have


def _refuse_kept(relation: Relation, names: Collection[str]) -> None:
    for column in relation.columns:
        if plain_name(column.name) != column.name and plain_name(column.name) in names:
            raise UnsupportedError(
                f"the column {column.name} has the name under which its change table keeps earlier values of "
                f"{plain_name(column.name)}",
                where=relation.table,
                hint="rename it at the source: then a new baseline starts",
            )


def _refuse_twins(names: Iterable[str], table: str) -> None:
    first: dict[str, str] = {}
    for name in names:
        if name.lower() in first:
            raise UnsupportedError(
                f"its change table cannot have both of the columns {first[name.lower()]} and {name}",
                where=table,
                hint="rename one at the source: then a new baseline starts",
            )
        first[name.lower()] = name


def _rewrite(table: str, have: pa.Schema, changed: dict[str, pa.DataType], number: int) -> None:
    """Commits the same rows in the changed types, streamed file by file."""
    fields, renamed = [], []
    for f in have:
        if f.name not in changed:
            fields.append(f)
        elif widens(f.type, changed[f.name]):
            fields.append(pa.field(f.name, changed[f.name]))
        else:
            fields.append(pa.field(f"{f.name}{_UNTIL}{number}", f.type))
            renamed.append(pa.field(f.name, changed[f.name]))
    wanted = pa.schema([*fields, *renamed])

    def once(now: DeltaTable) -> int | None:
        part = lake.Part(table, wanted, name="changes")
        for batch in lake.dataset(now).to_batches():
            columns = [pc.cast(batch[f.name], fields[i].type) for i, f in enumerate(have)]
            columns += [pa.nulls(batch.num_rows, f.type) for f in renamed]
            part.write(pa.record_batch(columns, schema=wanted))
        added = part.close()
        files = [added] if added else []
        reach("store.retype")
        return lake.overwrite(table, files, schema=wanted, progress={}, only_after=now.version())

    lake.on_newest(table, once)
