"""Some of Spark's functions over Arrow: a rule for a vendor's rows that both keep is written once.

A rule takes the functions it is made of as an argument (`Functions`): `pyspark.sql.functions`, or this
module. Its columns have Spark's operators and Spark's NULLs, and are worked out when `ArrowRows` need them;
the right side of `&` and `|`, and what `when` and `coalesce` choose from, only for the rows that it matters
to.

>>> rows = ArrowRows(pa.record_batch({"n": pa.array([1, None, 3], pa.int32())}))
>>> rows.withColumn("more", when(col("n") > 1, lit("more")).otherwise("less")).batch["more"].to_pylist()
['less', 'less', 'more']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Functions: TypeAlias = ModuleType
"""`pyspark.sql.functions`, or this module."""
AnyRows = TypeVar("AnyRows", "DataFrame", "ArrowRows")
"""What a rule is kept by: Spark's rows, or these."""
AnyColumn: TypeAlias = Any
"""A column of either."""
_Values: TypeAlias = "pa.Array | pa.Scalar"
_FEW = 4
"""Rows are worked out alone if they are fewer than one of so many."""


class ArrowRows:
    """Rows of a batch, with what Spark's data frames have: `filter`, `withColumns`, `drop`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.many: int = batch.num_rows
        self._known: dict[int, tuple[ArrowColumn, _Values]] = {}

    @property
    def columns(self) -> list[str]:
        """Names."""
        names: list[str] = self.batch.schema.names
        return names

    def named(self, name: str) -> pa.Array:
        """The values of the batch's column."""
        return self.batch[name]

    def values(self, column: ArrowColumn) -> _Values:
        """A column's values, or the one that all rows have."""
        if id(column) not in self._known:
            self._known[id(column)] = (column, column.make(self))
        return self._known[id(column)][1]

    def array(self, column: ArrowColumn) -> pa.Array:
        """A column's values, one for each row."""
        found = self.values(column)
        return pa.repeat(found, self.many) if isinstance(found, pa.Scalar) else found

    def where(self, mask: pa.Array, column: ArrowColumn) -> _Values:
        """A column's values for some rows; what the others have does not matter."""
        many = mask.true_count
        if id(column) in self._known or many * _FEW > self.many:
            return self.values(column)
        part = _Some(self, mask, many).values(column)
        if isinstance(part, pa.Scalar):
            return part
        if not many:
            return pa.nulls(self.many, part.type)
        there = mask.to_numpy(zero_copy_only=False)
        return part.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def filter(self, condition: ArrowColumn) -> ArrowRows:
        """The rows for which a condition holds."""
        stays = pc.fill_null(self.array(condition), False)
        return self if stays.true_count == self.many else ArrowRows(self.batch.filter(stays))

    def withColumns(self, columns: Mapping[str, ArrowColumn]) -> ArrowRows:  # noqa: N802 (Spark's name)
        """The rows with other or more columns."""
        made = {name: self.batch[name] for name in self.columns}
        made |= {name: self.array(column) for name, column in columns.items()}
        return ArrowRows(pa.RecordBatch.from_arrays(list(made.values()), names=list(made)))

    def withColumn(self, name: str, column: ArrowColumn) -> ArrowRows:  # noqa: N802 (Spark's name)
        """The rows with one other or one more column."""
        return self.withColumns({name: column})

    def drop(self, *names: str) -> ArrowRows:
        """The rows without some columns."""
        return ArrowRows(self.batch.select([n for n in self.columns if n not in names]))


class _Some(ArrowRows):
    """Some of other rows: no column is taken that nobody asks for."""

    def __init__(self, rows: ArrowRows, mask: pa.Array, many: int) -> None:
        super().__init__(rows.batch)
        self._rows, self._mask, self.many = rows, mask, many
        self._taken: dict[str, pa.Array] = {}

    def named(self, name: str) -> pa.Array:
        if name not in self._taken:
            values = self._rows.named(name)
            self._taken[name] = values.filter(self._mask) if self.many else values.slice(0, 0)
        return self._taken[name]


