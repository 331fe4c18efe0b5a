"""Splits PostgreSQL's text of arrays into their elements' texts, whole columns at a time.

Source: PostgreSQL manual, "Array Input and Output Syntax": elements in braces, separated by commas, NULL
without quotes; quotes around special elements, with backslashes before quotes and backslashes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .array_text import between, of_elements, unescaped
from .pgoutput import flat


def split(text: pa.StringArray) -> pa.ListArray:
    """Returns the elements of arrays; null for NULL, for several dimensions, and for explicit bounds.

    >>> split(pa.array(['{1,NULL,"a,\\\\"b"}', "{}", None, "{{1}}", "[0:1]={1,2}"])).to_pylist()
    [['1', None, 'a,"b'], [], None, None, None]
    """
    plain = pc.and_(pc.starts_with(text, "{"), pc.invert(pc.starts_with(text, "{{")))
    valid = pc.fill_null(plain, False).to_numpy(zero_copy_only=False)
    inside = pc.utf8_slice_codeunits(pc.if_else(pa.array(valid), text, "{}"), 1, -1)
    buf, starts, stops = flat(inside.cast(pa.binary()))
    if not len(text):
        return pa.array([], pa.list_(pa.string()))
    low, high = int(starts[0]), int(stops[-1])
    quotes = unescaped(buf, starts, high, '"', "\\")
    commas = np.flatnonzero(buf[low:high] == ord(",")) + low
    commas = commas[np.searchsorted(quotes, commas) % 2 == 0]
    found, ends = between(buf, starts, stops, valid & (stops > starts), commas)
    quoted = pc.starts_with(found, '"')
    known = pc.if_else(pc.equal(found, "NULL"), pa.scalar(None, pa.string()), found)
    text = pc.replace_substring_regex(pc.utf8_slice_codeunits(found, 1, -1), r"(?s)\\(.)", r"\1")
    values = pc.if_else(quoted, text, known)
    return of_elements(values, ends, valid)
