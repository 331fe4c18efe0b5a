"""Converts OpenEdge's tables to canonical change tables: joins the tracking row and change-table rows of each
change.

Source: spec/openedge.md §1.3, §2, §3, §5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import FormatError
from ...model.change import ChangeTable
from ...model.quoting import quoted
from ...wire import cd_dump
from ...wire.cd_dump import TablePolicy
from ..base import ADDED_COLUMNS, WHY, Read, Tables
from ..json_lines import is_of_lines
from ..option_names import lists_in
from ..shape import any_of, conform, few_rows, find_columns, reasons
from ..spark_functions import F
from .arrays import spread
from .changes import TIME_ZONE, ZONE_AT_END, TrackedTable, canonical_of
from .options import OpenEdgeOptions, parse_numbers
from .policies import METADATA, CapturedTable, keyless, notes, sources, unknown_tables
from .ranges import joined
from .shares import refuse_several, shares
from .split_records import SPLIT, join_halves
from .tables import (
    ADDED,
    CHANGE,
    KNOWN,
    OTHER_OPERATIONS,
    TRACKING,
    VALUED,
    by_plain_name,
    is_dump,
    knows,
    plain_name,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_KINDS = {
    "table": "string", "policy": "string", "state": "int", "instance": "int", "level": "int",
    "change_table": "string", "fields": "string",
}  # fmt: skip


def shown(spark: SparkSession, policies: Sequence[TablePolicy]) -> DataFrame:
    """Returns a dump with one row per policy: table, policy, state, instance, level, change_table, fields
    (text: `Id 1, Name`; identifying fields have their rank)."""
    rows = [
        {
            "table": f"{p.owner}.{p.table}", "policy": p.name, "state": p.state, "instance": p.instance,
            "level": p.level, "change_table": p.change_table,
            "fields": ", ".join(f"{f.name} {f.identifying}" if f.identifying else f.name for f in p.fields),
        }
        for p in policies
    ]  # fmt: skip
    return few_rows(spark, _KINDS, rows)


_TRACKING = "_cdc_change_tracking"


@dataclass(frozen=True)
class Located:
    """The vendor's tables and their relations.

    Attributes:
        sources: the source tables.
        metadata: rows of policies and schema tables.
        given: plain name -> name in the input, of the tables with fixed names.
        shares: source table -> the condition for its tracking rows, on declared columns.
    """

    sources: list[CapturedTable]
    metadata: Mapping[str, list[dict[str, Any]]]
    given: Mapping[str, str]
    shares: Mapping[str, Column]

    @property
    def tracking(self) -> str | None:
        """Returns the name of the tracking table; None if it is missing."""
        return self.given.get(_TRACKING)


def locate(tables: Tables, options: OpenEdgeOptions) -> Located:
    """Finds the tables, and their source tables.

    Raises:
        FormatError: as `read`.
    """
    plain = by_plain_name(tables)
    images = {n: df for n, df in tables.items() if plain_name(n) not in KNOWN and _is_change_table(df)}
    if _TRACKING not in plain and not images:
        raise FormatError(
            "no _Cdc-Change-Tracking and no change table",
            where=", ".join(tables) or "nothing",
            hint="a change table has the columns _Change-Sequence and _Operation",
        )
    if _TRACKING not in plain and options.orphans == "reject":
        raise FormatError(
            "change tables without _Cdc-Change-Tracking",
            where=", ".join(images),
            hint="give it too, or set orphans=keep: the columns that an update changed are unknown then",
        )
    metadata = metadata_rows(tables)
    found = sources(
        metadata,
        {n: user_columns(df.columns) for n, df in images.items()},
        keys=lists_in(options.keys),
        numbers=parse_numbers(options.numbers),
        dumped=[p for n, df in tables.items() if is_dump(n) for p in _dumped(n, df)],
    )
    given = {p: n for p, n in plain.items() if p in KNOWN}
    return Located(found, metadata, given, shares(found, options))


def metadata_rows(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of policies and schema tables, by plain table name; times are text.

    Raises:
        FormatError: one of them is bad.
    """
    plain = by_plain_name(tables)
    return {name: _rows(tables[plain[name]], name) for name in METADATA if name in plain}


