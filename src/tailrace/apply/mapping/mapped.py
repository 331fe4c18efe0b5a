"""Maps change tables and rows: applies the criteria, computes the target's columns, and moves the masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from ...model import mask
from ...model.change import INSERT, ChangeTable
from ...targets.images import UNKNOWN_VALUE, col
from ...targets.plans import UNKNOWN
from .criteria import matching
from .prepare import MappedColumn, Prepared

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SMALL = 50_000


def mapped(changes: ChangeTable, mapping: Prepared, counts: Mapping[str, int] = UNKNOWN) -> ChangeTable:
    """The changes of a source as changes of its target.

    They have the headers of `changes` (with criteria also `header__native_change_row_type`), then the columns
    of the target. Expressions and constants have the types of `mapping.relation`. Columns of the source keep
    their
    types: whether the target's type has their values is checked for each change later. A column of the target
    is in an image if all columns that it needs are, and has changed if any of them has.

    The job that reads the changes fails with `UNKNOWN_MATCH` or `UNKNOWN_VALUE` and the change sequence at an
    image without the columns that criteria or expressions need (see `images.refused`).
    """
    if mapping.where is not None:
        small = counts is not UNKNOWN and sum(counts.values()) <= _SMALL
        changes = matching(changes, mapping.where, small=small)
    headers = [changes.header(h) for h in changes.headers]
    names = [p.column.name for p in mapping.parts]
    new = {name: len(headers) + i for i, name in enumerate(names)}
    values = []
    for name in headers:
        kind = name.removeprefix(changes.prefix)
        if kind == "column_mask":
            values.append(_carried(changes, mapping, new).alias(name))
        elif kind == "change_mask":
            values.append(_changed(changes, mapping, new).alias(name))
        else:
            values.append(col(name))
    values += [_value(p, changes).alias(p.column.name) for p in mapping.parts]
    relation = mapping.relation
    return replace(
        changes, df=changes.df.select(*values), key=relation.key, columns=names, name=relation.table
    )


def counts_of(counts: Mapping[str, int], mapping: Prepared) -> dict[str, int]:
    """Upper bounds of the number of mapped changes of each kind, from those of the source's changes."""
    found = dict(counts)
    if any(p.absent for p in mapping.parts):
        found["absent"] = counts.get("absent", 0) + counts.get("U", 0)
    if mapping.where is not None:
        found |= {"I": counts.get("I", 0) + counts.get("U", 0), "D": counts.get("D", 0) + counts.get("U", 0)}
    if mapping.moves_keys:
        found["key_changes"] = counts.get("U", 0)
    return found


def rows(df: DataFrame, mapping: Prepared) -> DataFrame:
    """Rows of the target, from rows of the source with the names of the source."""
    from pyspark.sql import functions as F

    if mapping.where is not None:
        df = df.where(F.expr(mapping.where.sql))
    return df.select(*[_plain(p).cast(p.column.type).alias(p.column.name) for p in mapping.parts])


def _plain(part: MappedColumn) -> Column:
    from pyspark.sql import functions as F

    if part.source is not None:
        return col(part.source)
    return F.lit(part.constant) if part.expression is None else F.expr(part.expression.sql)


def _value(part: MappedColumn, changes: ChangeTable) -> Column:
    """The value of a column: NULL if no column that it needs is in the image. Fails if only some are."""
    from pyspark.sql import functions as F

    if part.source is not None:
        return _plain(part)
    value = _plain(part).cast(part.column.type)
    name = changes.header("column_mask")
    if len(part.needs) == 0 or name not in changes.df.columns:
        return value
    given = _bits(changes, "column_mask", part.needs)
    complete = _all(given) | col(name).isNull()
    if len(part.needs) == 1:
        return F.when(complete, value)
    # Missing values of a before image are not read. Those that an after image has may have changed.
    some = _any([bit for need, bit in zip(part.needs, given, strict=True) if need not in changes.key])
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    refuse = F.raise_error(F.concat(F.lit(UNKNOWN_VALUE), seq)).cast(part.column.type)
    return F.when(complete, value).when(some & oper.isin("U", "I"), refuse)


