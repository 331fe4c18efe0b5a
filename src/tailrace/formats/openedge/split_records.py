"""Joins the two rows of split records to one image, and splits them again.

A row whose `_Continuation-Position` is not 0 is the first or the second half. The first half's fields say
the position of the cut (spec/openedge.md §3.3):

| _Fragment | _ArrayIndex | the field after _Continuation-Position |
|---|---|---|
| 0 | 0 | not started |
| 1 | 0 | a value cut in two; an array's first element cut in two |
| 1 | k | an array: k complete elements, the next one cut in two |
| 0 | k | an array: k complete elements, cut between elements |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...model.quoting import quoted
from ..base import ADDED_COLUMNS, FILE, OWN, RAW, ROW, WHY
from ..shape import any_of, looked_up, reasons
from ..spark_functions import F, Window
from ..types import join_array, split_array

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPLIT = OWN + "split"
"""Text `position,element,fragment,length;position,element,fragment` of a joined image: where the first half
was cut, the length of the cut value in it, and the second half's fields. NULL: the image was never split."""
POSITION, ELEMENT, FRAGMENT = "_Continuation-Position", "_ArrayIndex", "_Fragment"
_CUT = ("string", "binary")
_HALF, _WHOLE, _COPY = OWN + "half", -1, OWN + "copy"
_PLACE, _AT, _IS_CUT, _LENGTH, _NEAR = (f"{SPLIT}_{n}" for n in ("place", "element", "cut", "length", "near"))
"""Columns with the first half's fields, and with the position after it: all other columns need them."""


def join_halves(df: DataFrame, positions: Mapping[str, int], extents: Mapping[str, int]) -> DataFrame:
    """Returns the rows with halves joined, and a column `SPLIT`; a half without the other gets a reason.

    Args:
        df: rows of a change table, with the declared names of metadata columns.
        positions: user column -> physical position in the change table.
        extents: the user columns that are arrays.
    """
    half = F.coalesce(F.col(POSITION), F.lit(0)) != 0
    none = F.lit(None).cast("string")
    if df.select(POSITION).filter(half).isEmpty():  # reads one narrow column instead of all again
        return df.withColumn(SPLIT, none)
    whole = df.filter(~half).withColumn(SPLIT, none)
    halves = (
        df.filter(half)
        .withColumn(_COPY, _copy_number(df))
        .groupBy("_Change-Sequence", "_Operation", _COPY)
        .agg(
            F.sort_array(F.collect_list(F.struct(POSITION, F.struct(*_columns(df)).alias("row")))).alias("h")
        )
    )
    first, second = F.get("h", F.lit(0))["row"], F.get("h", F.lit(1))["row"]
    cut = F.coalesce(first[FRAGMENT], F.lit(0)) == 1
    places = {_PLACE: first[POSITION], _AT: F.coalesce(first[ELEMENT], F.lit(0)), _IS_CUT: cut}
    halves = halves.withColumns({**places, _NEAR: _next(first[POSITION], positions)})
    joined = halves.select(*_joined(df, positions, extents, first, second))
    return whole.unionByName(joined)


def _copy_number(df: DataFrame) -> Column:
    """Returns the number of a half among equal halves, e.g. of a file that was delivered twice."""
    equal = Window.partitionBy(*(F.col(quoted(c)) for c in df.columns if c not in ADDED_COLUMNS))
    return F.row_number().over(equal.orderBy(*(F.col(c) for c in (FILE, ROW) if c in df.columns), POSITION))


def _columns(df: DataFrame) -> list[Column]:
    return [F.col(quoted(c)) for c in df.columns]


def _joined(
    df: DataFrame, positions: Mapping[str, int], extents: Mapping[str, int], first: Column, second: Column
) -> list[Column]:
    size = F.size("h")
    place, element, cut, near = (F.col(c) for c in (_PLACE, _AT, _IS_CUT, _NEAR))
    kinds = {f.name: f.dataType.simpleString() for f in df.schema}
    result: dict[str, Column] = {}
    lengths, lone = [F.lit(None).cast("int")], []
    for column, at in positions.items():
        one, two = first.getField(column), second.getField(column)
        array = column in extents
        if array:
            value = _join_elements(one, two, element, cut)
        else:
            value = F.when(cut, F.concat(one, two)).otherwise(two) if kinds[column] in _CUT else two
            lone.append((near == at) & (one.isNull() | two.isNull()))
        if array or kinds[column] in _CUT:
            lengths.append(F.when((near == at) & cut, _length(one, element, array)))
        result[column] = F.when((size == 1) | (place >= at), one).when(near == at, value).otherwise(two)
    named = {at: c for c, at in positions.items()}
    inside = _text_at(near, {at: f"split record cut inside {c}" for at, c in named.items()})
    rigid = {at: f", a {kinds[c]}" for at, c in named.items() if c not in extents}
    whole = near.isin([at for at in rigid if kinds[named[at]] not in _CUT])
    bad: list[tuple[Column, str | Column]] = [
        (size == 1, "half of a split record: the other half is missing"),
        (size > 2, F.concat(F.lit("split record of "), size.cast("string"), F.lit(" rows"))),
        (F.get("h", F.lit(1))[POSITION] == place, "both halves of a split record end at one position"),
        (near.isin(list(rigid)) & ((whole & cut) | (element > 0)), F.concat(inside, _text_at(near, rigid))),
        (cut & (size == 2) & any_of(lone), F.concat(inside, F.lit(", and one part of it is missing"))),
    ]
    text = F.concat_ws(
        ";",
        _numbers(place, element, cut.cast("int"), F.coalesce(*lengths)),
        _numbers(*(second[c] for c in (POSITION, ELEMENT, FRAGMENT))),
    )
    result |= {POSITION: F.lit(0), ELEMENT: F.lit(0), FRAGMENT: F.lit(0)}
    result[WHY] = reasons(
        [(first[WHY].isNotNull(), first[WHY]), (second[WHY].isNotNull(), second[WHY]), *bad]
    )
    result[RAW] = F.concat_ws(",", first[RAW], second[RAW])
    found = {c: result.get(c, first.getField(c)) for c in df.columns}
    return [*(v.cast(df.schema[c].dataType).alias(c) for c, v in found.items()), text.alias(SPLIT)]


