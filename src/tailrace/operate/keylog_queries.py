"""Queries to a key log: flagged rows, all changes of one key, latencies, errors.

They need no JVM. Filters are pushed down to the files, and memory does not grow with the key log.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from functools import reduce
from operator import and_, or_
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..config.quantities import ago, seconds
from ..errors import ConfigError
from ..formats.sqdr.control import IR_SUBSCRIPTION, STATISTIC
from ..model.nearest import meant
from ..model.patterns import fits, fitting, is_pattern
from ..wire.keylog_values import HEX, NAMED, UNICODE_DIGITS, escape_name
from ..wire.user_values import BINARY_HINT, parse_binary
from . import control_tables, keylog_rows
from .keylog_rows import COUNTS, latency_us

Row = dict[str, Any]
Filter: TypeAlias = "ds.Expression | None"
_TIMES = ("subscription_id", "keylog_ts", "change_row_timestamp", "change_row_nanosecond")


def where(tables: Sequence[str] = (), since: str | None = None, key: Sequence[str] = ()) -> Filter:
    """Returns the filter for the options of a query, all of which must hold; None selects every row.

    Args:
        tables: subscriptions, `*` and `?` as in file names; all if empty.
        since: a time (ISO 8601, UTC by default), or a duration before now.
        key: `NAME=VALUE` of the columns of the row key, with values as the key log writes them. Binary
            values may also have PostgreSQL's form (`\\xff01`).

    Raises:
        ConfigError: a time or a key is invalid.
    """
    parts = []
    if tables:
        parts.append(reduce(or_, map(_is_of, tables)))
    if since:
        parts.append(pc.field("keylog_ts") >= pa.scalar(moment(since), pa.timestamp("us", "UTC")))
    if key:
        parts.append(_has(key))
    return reduce(and_, parts) if parts else None


def _is_of(table: str) -> ds.Expression:
    """Returns a filter for the rows of a table, or of the tables that match a pattern."""
    mine = pc.field("subscription_id")
    if not is_pattern(table):
        return mine == table
    return (mine == table) | pc.match_substring_regex(mine, "^" + _pattern(table) + "$")


def _pattern(table: str) -> str:
    """Returns a file name pattern as a regular expression of RE2."""
    return re.sub(r"^\(\?s:(.*)\)\\[zZ]$", r"\1", translate(table))


def moment(text: str, now: dt.datetime | None = None) -> dt.datetime:
    """Parses a time, or a duration before now.

    >>> noon = dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc)
    >>> print(moment("90m", noon), moment("2026-03-01T09:00", noon))
    2026-03-01 10:30:00+00:00 2026-03-01 09:00:00+00:00
    """
    try:
        return ago(0.0 if text == "now" else seconds(text), now)
    except ValueError:
        pass
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a time", hint="write 10m, 2h, 7d, or 2026-03-01T09:00:00+00:00"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=dt.timezone.utc)


def _has(key: Sequence[str]) -> ds.Expression:
    """Returns a filter for the rows with a key.

    One text, `before_key`, `after_key` or the image, has to contain all columns of the key. Columns of the
    old and of the new key do not count together.
    """
    found = [_item_pattern(pair) for pair in key]
    texts = (pc.field(c) for c in ("before_key", "after_key", "after_image"))
    in_one = (reduce(and_, (pc.match_substring_regex(text, item) for item in found)) for text in texts)
    return reduce(or_, (pc.coalesce(has, pa.scalar(False)) for has in in_one))


def _item_pattern(pair: str) -> str:
    """Returns a regular expression of RE2 for a column of a key and its value (`NAME=VALUE`)."""
    name, sign, value = pair.partition("=")
    if not sign or not name.strip():
        raise ConfigError(f"the key {pair!r} has no value", hint="write NAME=VALUE, e.g. --key id=7")
    item = "|".join(_items(name.strip(), value))
    return f"(^|[ >])({item})($|[ <])"


def _items(name: str, value: str) -> Iterator[str]:
    """Yields patterns for a column and its value: as text, and as binary value if it may be one."""
    yield re.escape(item_text(name, value))
    if (found := parse_binary(value)) is not None:
        yield f'{re.escape(escape_name(name))}="{HEX}(?i:{found.hex()})"'


def item_text(name: str, value: str) -> str:
    """Returns a column and its value as written in a key log.

    >>> item_text("id", "7"), item_text("word", 'a"b' + chr(10))
    ('id="7"', 'word="a&quot;b&#x000A"')
    """
    for escape, character in NAMED.items():  # the ampersand comes first
        value = value.replace(character, escape)
    value = re.sub("[\x00-\x1f]", lambda c: f"{HEX}{ord(c[0]):0{UNICODE_DIGITS}X}", value)
    return f'{escape_name(name)}="{value}"'


def overview(keylog: str, *, promised: bool = False) -> list[Row]:
    """Returns the state of each table: rules, state, runs, their changes, and flagged rows since its
    baseline.

    `promised` is as in `keylog_rows.has_keylog`.
    """
    keylog_rows.has_keylog(keylog, promised=promised)
    found = []
    runs = control_tables.rows(keylog, STATISTIC)
    for one in sorted(control_tables.rows(keylog, IR_SUBSCRIPTION), key=lambda r: r["subscription_id"]):
        mine = [r for r in runs if r["subscription_id"] == one["subscription_id"]]
        found.append(
            {
                "table": one["subscription_id"], "group": one["group_id"], "rules": one["apply_rules"],
                "state": one["state"], "reason": one["state_reason"], "runs": len(mine),
                "changes": sum(r["change_count"] or 0 for r in mine),
                "flagged": one["flagged_count"] or 0,
                "last_run": max((r["start_ts"] for r in mine), default=None),
            }
        )  # fmt: skip
    return found


def runs(keylog: str, limit: int, tables: Sequence[str] = (), *, promised: bool = False) -> list[Row]:
    """Returns the newest runs, oldest first: rows of `statistic`; `promised` as in `overview`."""
    keylog_rows.has_keylog(keylog, promised=promised)
    have = control_tables.rows(keylog, STATISTIC)
    mine = [r for r in have if not tables or fits(r["subscription_id"], *tables)]
    found = sorted(mine, key=lambda r: (r["start_ts"], r["run_id"]))[-limit:] if limit else []
    names = ("run_id", "subscription_id", "kind", "state", "start_ts", "end_ts", "error")
    return [{n: r[n] for n in (*names, *(f"{c}_count" for c in COUNTS), "latency_avg_ms")} for r in found]


def errors(keylog: str, which: Filter = None) -> list[Row]:
    """Returns errors by table and kind: count, first and last time, and the `keylog_sort` of the last one.

    The kind is the text before the first colon.
    """
    wanted = pc.field("result_error").is_valid()
    wanted = wanted if which is None else wanted & which
    columns = ("subscription_id", "result_error", "keylog_ts", "keylog_sort")
    found: dict[tuple[str, str], Row] = {}
    for batch in keylog_rows.batches(keylog_rows.open_keylog(keylog), columns, wanted):
        kinds = pc.list_element(pc.split_pattern(batch["result_error"], ":", max_splits=1), 0)
        table = pa.Table.from_batches([batch]).append_column("kind", kinds)
        grouped = table.group_by(["subscription_id", "kind"]).aggregate(
            [("keylog_ts", "min"), ("keylog_ts", "max"), ("keylog_sort", "max"), ("kind", "count")]
        )
        for row in grouped.to_pylist():
            at = (row["subscription_id"], row["kind"])
            have = found.setdefault(
                at,
                {"table": at[0], "error": at[1], "changes": 0, "first": None, "last": None, "last_sort": 0},
            )
            have["changes"] += row["kind_count"]
            have["first"] = min(filter(None, (have["first"], row["keylog_ts_min"])), default=None)
            have["last"] = max(filter(None, (have["last"], row["keylog_ts_max"])), default=None)
            have["last_sort"] = max(have["last_sort"], row["keylog_sort_max"])
    return [found[at] for at in sorted(found)]


def latency(keylog: str, which: Filter = None) -> list[Row]:
    """Returns the time from the source's commit to the row in the key log, by table, in milliseconds.

    Each table has `changes`, `p50`, `p90`, `p99` (within 1 %), `mean`, `max`, and `negative`: the number of
    changes that seem to be logged before they were made, because the two clocks differ.
    """
    found: dict[str, Latencies] = {}
    for batch in keylog_rows.batches(keylog_rows.open_keylog(keylog), _TIMES, which):
        took = latency_us(batch)
        for table in pc.unique(batch["subscription_id"]).to_pylist():
            mine = took.filter(pc.equal(batch["subscription_id"], table)).drop_null()
            if len(mine):
                found.setdefault(table, Latencies()).add(mine.to_numpy().astype(np.float64))
    return [
        {
            "table": table, "changes": one.many, "p50": one.at(0.5), "p90": one.at(0.9), "p99": one.at(0.99),
            "mean": one.total / one.many / 1000, "max": one.most / 1000, "negative": one.negative,
        }
        for table, one in sorted(found.items())
    ]  # fmt: skip


def flagged(which: Filter) -> Filter:
    """Returns a filter that also requires a row to be flagged."""
    only_flagged: Filter = keylog_rows.flagged()
    return only_flagged if which is None else only_flagged & which


STEP = 0.01
"""Width of a bucket relative to its latencies: percentiles are accurate to within one bucket."""


class Latencies:
    """Percentiles of any number of latencies (microseconds) in little memory: they are counted in buckets.

    `many`, `total`, `most` and the number of `negative` ones are exact.

    >>> some = Latencies()
    >>> some.add(np.array([1000.0, 2000.0, 3000.0]))
    >>> round(some.at(0.5), 1), some.most
    (2.0, 3000.0)
    """

    def __init__(self) -> None:
        self.many, self.total, self.most, self.negative = 0, 0.0, 0.0, 0
        self._steps: dict[int, int] = {}

    def add(self, took: npt.NDArray[np.float64]) -> None:
        """Adds latencies in microseconds."""
        self.most = max(self.most, float(took.max())) if self.many else float(took.max())
        self.many, self.total = self.many + len(took), self.total + float(took.sum())
        self.negative += int((took < 0).sum())
        steps = np.floor(np.log(np.maximum(took, 1.0)) / np.log1p(STEP)).astype(np.int64)
        for step, many in zip(*np.unique(steps, return_counts=True), strict=True):
            self._steps[int(step)] = self._steps.get(int(step), 0) + int(many)

    def at(self, share: float) -> float:
        """Returns the latency, in milliseconds, that this share of all latencies does not exceed."""
        wanted, seen, step = share * self.many, 0, 0
        for step in sorted(self._steps):
            seen += self._steps[step]
            if seen >= wanted:
                break
        return float(min((1 + STEP) ** (step + 0.5), max(self.most, 1.0))) / 1000


_SAMPLE = 1000
"""The number of newest rows whose keys and images are searched for column names."""
_SHOWN = 10
_TEXTS = ("before_key", "after_key", "after_image")


def check_names(keylog: str, tables: Sequence[str], key: Sequence[str] = ()) -> None:
    """Raises an error if a query found nothing because of a name or the form of a value.

    It may read a whole column, so it is called only after such a query.

    Raises:
        ConfigError: no table matches one of `tables`; the rows have no column that `key` (`NAME=VALUE`)
            names; or the values of the column are binary, and the given one has another form.
    """
    known = _tables(keylog)
    for table in tables if known else ():
        if not fitting(known, table):
            hint = meant(table, known) or f"it has {_some(known)}"
            raise ConfigError(f"the key log has no table {table}", where=keylog, hint=hint)
    texts = _texts(keylog, tables) if key else []
    names = {name for text in texts for name in names_in(text)}
    for name, _, value in (pair.partition("=") for pair in key):
        column = escape_name(name.strip())
        if names and column not in names:
            hint = meant(name.strip(), names) or f"they have {_some(sorted(names))}"
            what = f"no key or image of the newest rows has a column {name.strip()}"
            raise ConfigError(what, where=keylog, hint=hint)
        if parse_binary(value) is None and _has_octets(texts, column):
            raise ConfigError(
                f"{value!r} is no value of the column {name.strip()} (binary)", hint=BINARY_HINT
            )


def _tables(keylog: str) -> list[str]:
    found = {r["subscription_id"] for r in control_tables.rows(keylog, IR_SUBSCRIPTION)}
    for batch in keylog_rows.batches(keylog_rows.open_keylog(keylog), ["subscription_id"]):
        found.update(pc.unique(batch["subscription_id"]).to_pylist())
    return sorted(filter(None, found))


def _texts(keylog: str, tables: Sequence[str]) -> list[str]:
    """Returns the keys and images of the newest rows."""
    newest = keylog_rows.newest(keylog, _SAMPLE, where(tables))
    return [row[text] for row in newest for text in _TEXTS if row[text]]


def _has_octets(texts: Sequence[str], column: str) -> bool:
    """Returns whether all values of a column have the form of binary values."""
    item = re.compile(f'(?:^|[ >]){re.escape(column)}="([^"]*)"')
    found = {value for text in texts for value in item.findall(text)}
    return bool(found) and all(v.startswith(HEX) and parse_binary(v) is not None for v in found)


def names_in(text: str) -> list[str]:
    """Returns the column names in a key or an image as written in a key log.

    >>> names_in('<Dest>"s"."t"</Dest><row>id="7" note="a b=c" tag=&xsi:nil="true"</row>')
    ['id', 'note', 'tag']
    """
    bare = re.sub('"[^"]*"', '""', text.partition("</Dest>")[2] or text)
    return re.findall(r'(?:^|[ >])([^ "=<>]+)=', bare)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
