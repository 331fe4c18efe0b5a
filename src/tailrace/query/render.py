"""Formats results as text for people; for few rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from html import escape
from typing import Any

import pyarrow as pa

ABSENT = "_absent"
"""Column of a result that lists the columns with unknown values; `before.name` is a field of a struct."""
UNKNOWN = "?"
"""Text for an unknown value. NULL is empty text, or `NULL` within a struct."""
_UNITS = (("year", "years"), ("month", "months"), ("day", "days"))


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Returns rows as Python dictionaries; values without a Python type become text.

    These are intervals, and dates and times after the year 9999.

    >>> python_rows(pa.record_batch({"d": pa.array([2_932_897], pa.date32())}))
    [{'d': '10000-01-01'}]
    """
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except OverflowError:
        late = [pa.types.is_date(c.type) or pa.types.is_timestamp(c.type) for c in batch.columns]
        columns = [c.cast(pa.string()) if is_ else c for c, is_ in zip(batch.columns, late, strict=True)]
        rows = pa.record_batch(columns, batch.schema.names).to_pylist()
    if any(map(has_intervals, batch.schema.types)):
        rows = [{name: _intervals_as_text(value) for name, value in row.items()} for row in rows]
    return rows


def mark_unknown(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with `?` for unknown values.

    >>> mark_unknown({"id": 1, "name": None, "_absent": ["name"]})
    {'id': 1, 'name': '?', '_absent': ['name']}
    >>> mark_unknown({"before": {"id": 1, "name": None}, "_absent": ["before.name"]})["before"]
    {'id': 1, 'name': '?'}
    """
    names = row.get(ABSENT)
    if not isinstance(names, list):
        return row
    made = dict(row)
    for name in names:
        side, _, column = name.partition(".")
        if name in made:
            made[name] = UNKNOWN
        elif isinstance(made.get(side), dict):
            made[side] = made[side] | {column: UNKNOWN}
    return made


def has_intervals(kind: pa.DataType) -> bool:
    """Returns whether a type is an interval, or contains one.

    >>> has_intervals(pa.list_(pa.month_day_nano_interval())), has_intervals(pa.date32())
    (True, False)
    """
    if pa.types.is_nested(kind):
        return any(has_intervals(kind.field(k).type) for k in range(kind.num_fields))
    return bool(pa.types.is_interval(kind))


def _intervals_as_text(value: Any) -> Any:
    """Returns a value with its intervals as text."""
    if isinstance(value, pa.MonthDayNano):
        return format_value(value)
    if isinstance(value, dict):
        return {k: _intervals_as_text(v) for k, v in value.items()}
    return [_intervals_as_text(v) for v in value] if isinstance(value, list) else value


def _interval(value: pa.MonthDayNano) -> str:
    """Returns an interval in DuckDB's notation."""
    sign = -1 if value.months < 0 else 1
    counts = (sign * (abs(value.months) // 12), sign * (abs(value.months) % 12), value.days)
    said = [f"{n} {one if abs(n) == 1 else many}" for n, (one, many) in zip(counts, _UNITS, strict=True) if n]
    seconds, rest = divmod(abs(value.nanoseconds) // 1000, 1_000_000)
    if seconds or rest or not said:
        point = f".{rest:06d}".rstrip("0") if rest else ""
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{point}"
        said.append("-" * (value.nanoseconds < 0) + clock)
    return " ".join(said)


def format_value(value: Any) -> str:
    """Returns one value as text.

    >>> format_value(["a", "b"]), format_value({"id": 1, "name": None}), format_value(b"\\x01")
    ('a, b', 'id=1 name=NULL', '01')
    """
    if isinstance(value, dict):
        return " ".join(f"{k}={'NULL' if v is None else format_value(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, pa.MonthDayNano):
        return _interval(value)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    return "" if value is None else str(value)


def text_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table in plain text.

    >>> print(text_table(["id", "name"], [[1, "a"], [22, None]]))
    id  name
    --  ----
    1   a
    22
    """
    texts = [list(names), *([format_value(v) for v in row] for row in rows)]
    widths = [max(len(row[k]) for row in texts) for k in range(len(names))]
    texts.insert(1, ["-" * w for w in widths])
    return "\n".join(
        "  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in texts
    )


def html_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table in HTML.

    >>> html_table(["id", "name"], [[1, "a<b"]])
    '<table><thead><tr><th>id</th><th>name</th></tr></thead><tbody><tr><td>1</td><td>a&lt;b</td></tr></tbody></table>'
    """
    head, *body = (
        "".join(f"<{tag}>{escape(format_value(value))}</{tag}>" for value in row)
        for tag, row in (("th", names), *(("td", row) for row in rows))
    )
    lines = "".join(f"<tr>{row}</tr>" for row in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