def _next(place: Column, positions: Mapping[str, int]) -> Column:
    """Returns the position of the first column after `place`; NULL after the last one."""
    every = F.array(*map(F.lit, sorted(positions.values()))).cast("array<int>")
    return F.array_min(F.filter(every, lambda p: p > place))


def _text_at(near: Column, texts: Mapping[int, str]) -> Column:
    """Returns the text of a position; NULL if it has none."""
    if not texts:
        return F.lit(None).cast("string")
    return looked_up(texts, near)


def _numbers(*values: Column) -> Column:
    return F.concat_ws(",", *(F.coalesce(v.cast("string"), F.lit("")) for v in values))


def _length(one: Column, element: Column, array: bool) -> Column:
    return F.length(F.get(split_array(one), element)) if array else F.length(one)


def _join_elements(one: Column, two: Column, element: Column, cut: Column) -> Column:
    """Returns the array's text: `element` elements of the first half, possibly an element cut in two, the
    rest."""
    left, right = split_array(one), split_array(two)
    middle = F.array(F.concat(F.get(left, element), F.get(right, element)))
    skip = element + F.when(cut, 2).otherwise(1)
    rest = F.slice(right, skip, F.greatest(F.size(right) - skip + 1, F.lit(0)))
    whole = F.when(element > 0, F.slice(left, F.lit(1), F.greatest(element, F.lit(1)))).otherwise(
        F.array().cast("array<string>")
    )
    return join_array(F.concat(whole, F.when(cut, middle).otherwise(F.array().cast("array<string>")), rest))


def cut_halves(df: DataFrame, positions: Mapping[str, int], extents: Mapping[str, int]) -> DataFrame:
    """Returns the rows split again according to `SPLIT`, without `SPLIT`; the inverse of `join_halves`."""
    split = F.col(SPLIT)
    halves = F.when(split.isNull(), F.array(F.lit(_WHOLE))).otherwise(F.array(F.lit(0), F.lit(1)))
    df = df.select("*", F.explode(halves).alias(_HALF))
    half = F.col(_HALF)
    first, second = (F.split(F.split_part(split, F.lit(";"), F.lit(n)), ",") for n in (1, 2))
    names, kinds = [c for c in df.columns if c not in (SPLIT, _HALF)], df.schema
    said = {c: F.get(first, F.lit(i)).try_cast("int") for i, c in enumerate((_PLACE, _AT, _IS_CUT, _LENGTH))}
    df = df.withColumns(said).withColumn(_NEAR, _next(F.col(_PLACE), positions))
    place, element, fragment, length, near = (F.col(c) for c in (*said, _NEAR))
    result: dict[str, Column] = {}
    for i, column in enumerate((POSITION, ELEMENT, FRAGMENT)):
        part = F.when(half == 0, F.get(first, F.lit(i))).when(half == 1, F.get(second, F.lit(i)))
        result[column] = F.when(half == _WHOLE, F.col(quoted(column))).otherwise(part.try_cast("int"))
    for column, at in positions.items():
        value = F.col(quoted(column))
        mine = (half == _WHOLE) | ((half == 0) == (place >= at))
        result[column] = F.when(mine, value)
        if column in extents or kinds[column].dataType.simpleString() in _CUT:  # other types cannot be cut
            cut = _cut_elements if column in extents else _cut_value
            part = cut(value, half, element, fragment, length)
            result[column] = F.when(near == at, part).otherwise(result[column])
    named = {c: result.get(c, F.col(quoted(c))) for c in names}
    return df.select(*(v.cast(kinds[c].dataType).alias(c) for c, v in named.items()))


def _cut_value(value: Column, half: Column, element: Column, fragment: Column, length: Column) -> Column:
    rest = F.substring(value, length + 1, F.length(value))
    return F.when(half == 0, F.when(fragment == 1, F.substring(value, F.lit(1), length))).otherwise(
        F.when(fragment == 1, rest).otherwise(value)
    )


def _cut_elements(value: Column, half: Column, element: Column, fragment: Column, length: Column) -> Column:
    """Returns the array with unknown values for the other half's elements, and a part of the element at the
    cut."""

    def mine(e: Column, i: Column) -> Column:
        at = (i == element) & (fragment == 1)
        left = F.when(at, F.substring(e, F.lit(1), length)).when(i < element, e)
        right = F.when(at, F.substring(e, length + 1, F.length(e))).when(i >= element, e)
        return F.when(half == 0, left).otherwise(right)

    result = join_array(F.transform(split_array(value), mine))
    return F.when((half == 1) | (element > 0) | (fragment == 1), result)