class ArrowColumn:
    """An expression over rows."""

    __hash__ = object.__hash__

    def __init__(self, make: Callable[[ArrowRows], _Values]) -> None:
        self.make = make

    def __and__(self, other: ArrowColumn) -> ArrowColumn:
        return _logic(self, other, pc.and_kleene, decides=False)

    def __or__(self, other: ArrowColumn) -> ArrowColumn:
        return _logic(self, other, pc.or_kleene, decides=True)

    def __invert__(self) -> ArrowColumn:
        return _each(pc.invert, self)

    def __eq__(self, other: object) -> ArrowColumn:  # type: ignore[override]
        return _each(pc.equal, self, other)

    def __ne__(self, other: object) -> ArrowColumn:  # type: ignore[override]
        return _each(pc.not_equal, self, other)

    def __lt__(self, other: object) -> ArrowColumn:
        return _each(pc.less, self, other)

    def __gt__(self, other: object) -> ArrowColumn:
        return _each(pc.greater, self, other)

    def __ge__(self, other: object) -> ArrowColumn:
        return _each(pc.greater_equal, self, other)

    def isNull(self) -> ArrowColumn:  # noqa: N802 (Spark's name)
        """Whether there is no value."""
        return _each(pc.is_null, self)

    def isNotNull(self) -> ArrowColumn:  # noqa: N802 (Spark's name)
        """Whether there is a value."""
        return _each(pc.is_valid, self)

    def bitwiseAND(self, other: object) -> ArrowColumn:  # noqa: N802 (Spark's name)
        """The bits that both have."""
        return _each(pc.bit_wise_and, self, other)

    def isin(self, *values: object) -> ArrowColumn:
        """Whether a value is one of these; NULL for none."""

        def made(mine: pa.Array) -> pa.Array:
            found = pc.is_in(mine, value_set=pa.array(values, mine.type))
            return pc.if_else(mine.is_valid(), found, None) if mine.null_count else found

        return _each(made, self)

    def cast(self, kind: str) -> ArrowColumn:
        """The value as an `int`, or as a `string`: bytes are taken for text as they are."""
        wanted = {"int": pa.int32(), "string": pa.string()}[kind]
        return _each(lambda mine: mine if pa.types.is_binary(mine.type) else mine.cast(wanted), self)


class _Case(ArrowColumn):
    """`when`, and what follows it."""

    def __init__(
        self, cases: Sequence[tuple[ArrowColumn, ArrowColumn]], other: ArrowColumn | None = None
    ) -> None:
        self._cases, self._other = cases, other
        super().__init__(self._made)

    def when(self, condition: ArrowColumn, value: object) -> _Case:
        """One more case."""
        return _Case([*self._cases, (condition, lit(value))])

    def otherwise(self, value: object) -> _Case:
        """What holds in no case."""
        return _Case(self._cases, lit(value))

    def _made(self, rows: ArrowRows) -> _Values:
        left: pa.Array = pa.repeat(True, rows.many)
        chosen: list[tuple[pa.Array, _Values]] = []
        for condition, value in self._cases:
            mine = pc.and_(left, pc.fill_null(rows.array(condition), False))
            chosen.append((mine, rows.where(mine, value)))
            left = pc.and_not(left, mine)
        found = pa.scalar(None, chosen[0][1].type)
        if self._other is not None:
            found = rows.where(left, self._other)
        for mine, values in reversed(chosen):
            found = pc.if_else(mine, values, found)
        return found


def col(name: str) -> ArrowColumn:
    """A column of the rows."""
    return ArrowColumn(lambda rows: rows.named(name))


def lit(value: object) -> ArrowColumn:
    """The same value for all rows; a column is given back."""
    if isinstance(value, ArrowColumn):
        return value
    kind = pa.int32() if isinstance(value, int) and not isinstance(value, bool) else None
    known = pa.scalar(value, kind)
    return ArrowColumn(lambda rows: known)


def when(condition: ArrowColumn, value: object) -> _Case:
    """A value where a condition holds."""
    return _Case([(condition, lit(value))])


