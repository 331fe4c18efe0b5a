"""Statistics of a table's files as Arrow expressions, so that filters skip files without matching rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import repeat
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from .filestats import LONGEST

_ALL = pc.scalar(True)
_NONE = pa.scalar(None)
_CUT = pa.scalar(1000, pa.duration("us"))
"""The precision of times in statistics of other writers, which cut them to milliseconds."""
_MISREAD = rf"^.{{0,{LONGEST - 1}}}[\x{{10000}}-\x{{10FFFF}}]"
"""Texts that delta-rs compares as smaller if they are escaped, as early releases did.

The final character of a truncated text still compares greater than most.
"""


def known(schema: pa.Schema, files: pa.Table) -> list[ds.Expression]:
    """Returns a condition that holds for all rows of each file; `files` is delta-rs's flat `get_add_actions`.

    Columns without minimum and maximum are ignored. delta-rs itself reports them as at least and at most
    NULL, and Arrow then finds none of their rows.
    """
    said, rows = dict(zip(files.column_names, files.columns, strict=True)), files["num_records"].to_pylist()
    columns = [list(_of(field, said, rows)) for field in schema]
    each = zip(*columns, strict=True) if columns else repeat((), files.num_rows)
    return [reduce(and_, (one for one in told if one is not None), _ALL) for told in each]


def _of(
    field: pa.Field, said: Mapping[str, pa.ChunkedArray], rows: Sequence[int | None]
) -> Iterator[ds.Expression | None]:
    """Yields the condition for one column in each file; `rows` are the files' row counts."""
    column = pc.field(field.name)
    if (values := said.get(f"partition.{field.name}")) is not None:
        for value in values:
            yield column == value if value.is_valid else column.is_null()
        return
    counted = said.get(f"null_count.{field.name}")
    nulls = repeat(None, len(rows)) if counted is None else counted.to_pylist()
    for (least, greatest), missing, many in zip(_ends(field, said, len(rows)), nulls, rows, strict=True):
        if missing is not None and missing == many:
            yield column.is_null()
        elif least.is_valid and greatest.is_valid:
            ends = column >= least, column <= greatest
            # Arrow can use an OR with one comparison, not with two.
            yield and_(*ends if missing == 0 else (one | column.is_null() for one in ends))
        else:
            yield None


def _ends(
    field: pa.Field, said: Mapping[str, pa.ChunkedArray], files: int
) -> Iterable[tuple[pa.Scalar, pa.Scalar]]:
    """Returns the minimum and maximum of one column in each file; NULL if unknown."""
    low, high = said.get(f"min.{field.name}"), said.get(f"max.{field.name}")
    if low is None or high is None or pa.types.is_floating(field.type):  # they do not cover NaN
        return repeat((_NONE, _NONE), files)
    if pa.types.is_timestamp(field.type):
        high = pc.add(high, _CUT)
    if pa.types.is_string(field.type):
        high = pc.if_else(pc.match_substring_regex(high, _MISREAD), None, high)
    return zip(low, high, strict=True)