def read(tables: Tables, options: OpenEdgeOptions) -> Read:
    """Returns canonical change tables of the source tables named by policies and change tables.

    `pending` has, under `_Cdc-Change-Tracking`, the tracking rows that change no row of a known table, with
    the reason in `WHY`.

    Raises:
        FormatError: there is neither a tracking table nor a change table, a policy row is bad, it is unknown
            which tracking rows belong to which change table, or a table has rows of several tenants.
    """
    if alone := _policies_alone(tables):
        return Read({}, notes=("only policies and schema: no changes",), control_tables=alone)
    place = locate(tables, options)
    tracking = _tracking(tables, place)
    if place.tracking and not options.tenant:
        refuse_several(tables, place.tracking, tracking, place.sources, place.shares)
    added = any(ADDED & set(df.columns) for df in tables.values())
    changes: dict[str, ChangeTable] = {}
    for source in place.sources:
        both = joined(tables, place.tracking, source, alone=len(place.sources) == 1)
        images = None
        if source.change_table is not None:
            images = _images(tables[source.change_table], source, options, whole=both is not None)
        share = place.shares[source.name] & ~_is_beside()
        if source is place.sources[0]:  # unreadable lines count for the first table
            share = share | _unreadable()
        rows = tracking.filter(share)
        result = canonical_of(TrackedTable(source, rows, images, place.given, added, both), options)
        if options.arrays == "columns":
            result = spread(result, source.extents, source.types)
        changes[source.name] = result
    others = tracking.filter(~_unreadable()) if place.sources else tracking
    control = {TRACKING.name: _control_table(others, list(place.shares.values()))} if place.tracking else {}
    used = {*place.given.values(), *(s.change_table for s in place.sources)}
    rest = {n: df for n, df in tables.items() if n not in used and not is_dump(n)}
    bare = {s.name: why for s in place.sources if (why := _without_values(s))}
    said = (*unknown_tables(options, place.sources), *notes(place.sources, place.metadata))
    imaged = ((s.name, s.change_table) for s in place.sources if s.change_table is not None)
    lines = frozenset(name for name, table in imaged if is_of_lines(tables[table]))
    unkeyed = keyless(place.sources, place.metadata)
    return Read(changes, control, said, rest, bare, unkeyed, left_out=lines)


def _without_values(source: CapturedTable) -> str | None:
    """Returns the reason why the changes of a source table have no values; None if they may have."""
    levels = sorted(set(source.levels.values()))
    if not levels or max(levels) >= VALUED:
        return None
    said = ", ".join(map(str, levels))
    return f"captured at level {said}: changed rows are known, but not their values"


def _policies_alone(tables: Tables) -> dict[str, DataFrame]:
    """Returns all tables if none of them contains changes; dumps as rows."""
    if not all(is_dump(n) or plain_name(n) in METADATA for n in tables):
        return {}
    dumps = {n: shown(df.sparkSession, _dumped(n, df)) for n, df in tables.items() if is_dump(n)}
    return {**tables, **dumps}


def _dumped(name: str, df: DataFrame) -> tuple[cd_dump.TablePolicy, ...]:
    """Returns the policies of a `.cd` file: one value, so it is collected."""
    return cd_dump.read(bytes(df.collect()[0][0]), where=name).policies


def _is_change_table(df: DataFrame) -> bool:
    return knows(df.columns) == 1.0 and "_operation" in (c.lower() for c in df.columns)


def user_columns(columns: Sequence[str]) -> list[str]:
    """Returns the columns after the metadata; metadata names are recognised in any spelling."""
    meta = set(find_columns(columns, CHANGE, where=CHANGE.name).values())
    return [c for c in columns if c not in meta and c not in ADDED_COLUMNS]