def coalesce(*columns: ArrowColumn) -> ArrowColumn:
    """The first that is not NULL."""

    def made(rows: ArrowRows) -> _Values:
        found = rows.array(columns[0])
        for column in columns[1:]:
            if found.null_count:
                found = pc.coalesce(found, rows.where(found.is_null(), column))
        return found

    return ArrowColumn(made)


def nullif(column: ArrowColumn, other: ArrowColumn) -> ArrowColumn:
    """NULL where both are equal, the first elsewhere."""
    return when(coalesce(column != other, lit(True)), column)


def concat(*texts: ArrowColumn | str) -> ArrowColumn:
    """Texts and numbers one behind the other; NULL if one is."""
    return _each(lambda *values: pc.binary_join_element_wise(*values, ""), *[_text(t) for t in texts])


def concat_ws(between: str, *texts: ArrowColumn) -> ArrowColumn:
    """Those that are not NULL, with something between them."""

    def made(rows: ArrowRows) -> _Values:
        found: _Values = pa.scalar(None, pa.string())
        for values in map(rows.array, texts):
            if values.null_count < len(values):
                found = pc.coalesce(pc.binary_join_element_wise(found, values, between), found, values)
        return pc.coalesce(found, "")

    return ArrowColumn(made)


def octet_length(column: ArrowColumn | str) -> ArrowColumn:
    """How many bytes there are."""
    return _each(pc.binary_length, _named(column))


def substring(column: ArrowColumn | str, first: int, many: int) -> ArrowColumn:
    """So many bytes from a place on, counted from 1, or from the end."""
    start = first - 1 if first > 0 else first
    stop = None if start < 0 <= start + many else start + many
    return _each(lambda values: pc.binary_slice(values, start, stop), _named(column))


def replace(text: ArrowColumn, search: ArrowColumn, by: ArrowColumn) -> ArrowColumn:
    """The text with something replaced, wherever it is."""
    return _each(lambda t, s, b: pc.replace_substring(t, s.as_py(), b.as_py()), text, search, by)


def regexp_replace(text: ArrowColumn, pattern: str, by: str) -> ArrowColumn:
    """The text with what matches a pattern replaced."""
    return _each(lambda t: pc.replace_substring_regex(t, pattern, by), text)


def create_map(*pairs: ArrowColumn) -> Mapping[Any, Any]:
    """Constant keys and values, in turn, for `element_at`."""
    none = ArrowRows(pa.record_batch({"": pa.nulls(0)}))
    values = [none.values(column).as_py() for column in pairs]
    return dict(zip(values[::2], values[1::2], strict=True))


def element_at(known: Mapping[Any, Any], key: ArrowColumn) -> ArrowColumn:
    """The value of a key; NULL if there is none."""

    def made(keys: pa.Array) -> pa.Array:
        found = pc.index_in(keys, value_set=pa.array(list(known), keys.type))
        return _array(list(known.values())).take(found)

    return _each(made, key)


def _array(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.int32() if isinstance(values[0], int) else None)


def _named(column: ArrowColumn | str) -> ArrowColumn:
    return col(column) if isinstance(column, str) else column


def _text(column: ArrowColumn | str) -> ArrowColumn:
    return _named(column).cast("string")


def _each(work: Callable[..., _Values], *columns: object) -> ArrowColumn:
    mine = [lit(c) for c in columns]
    return ArrowColumn(lambda rows: work(*[rows.values(c) for c in mine]))


def _logic(a: ArrowColumn, b: ArrowColumn, work: Callable[..., _Values], *, decides: bool) -> ArrowColumn:
    """Both; the second only for rows where the first one is not what decides."""

    def made(rows: ArrowRows) -> _Values:
        first = rows.array(a)
        opened = pc.fill_null(pc.not_equal(first, decides), True)
        return work(first, rows.where(opened, b))

    return ArrowColumn(made)


__all__ = [
    "AnyColumn",
    "AnyRows",
    "ArrowColumn",
    "ArrowRows",
    "Functions",
    "coalesce",
    "col",
    "concat",
    "concat_ws",
    "create_map",
    "element_at",
    "lit",
    "nullif",
    "octet_length",
    "regexp_replace",
    "replace",
    "substring",
    "when",
]  # fmt: skip
