"""Writes canonical change tables as OpenEdge's tables.

Tables that were read from OpenEdge are written under the policies under which they were captured (`Kept`);
other tables get a policy of level 3 each. Source: spec/openedge.md §1, §2, §3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import UnsupportedError
from ...model import mask
from ...model.change import NATIVE, PREFIX, ChangeTable
from ...model.quoting import quoted
from ...model.sequence import NUMBER_DIGITS, TIME_DIGITS
from ..base import OWN, VendorTable
from ..shape import is_sequence, looked_up
from ..spark_functions import F, Window
from ..types import join_array
from .arrays import gathered
from .changes import CUT, GONE_CODE, IMAGE_TIME, IMAGE_TRAN, NATIVES, OF_POLICY, OFFSETS, ZONE
from .metadata import KEPT, Kept, generated_metadata
from .options import OpenEdgeOptions
from .policies import FIELDS, FILES, METADATA, POLICIES
from .split_records import SPLIT, cut_halves
from .tables import CHANGE, FIRST_USER_FIELD, KNOWN, TRACKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TRACKING = "_cdc_change_tracking"
_CODE = {"I": 1, "D": 2, "B": 3, "U": 4, "T": 7}
_NUMBER = OWN + "number"
_LOADED = NATIVE + "oper"
"""The header that has L for rows of a full load."""
_REFUSED = (
    "tailrace.errors.FormatError: a change sequence is not 35 digits, or has no number"
    "\n  where: {}\n  hint: {}"
)


@dataclass(frozen=True)
class Plan:
    """The plan to write one table: its metadata in OpenEdge's tables, and whether that was generated
    (`made`)."""

    kept: Kept
    made: bool = False

    @property
    def added(self) -> bool:
        """Whether columns are added for values that OpenEdge cannot hold."""
        return self.kept.added

    @property
    def first(self) -> int:
        """The physical position of the change table's first user column."""
        found = [
            p["_First-User-Field"] for p in self.kept.rows.get(POLICIES, ()) if p.get("_First-User-Field")
        ]
        return found[0] if found else FIRST_USER_FIELD

    @property
    def number(self) -> int | None:
        """The `_Source-Table-Number` of rows without one."""
        recid = self.policy.get("_Source-File-Recid")
        files = self.kept.rows.get(FILES, ())
        return next((f["_File-Number"] for f in files if f.get("Recid") == recid), None)

    @property
    def policy(self) -> Mapping[str, Any]:
        """The policy of rows without one."""
        rows = self.kept.rows.get(POLICIES, ())
        return rows[0] if rows else {}


def write(changes: Mapping[str, ChangeTable], options: OpenEdgeOptions) -> dict[str, DataFrame]:
    """`_Cdc-Change-Tracking`, the policies and schema tables, and a change table for each source table.

    Raises:
        UnsupportedError: more than 15 key columns, or a column that is named like the metadata.
    """
    if not changes:
        return {}
    changes = {name: gathered(ct) for name, ct in changes.items()}
    plans = {name: plan_of(name, ct) for name, ct in changes.items()}
    out: dict[str, list[DataFrame]] = {}
    for name, ct in changes.items():
        plan = plans[name]
        df = numbered(ct, options)
        given = plan.kept.tables.get(_TRACKING, f"PUB.{TRACKING.name}")
        out.setdefault(given, []).append(tracking_rows(ct.with_df(df), plan, options))
        if plan.kept.change_table is not None:
            out.setdefault(plan.kept.change_table, []).append(image_rows(ct.with_df(df), plan, options))
    result = {n: reduce(lambda a, b: a.unionByName(b, True), dfs) for n, dfs in out.items()}
    spark = next(iter(changes.values())).df.sparkSession
    return {**metadata_tables(spark, list(plans.values())), **result}


def plan_of(name: str, ct: ChangeTable) -> Plan:
    """Returns the plan in a table's schema, or one that is generated for it."""
    names = {c.name.lower() for c in CHANGE.columns}
    if odd := [c for c in ct.columns if c.lower() in names]:
        raise UnsupportedError(
            f"column {', '.join(odd)} has the name of an OpenEdge metadata column",
            where=name,
            hint="rename it",
        )
    metadata = ct.df.schema[PREFIX + "change_seq"].metadata
    if KEPT in metadata:
        kept = Kept.from_json(metadata[KEPT])
        return Plan(kept)
    return Plan(generated_metadata(name, ct), made=True)