def _rows(df: DataFrame, name: str) -> list[dict[str, Any]]:
    """Returns the rows of a metadata table: few, so they are collected."""
    table = KNOWN[name]
    result = conform(_unknown_is_null(df, name), table, where=table.name)
    timestamps = {c.name for c in table.columns if c.type == "timestamp"}
    texts = [
        (
            F.col(quoted(c.name)).cast("string").alias(c.name)
            if c.name in timestamps
            else F.col(quoted(c.name))
        )
        for c in table.columns
    ]
    found = [r.asDict() for r in result.select(*texts, WHY).collect()]
    bad = [r[WHY] for r in found if r[WHY]]
    if bad:
        raise FormatError(
            f"bad row: {bad[0]}",
            where=table.name,
            hint="correct it: policies determine the meaning of all rows",
        )
    return [{k: v for k, v in r.items() if k != WHY} for r in found]


def _unknown_is_null(df: DataFrame, name: str) -> DataFrame:
    """Returns the rows with NULL instead of `?` (the unknown value of text exports) if the type is not
    text."""
    table = KNOWN.get(name, CHANGE)
    kinds = {c.name: c.type for c in table.columns}
    there = find_columns([c for c in df.columns if c not in ADDED_COLUMNS], table, where=table.name)
    texts = {f.name for f in df.schema if f.dataType.simpleString() == "string"}
    result = {
        have: F.when(F.trim(F.col(quoted(have))) != "?", F.col(quoted(have)))
        for declared, have in there.items()
        if kinds[declared] != "string" and have in texts
    }
    return df.withColumns(result) if result else df


def _tracking(tables: Tables, place: Located) -> DataFrame:
    """Returns the tracking rows; none if there are only change tables."""
    if place.tracking is not None:
        return conform_tracking(tables[place.tracking])
    first = next(tables[s.change_table] for s in place.sources if s.change_table is not None)
    none = few_rows(first.sparkSession, {c.name: c.type for c in TRACKING.columns}, [])
    return conform(none, TRACKING, where=TRACKING.name)


def conform_tracking(df: DataFrame) -> DataFrame:
    """Returns tracking rows with the declared names and types."""
    return conform(_with_zone(_unknown_is_null(df, _TRACKING)), TRACKING, where=TRACKING.name)


def _with_zone(df: DataFrame) -> DataFrame:
    """Returns the rows with the zone at the end of text times as an additional column: instants do not keep
    it."""
    name = find_columns([c for c in df.columns if c not in ADDED_COLUMNS], TRACKING, where=TRACKING.name).get(
        "_Time-Stamp"
    )
    if name is None or df.schema[name].dataType.simpleString() != "string":
        return df
    zone = F.regexp_extract(F.col(quoted(name)), ZONE_AT_END, 1)
    return df.withColumn(TIME_ZONE, F.nullif(zone, F.lit("")))


def _images(df: DataFrame, source: CapturedTable, options: OpenEdgeOptions, *, whole: bool) -> DataFrame:
    """Returns the rows of a change table, with split ones joined; `whole`: it is known that no row is
    split."""
    df = conform(_unknown_is_null(df, "change"), CHANGE, where=source.change_table or source.name)
    if whole or options.split == "joined":
        return df.withColumn(SPLIT, F.lit(None).cast("string"))
    places = {c: p + source.first - 1 for c, p in source.positions.items()}
    return join_halves(df, places, source.extents)


def _is_beside() -> Column:
    return F.coalesce(F.col("_Operation").isin(*OTHER_OPERATIONS), F.lit(False)) & F.col(WHY).isNull()


def _unreadable() -> Column:
    """Whether a tracking row is a line that could not be read: its table is unknown."""
    owner = F.coalesce(F.col("_Source-Table-Number").cast("string"), F.col("_Policy-Id"))
    return F.col(WHY).isNotNull() & owner.isNull()


def _control_table(tracking: DataFrame, shares: list[Column]) -> DataFrame:
    """Returns tracking rows that change no row, and those of unknown tables."""
    known = any_of(shares)
    said: list[tuple[Column, str | Column]] = [(F.col(WHY).isNotNull(), F.col(WHY))]
    said += [
        (F.col("_Operation") == code, f"operation {code}: {words}")
        for code, words in OTHER_OPERATIONS.items()
    ]
    number = F.coalesce(F.col("_Source-Table-Number").cast("string"), F.lit("?"))
    said.append((~known, F.concat(F.lit("no policy and no change table for source table "), number)))
    return tracking.filter(_is_beside() | ~known).withColumn(WHY, reasons(said))