def _bits(changes: ChangeTable, header: str, names: Sequence[str]) -> list[Column]:
    return mask.bits(col(changes.header(header)), [changes.ordinal(n) for n in names])


def _all(bits: Sequence[Column]) -> Column:
    from pyspark.sql import functions as F

    return reduce(and_, bits, F.lit(True))


def _any(bits: Sequence[Column]) -> Column:
    from pyspark.sql import functions as F

    return reduce(or_, bits, F.lit(False))


def _carried(changes: ChangeTable, mapping: Prepared, new: Mapping[str, int]) -> Column:
    """The column mask of the target's columns; `new`: their ordinals."""
    from pyspark.sql import functions as F

    extra = {}
    for p in mapping.parts:
        if p.source is None and not p.absent:
            extra[new[p.column.name]] = _all(_bits(changes, "column_mask", p.needs))
    given = col(changes.header("column_mask"))
    moved = F.when(given.isNotNull(), _moved(changes, "column_mask", mapping, new, extra))
    if not any(p.absent for p in mapping.parts):
        return moved
    present = mask.encode([new[p.column.name] for p in mapping.parts if not p.absent])
    return F.coalesce(moved, F.lit(bytearray(present)))


def _changed(changes: ChangeTable, mapping: Prepared, new: Mapping[str, int]) -> Column:
    """The change mask of the target's columns; `new`: their ordinals."""
    from pyspark.sql import functions as F

    inserted = col(changes.header("change_oper")) == INSERT
    extra = {}
    for p in mapping.parts:
        if p.source is None and not p.absent:
            changed = _any(_bits(changes, "change_mask", p.needs))
            extra[new[p.column.name]] = changed if p.needs else inserted
    moved = _moved(changes, "change_mask", mapping, new, extra)
    if mapping.where is not None:  # an update that became an insert changes every column
        moved = F.when(inserted, F.lit(bytearray(mask.encode(new.values())))).otherwise(moved)
    return F.when(col(changes.header("change_mask")).isNotNull(), moved)


def _moved(
    changes: ChangeTable, header: str, mapping: Prepared, new: Mapping[str, int], extra: Mapping[int, Column]
) -> Column:
    """A mask with the bits of plain columns at their new ordinals, and the `extra` bits of other columns."""
    from pyspark.sql import functions as F

    value = col(changes.header(header))
    width = max(new.values()) // mask.WORD + 1
    zero = F.lit(0).cast("bigint")
    words = [zero] * width
    plain = [p for p in mapping.parts if p.source is not None]
    for ordinals in _once_each([(changes.ordinal(str(p.source)), new[p.column.name]) for p in plain]):
        old = mask.words(value, max(ordinals) + 1)
        for i, word in enumerate(mask.moved(old, ordinals)):
            words[i] = words[i].bitwiseOR(word)
    for bit, is_set in extra.items():
        at, inside = divmod(bit, mask.WORD)
        number = 1 << inside if inside < mask.WORD - 1 else -(1 << inside)
        words[at] = words[at].bitwiseOR(F.when(is_set, F.lit(number).cast("bigint")).otherwise(zero))
    return mask.from_words(words)


def _once_each(pairs: Sequence[tuple[int, int]]) -> list[dict[int, int]]:
    """Groups moves of bits into mappings. A bit that moves to two ordinals is in two of them.

    >>> _once_each([(8, 9), (9, 8), (8, 10)])
    [{8: 9, 9: 8}, {8: 10}]
    """
    found: list[dict[int, int]] = []
    for old, to in pairs:
        free = next((one for one in found if old not in one), None)
        if free is None:
            free = {}
            found.append(free)
        free[old] = to
    return found