def numbered(ct: ChangeTable, options: OpenEdgeOptions) -> DataFrame:
    """Returns the rows with `_Change-Sequence`."""
    seq = F.col(ct.header("change_seq"))
    if options.sequence == "rank":
        return ct.df.withColumn(_NUMBER, F.dense_rank().over(Window.orderBy(seq)).cast("bigint"))
    digits = F.substring(seq, TIME_DIGITS + 1, NUMBER_DIGITS).try_cast("bigint")
    hint = "set the option sequence=rank"
    whole = is_sequence(seq)
    found = F.when(whole & (digits > 0), digits)
    if ct.header(_LOADED) in ct.df.columns:
        # Rows of a full load all have the number 0, and are numbered by the digits before it. The numbers of
        # changes are greater than all that such digits can express. Nothing is sorted.
        place = F.substring(seq, 1, TIME_DIGITS).try_cast("bigint")
        loaded = (F.col(ct.header(_LOADED)) == "L") & whole & (digits == 0) & (place > 0)
        found = F.coalesce(F.try_add(found, F.lit(10**TIME_DIGITS)), F.when(loaded, place))
    refused = F.raise_error(F.lit(_REFUSED.format(ct.name or "change table", hint))).cast("bigint")
    return ct.df.withColumn(_NUMBER, F.coalesce(found, refused))


def _h(ct: ChangeTable, name: str, kind: str) -> Column:
    """Returns a header as a type; NULL if the table does not have it."""
    full = ct.header(name)
    return F.col(full).try_cast(kind) if full in ct.df.columns else F.lit(None).cast(kind)


def transaction_number(text: Column) -> Column:
    """Returns `_Tran-Id` of a transaction_id: decimal digits, or 32 hex digits; NULL if it is not a number of
    31 bits."""
    hex_ = F.when(text.rlike("^0{24}[0-7][0-9A-Fa-f]{7}$"), F.conv(text, 16, 10))
    return F.when(F.length(text) == 32, hex_).when(text.rlike("^-?[0-9]{1,10}$"), text).try_cast("int")


def tracking_rows(ct: ChangeTable, plan: Plan, options: OpenEdgeOptions) -> DataFrame:
    """Returns the tracking rows of a table's changes: one for B and U together."""
    oper = F.col(ct.header("change_oper"))
    code = looked_up(_CODE, oper)
    native = {name: _h(ct, NATIVE + name, kind) for name, kind in NATIVES.items()}
    if plan.made:  # headers of policies, numbers and positions that these tables do not have
        native |= {n: F.lit(None).cast(NATIVES[n]) for n in OF_POLICY}
    places = {ct.ordinal(c): _position(plan, ct, c) - 1 for c in ct.columns}
    moved = mask.move(_h(ct, "change_mask", "binary"), places, to_little=True)
    number = F.coalesce(native["_Source-Table-Number"], F.lit(plan.number).cast("int"))
    whole = (oper == "T") & F.lit(plan.made)
    result = {
        "_Policy-Id": F.coalesce(native["_Policy-Id"], F.lit(plan.policy.get("_Policy-Id"))),
        "_Tran-Id": transaction_number(_h(ct, "transaction_id", "string")),
        "_Time-Stamp": _h(ct, "timestamp", "timestamp"),
        "_Change-Sequence": F.col(_NUMBER),
        "_Operation": F.coalesce(_h(ct, GONE_CODE, "int"), code),
        "_Change-FieldMap": F.coalesce(native["_Change-FieldMap"], F.when(oper == "U", moved)),
        "_Recid": _h(ct, "recid", "bigint"),
        "_Source-Table-Number": number,
        "_Partition-Id": F.when(~whole, _h(ct, "partition_id", "int")),
        "_Tenant-Id": F.when(~whole, _h(ct, "tenant_id", "int")),
        "_Version": native["_Version"],
        "_User-Misc": native["_User-Misc"],
        "_User-Name": _h(ct, "user_name", "string"),
        "_Misc": native["_Misc"],
        "change_seq": F.col(ct.header("change_seq")),
    }
    if not plan.added:
        del result["change_seq"]
    rows = ct.df.filter(oper != "B")
    columns = {n: v.cast(_kind(TRACKING, n)) for n, v in result.items()}
    return rows.select(*(v.alias(n) for n, v in _timed(columns, ct, options).items()))


