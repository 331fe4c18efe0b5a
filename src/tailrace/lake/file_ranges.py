"""What the statistics of a table's files say of their rows, in Arrow's terms: a filter leaves out the files
that are known to have no row for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import repeat
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from .filestats import LONGEST

_ALL = pc.scalar(True)
_CUT = pa.scalar(1000, pa.duration("us"))
"""Other writers cut times to milliseconds."""
_MISREAD = rf"^.{{0,{LONGEST - 1}}}[\x{{10000}}-\x{{10FFFF}}]"
"""delta-rs reads these characters as lesser ones if they are escaped, as early releases did. The last one of
a text that was cut is still greater than most."""


def known(schema: pa.Schema, files: pa.Table) -> list[ds.Expression]:
    """What holds for all rows of each file; `files`: delta-rs's flat `get_add_actions`.

    Nothing is told of a column without least and greatest value. delta-rs itself says that such values are
    at least and at most NULL, and Arrow then finds none of them.
    """
    columns = [list(_of(field, files)) for field in schema]
    each = zip(*columns, strict=True) if columns else repeat((), files.num_rows)
    return [reduce(and_, (one for one in told if one is not None), _ALL) for told in each]


def _of(field: pa.Field, files: pa.Table) -> Iterator[ds.Expression | None]:
    """What is known of one column in each file."""
    column, none = pc.field(field.name), pa.nulls(files.num_rows)

    def said(what: str) -> Any:
        name = f"{what}.{field.name}"
        return files[name] if name in files.column_names else none

    if f"partition.{field.name}" in files.column_names:
        for value in said("partition"):
            yield column == value if value.is_valid else column.is_null()
        return
    low, high = said("min"), said("max")
    if pa.types.is_timestamp(field.type) and high is not none:
        high = pc.add(high, _CUT)
    if pa.types.is_string(field.type) and high is not none:
        high = pc.if_else(pc.match_substring_regex(high, _MISREAD), None, high)
    if pa.types.is_floating(field.type):  # they say nothing of NaN
        low = high = none
    nulls, rows = said("null_count").to_pylist(), files["num_records"].to_pylist()
    for least, greatest, missing, many in zip(low, high, nulls, rows, strict=True):
        if missing is not None and missing == many:
            yield column.is_null()
        elif least.is_valid and greatest.is_valid:
            ends = column >= least, column <= greatest
            # Arrow understands an alternative of one comparison, not of two.
            yield and_(*ends if missing == 0 else (one | column.is_null() for one in ends))
        else:
            yield None
