"""Arrays as one text, whole columns at a time: elements joined by `;`, escaped by `~`, NULL as `?`.

This is OpenEdge's text of arrays (spec/openedge.md §7). An empty array, which OpenEdge does not have, is a
single `~`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .soliddb_rows import cut, flat

SEPARATOR, ESCAPE, UNKNOWN = ";", "~", "?"
EMPTY = ESCAPE
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def elements(values: pa.ListArray) -> tuple[pa.Array, Ints]:
    """Returns the concatenated elements of arrays, and the start and end of each array among them.

    >>> found, ends = elements(pa.array([[1, 2], None, [], [3]]))
    >>> found.to_pylist(), ends.tolist()
    ([1, 2, 3], [0, 2, 2, 2, 3])
    """
    sizes = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    return values.flatten(), np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def of_elements(found: pa.Array, ends: Ints, valid: npt.NDArray[np.bool_]) -> pa.ListArray:
    """Creates arrays from the result of `elements`; null where not valid."""
    made = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), found)
    return made if valid.all() else pc.if_else(pa.array(valid), made, pa.scalar(None, made.type))


def join(values: pa.ListArray) -> pa.StringArray:
    """Returns the text of each array of texts; NULL stays NULL.

    >>> join(pa.array([["a;b", None, "?"], [""], [], None])).to_pylist()
    ['a~;b;?;~?', '', '~', None]
    """
    found, ends = elements(values)
    text = pc.replace_substring_regex(found.cast(pa.string()), "([;~])", r"~\1")
    text = pc.if_else(pc.equal(text, UNKNOWN), ESCAPE + UNKNOWN, text)
    lists = of_elements(pc.fill_null(text, UNKNOWN), ends, values.is_valid().to_numpy(zero_copy_only=False))
    empty = pc.equal(pc.list_value_length(values), 0)
    return pc.if_else(empty, pa.scalar(EMPTY), pc.binary_join(lists, SEPARATOR))


def split(text: pa.StringArray) -> pa.ListArray:
    """Returns the arrays of texts; NULL stays NULL.

    >>> split(pa.array(["a~;b;?;~?", "", "~", None, "~~;x"])).to_pylist()
    [['a;b', None, '?'], [''], [], None, ['~', 'x']]
    """
    buf, starts, stops = flat(text.cast(pa.binary()))
    valid = text.is_valid().to_numpy(zero_copy_only=False)
    there = valid & ~pc.fill_null(pc.equal(text, EMPTY), False).to_numpy(zero_copy_only=False)
    found, ends = between(buf, starts, stops, there, _separators(buf, starts, stops))
    known = pc.if_else(pc.equal(found, UNKNOWN), pa.scalar(None, pa.string()), found)
    plain = pc.replace_substring_regex(known, "(?s)~(.)", r"\1")
    return of_elements(plain, ends, valid)


def between(
    buf: Bytes, starts: Ints, stops: Ints, there: npt.NDArray[np.bool_], marks: Ints
) -> tuple[pa.StringArray, Ints]:
    """Returns the parts of texts between separators (`marks`), and the start and end of each text's parts.

    Only texts that are `there` are split. Such a text has one part more than separators.
    """
    per_text = np.searchsorted(marks, stops) - np.searchsorted(marks, starts)
    ends = np.concatenate([[0], np.cumsum(np.where(there, per_text + 1, 0))])
    begin = np.sort(np.concatenate([starts[there], marks + 1]), kind="stable")
    end = np.sort(np.concatenate([stops[there], marks]), kind="stable")
    return cut(buf, begin, end, np.ones(len(begin), np.bool_)).cast(pa.string()), ends


def _separators(buf: Bytes, starts: Ints, stops: Ints) -> Ints:
    if not len(starts):
        return np.zeros(0, np.int64)
    return unescaped(buf, starts, int(stops[-1]), SEPARATOR, ESCAPE)


def unescaped(buf: Bytes, starts: Ints, stop: int, character: str, escape: str) -> Ints:
    """Returns the positions of a character with an even number of escapes before it, in texts that begin at
    `starts`."""
    low = int(starts[0])
    marks = np.flatnonzero(buf[low:stop] == ord(character)) + low
    others = np.flatnonzero(buf[low:stop] != ord(escape)) + low
    before = np.searchsorted(others, marks) - 1
    plain = np.where(before >= 0, others[np.maximum(before, 0)], low - 1) if len(marks) else marks
    first = starts[np.searchsorted(starts, marks, "right") - 1] - 1
    found: Ints = marks[(marks - np.maximum(plain, first)) % 2 == 1]
    return found