def image_rows(ct: ChangeTable, plan: Plan, options: OpenEdgeOptions) -> DataFrame:
    """Returns the rows of a change table; changes without values have none if OpenEdge wrote none."""
    oper = F.col(ct.header("change_oper"))
    code = looked_up(_CODE, oper)
    carried = _h(ct, "column_mask", "binary")
    places = {ct.ordinal(c): _position(plan, ct, c) - 1 for c in ct.columns}
    every = bytearray(mask.encode_field_map(n + 1 for n in places.values()))
    result = {
        "_Tran-Id": F.coalesce(
            _h(ct, IMAGE_TRAN, "int"), transaction_number(_h(ct, "transaction_id", "string"))
        ),
        "_Time-Stamp": F.coalesce(_h(ct, IMAGE_TIME, "timestamp"), _h(ct, "timestamp", "timestamp")),
        "_Change-Sequence": F.col(_NUMBER),
        "_Continuation-Position": F.lit(0),
        "_ArrayIndex": F.lit(0),
        "_Fragment": F.lit(0),
        "_Operation": code,
    }
    typed = _timed({n: v.cast(_kind(CHANGE, n)) for n, v in result.items()}, ct, options)
    columns = [v.alias(n) for n, v in typed.items()]
    columns += [_user_column(ct, c, plan) for c in ct.columns]
    if plan.added:
        map_ = F.coalesce(mask.move(carried, places, to_little=True), F.lit(every))
        columns.append(map_.alias("_Column-Map"))
    rows = ct.df.filter(oper != "T")
    if not plan.made:
        rows = rows.filter(~F.coalesce(F.octet_length(carried) == 0, F.lit(False)))
    if plan.made or ct.header(CUT) not in ct.df.columns:
        return rows.select(*columns)
    physical = {c: _position(plan, ct, c) + plan.first - 1 for c in ct.columns}
    extents = {r["_Field-Name"]: r["_Extent"] for r in plan.kept.rows.get(FIELDS, ()) if r.get("_Extent")}
    whole = rows.select(*columns, _h(ct, CUT, "string").alias(SPLIT))
    return cut_halves(whole, physical, {c: 1 for c in ct.columns if c in extents})


def _timed(columns: dict[str, Column], ct: ChangeTable, options: OpenEdgeOptions) -> dict[str, Column]:
    """Returns the columns with `_Time-Stamp` in the form of the option `timestamps`."""
    if options.timestamps == "timestamp":
        return columns
    zone = F.coalesce(_h(ct, ZONE, "string"), F.lit("+00:00"))
    local = F.from_utc_timestamp(columns["_Time-Stamp"], zone)
    text = F.concat(F.date_format(local, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"), zone)
    return columns | {"_Time-Stamp": text}


def _user_column(ct: ChangeTable, name: str, plan: Plan) -> Column:
    """Returns a column in OpenEdge's form: arrays as text, times with their original offsets."""
    value = F.col(quoted(name))
    kind = ct.df.schema[name].dataType.simpleString()
    if kind.startswith("array"):
        value = join_array(value)
    if kind == "timestamp" and name in plan.kept.zoned:
        offsets = F.coalesce(_h(ct, OFFSETS, "string"), F.lit(""))
        zone = F.coalesce(F.get(F.split(offsets, ";"), F.lit(list(plan.kept.zoned).index(name))), F.lit(""))
        local = F.from_utc_timestamp(value, F.coalesce(F.nullif(zone, F.lit("")), F.lit("+00:00")))
        short = F.unix_micros(value) % 1000 == 0
        digits = [F.date_format(local, f"yyyy-MM-dd'T'HH:mm:ss.{'S' * n}") for n in (3, 6)]
        value = F.concat(F.when(short, digits[0]).otherwise(digits[1]), zone)
    return value.alias(name)


def _position(plan: Plan, ct: ChangeTable, column: str) -> int:
    """Returns the column's bit, from 1; columns that OpenEdge did not have follow those it had."""
    known = plan.kept.positions
    if column in known:
        return known[column]
    new = [c for c in ct.columns if c not in known]
    return max(known.values(), default=0) + 1 + new.index(column)


def _kind(table: VendorTable, name: str) -> str:
    return next(c.type for c in table.columns if c.name == name)


def metadata_tables(spark: SparkSession, plans: Sequence[Plan]) -> dict[str, DataFrame]:
    """Returns policies and schema tables, each row once."""
    out = {}
    for plain in METADATA:
        given = next((p.kept.tables[plain] for p in plans if plain in p.kept.tables), None)
        if given is None:
            continue
        rows: dict[str, Mapping[str, Any]] = {}
        for plan in plans:
            rows |= {repr(sorted(r.items())): r for r in plan.kept.rows.get(plain, ())}
        columns = KNOWN[plain].columns
        texts = {
            c.name: pa.array(
                [None if r.get(c.name) is None else str(r[c.name]) for r in rows.values()], pa.string()
            )
            for c in columns
        }
        df = spark.createDataFrame(pa.table(texts))
        out[given] = df.select(*(F.col(quoted(c.name)).cast(c.type).alias(c.name) for c in columns))
    return out
