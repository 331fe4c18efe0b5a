"""Builds a source table's canonical change table from two rows per change: tracking row and image.

Columns that an image carries (spec/openedge.md §1.3, §2.3): a create or delete all captured ones; an update,
before and after, those whose bit is set, the identifying ones, and those that are not NULL (arrays: not all
unknown). Without an image, none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model import mask
from ...model.change import NATIVE, PREFIX, ChangeTable
from ...model.quoting import quoted
from ..base import FILE, FINER, OWN, RAW, ROW, WHY
from ..shape import TypedColumns, any_of, canonical, data_start, looked_up, reasons
from ..spark_functions import F
from .metadata import KEPT, Kept
from .options import OpenEdgeOptions
from .policies import CapturedTable
from .shares import of_tenant
from .split_records import SPLIT
from .tables import AFTER_UPDATE, BEFORE_UPDATE, CHANGE, GONE, OPER, VALUED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

THERE = OWN + "there"
"""Added to both rows: true, NULL if the row does not exist."""


@dataclass(frozen=True)
class TrackedTable:
    """The data of one source table: tracking rows, images (None: level 0), names of the input tables, and
    whether they have the columns that tailrace adds."""

    source: CapturedTable
    tracking: DataFrame
    images: DataFrame | None
    given: Mapping[str, str]
    added: bool = False
    joined: DataFrame | None = None
    """Both, already joined (`ranges`)."""


def of_tracking(name: str) -> Column:
    """Returns a column of the tracking row."""
    return F.col(quoted(f"_t:{name}"))


def of_image(name: str) -> Column:
    """Returns a column of the image."""
    return F.col(quoted(f"_c:{name}"))


def both_rows(table: TrackedTable) -> DataFrame:
    """Returns the tracking row `_t:…` and image `_c:…` of each change, joined; NULL for a missing one.

    Not as structs: unused values (the original rows) are then neither computed nor shuffled.
    """
    if table.joined is not None:
        return table.joined

    def prefixed(df: DataFrame, side: str) -> DataFrame:
        columns = [F.col(quoted(c)).alias(f"{side}:{c}") for c in df.columns]
        return df.select(*columns, F.lit(True).alias(f"{side}:{THERE}"))

    left = prefixed(table.tracking, "_t")
    if table.images is None:
        kinds = {c.name: c.type for c in CHANGE.columns} | {SPLIT: "string", WHY: "string", RAW: "string"}
        nothing = {**kinds, THERE: "boolean"}
        return left.withColumns({f"_c:{c}": F.lit(None).cast(t) for c, t in nothing.items()})
    right = prefixed(table.images, "_c")
    return left.join(right, of_tracking("_Change-Sequence") == of_image("_Change-Sequence"), "full_outer")


def raw_rows() -> Column:
    """Returns both original rows as a JSON array."""
    return F.concat(F.lit("["), F.concat_ws(",", of_tracking(RAW), of_image(RAW)), F.lit("]"))


NOTHING_KNOWN = r"^\?(;\?)*\z"
"""The text of an array of unknown elements."""
ZONE_AT_END = r"([+-]\d\d:\d\d)\s*$"
"""The offset of a time in text form."""


def values_of(table: TrackedTable, options: OpenEdgeOptions) -> TypedColumns:
    """Returns the data columns; text is converted to the type in `_Field`."""
    typed = TypedColumns()
    for column in table.source.columns:
        known = typed.values[column] = _known(table, column)
        kind = table.source.types.get(column)
        if column in table.source.extents:
            kind = f"array<{kind or 'string'}>" if options.arrays == "array" else None
        if _came_as_text(table, column) and kind not in (None, "string"):
            typed.add(column, known, kind)
    return typed


def _came_as_text(table: TrackedTable, name: str) -> bool:
    return table.images is not None and table.images.schema[name].dataType.simpleString() == "string"


def _known(table: TrackedTable, column: str) -> Column:
    """Returns a value from the input; NULL if it is `?` in text of a column that is not text. An array that
    is `?` has one unknown element."""
    value, kind = of_image(column), table.source.types.get(column, "string")
    if kind == "string" or column in table.source.extents or not _came_as_text(table, column):
        return value
    return F.when(F.trim(value) != "?", value)


def says_something(table: TrackedTable, column: str) -> Column:
    """Whether a value shows that its image carries the column; an array does if one of its elements is
    known."""
    there = _known(table, column).isNotNull()
    if column not in table.source.extents or not _came_as_text(table, column):
        return there
    return there & ~F.coalesce(of_image(column).rlike(NOTHING_KNOWN), F.lit(False))


def zoned(table: TrackedTable) -> list[str]:
    """Returns the columns with times that are text with an offset (DATETIME-TZ), which instants do not
    keep."""
    if table.images is None:
        return []
    kinds = {f.name: f.dataType.simpleString() for f in table.images.schema}
    return [
        c for c in table.source.columns if table.source.types.get(c) == "timestamp" and kinds[c] == "string"
    ]


def offsets(table: TrackedTable) -> Column:
    """Returns the offsets of those times, in order of the columns: `+01:00;;-05:00`; NULL if no time has
    one."""
    texts = [F.regexp_extract(F.coalesce(of_image(c), F.lit("")), ZONE_AT_END, 1) for c in zoned(table)]
    if not texts:
        return F.lit(None).cast("string")
    some = F.concat(*texts) != ""
    return F.when(of_image(THERE).isNotNull() & some, F.concat_ws(";", *texts))


def bad_rows(
    table: TrackedTable, options: OpenEdgeOptions, code: Column, oper: Column
) -> list[tuple[Column, str | Column]]:
    """Returns the reasons why a change is bad, from both of its rows."""
    tracked, imaged = of_tracking(THERE).isNotNull(), of_image(THERE).isNotNull()
    code_t, code_c = of_tracking("_Operation"), of_image("_Operation")
    number = F.coalesce(of_tracking("_Change-Sequence"), of_image("_Change-Sequence"))
    text = F.coalesce(number.cast("string"), F.lit("?"))
    said, shown = F.coalesce(code_t.cast("string"), F.lit("?")), F.coalesce(code_c.cast("string"), F.lit("?"))
    operation = F.coalesce(code.cast("string"), F.lit("nothing"))
    pair = (code_t == code_c) | ((code_t == AFTER_UPDATE) & (code_c == BEFORE_UPDATE))
    bad: list[tuple[Column, str | Column]] = [
        (of_tracking(WHY).isNotNull(), of_tracking(WHY)),
        (of_image(WHY).isNotNull(), of_image(WHY)),
        (oper.isNull(), F.concat(F.lit("unknown operation "), operation)),
        (number.isNull(), "no _Change-Sequence"),
        (number < 0, F.concat(F.lit("negative _Change-Sequence "), text)),
        (imaged & code_c.isin(*GONE), F.concat(F.lit("change table row of operation "), shown)),
        (
            tracked & imaged & ~F.coalesce(pair, F.lit(False)),
            F.concat_ws("", F.lit("tracking row has operation "), said, F.lit(", change table "), shown),
        ),
        *_field_map_bad(table),
    ]
    if options.partitions == "reject":
        # Partition 0 and tenant 0 are ordinary parts of their table; tailrace writes rows with neither.
        part = [F.coalesce(of_tracking(n), F.lit(0)) for n in ("_Partition-Id", "_Tenant-Id")]
        some = of_tracking("_Partition-Id").isNotNull() | of_tracking("_Tenant-Id").isNotNull()
        words = looked_up(GONE, code)
        gone = F.concat_ws("", words, F.lit(" of partition "), part[0], F.lit(", tenant "), part[1])
        said = F.concat(gone, F.lit(": unknown rows; if it was the whole table, set partitions=truncate"))
        bad.append((some & (oper == "T"), said))
    if options.orphans == "reject":
        bad += _orphans(table, code, tracked, imaged, text)
    return bad


def _orphans(
    table: TrackedTable, code: Column, tracked: Column, imaged: Column, text: Column
) -> list[tuple[Column, str | Column]]:
    valued = [p for p, level in table.source.levels.items() if level >= VALUED]
    name = table.source.change_table or "a change table"
    lone = ~imaged & code.isin(1, 2, AFTER_UPDATE) & of_tracking("_Policy-Id").isin(*valued)
    return [
        (~tracked, F.concat(F.lit("no tracking row for change "), text)),
        (lone, F.concat(F.lit(f"no row in {name} for change "), text)),
    ]


def _field_map_bad(table: TrackedTable) -> list[tuple[Column, str | Column]]:
    """Returns a reason for bits without a column, if the columns are known."""
    if not table.source.columns:
        return []
    field_map = of_tracking("_Change-FieldMap")
    known = {p - 1 for p in table.source.positions.values()}
    words = [F.col(f"_map{k}") for k in range(max(known) // mask.WORD + 1)]
    size = len(words) * mask.WORD
    rest = F.hex(F.substring(field_map, size // 8 + 1, mask.FIELD_MAP_BYTES))
    more = F.when(F.octet_length(field_map) > size // 8, rest.rlike("[1-9A-F]"))
    odd = mask.any_set(words, set(range(size)) - known) | F.coalesce(more, F.lit(False))
    return [
        (odd, "field map has a bit without a column: mask longer than the columns"),
        (
            F.octet_length(field_map) > mask.FIELD_MAP_BYTES,
            f"field map longer than {mask.FIELD_MAP_BYTES} bytes",
        ),
    ]


NATIVES = {
    "_Policy-Id": "string", "_Source-Table-Number": "int", "_Version": "int", "_User-Misc": "string",
    "_Misc": "string", "_Change-FieldMap": "binary",
}  # fmt: skip
"""Tracking columns that become native headers, with types."""
OF_POLICY = ("_Policy-Id", "_Source-Table-Number", "_Change-FieldMap")
"""Those that have no meaning without the policies and schema rows under which they were written."""
GONE_CODE, IMAGE_TRAN, IMAGE_TIME = (
    NATIVE + "_Operation",
    NATIVE + "image_Tran-Id",
    NATIVE + "image_Time-Stamp",
)
CUT, ZONE, OFFSETS = NATIVE + "split", NATIVE + "zone", NATIVE + "offsets"
HEADERS = (
    "partition_id", "tenant_id", "recid", "user_name", *(NATIVE + n for n in NATIVES), GONE_CODE, IMAGE_TRAN,
    IMAGE_TIME, CUT, ZONE, OFFSETS,
)  # fmt: skip
"""Headers in addition to the usual ones, in order."""
_CARRIED = OWN + "carried"
TIME_ZONE = OWN + "zone"
"""Column of tracking rows with times as text: the zone, e.g. `+01:00`."""


def canonical_of(table: TrackedTable, options: OpenEdgeOptions) -> ChangeTable:
    """Returns the canonical change table."""
    source = table.source
    df = both_rows(table).filter(of_tenant(of_tracking("_Tenant-Id"), options.chosen))
    code = F.coalesce(of_image("_Operation"), of_tracking("_Operation"))
    oper = looked_up(OPER, code)
    typed = values_of(table, options)
    where = {c: data_start(HEADERS) + i for i, c in enumerate(source.columns)}
    df, words = _words(table, df, where)
    df = df.withColumn(_CARRIED, _carried(table, code, words, where))
    carried = F.col(_CARRIED)
    is_update = F.when(
        code.isin(AFTER_UPDATE, BEFORE_UPDATE) & of_tracking("_Change-FieldMap").isNotNull(), F.lit(True)
    )
    changed = F.when(is_update, mask.from_words(words))
    bad = [*bad_rows(table, options, code, oper), *typed.bad]
    df = df.withColumn(WHY, reasons(bad)).withColumn(RAW, raw_rows())
    for name in (FILE, ROW, FINER):
        there = [
            side(name)
            for side, df_ in ((of_image, table.images), (of_tracking, table.tracking))
            if _has(df_, name)
        ]
        if name == FINER:  # of either row, or of a value
            there = (
                [any_of(F.coalesce(one, F.lit(False)) for one in (*there, *typed.cut))]
                if there or typed.cut
                else []
            )
        if there:
            df = df.withColumn(name, F.coalesce(*there))
    headers = _headers(table, code, oper) | {
        "change_mask": _change_mask(source, oper, changed, carried, where),
        "column_mask": carried,
    }
    result = canonical(df, headers, typed.values, key=source.key, name=source.name)
    kept = Kept(
        dict(table.given),
        source.change_table,
        dict(source.positions),
        dict(source.rows),
        table.added,
        zoned(table),
    )
    return result.with_df(result.df.withMetadata(PREFIX + "change_seq", {KEPT: kept.to_json()}))


def _has(df: DataFrame | None, name: str) -> bool:
    return df is not None and name in df.columns


def _headers(table: TrackedTable, code: Column, oper: Column) -> dict[str, Column]:
    number = F.coalesce(of_tracking("_Change-Sequence"), of_image("_Change-Sequence"))
    seq = F.coalesce(of_tracking("change_seq"), F.lpad(number.cast("string"), 35, "0"))
    tran, time = (F.coalesce(of_tracking(n), of_image(n)) for n in ("_Tran-Id", "_Time-Stamp"))
    found = {
        "change_seq": seq,
        "change_oper": oper,
        "transaction_id": tran.cast("string"),
        "timestamp": time,
        "partition_id": of_tracking("_Partition-Id"),
        "tenant_id": of_tracking("_Tenant-Id"),
        "recid": of_tracking("_Recid").cast("string"),
        "user_name": of_tracking("_User-Name"),
    }
    found |= {NATIVE + name: of_tracking(name).cast(kind) for name, kind in NATIVES.items()}
    found[GONE_CODE] = F.when(code.isin(*GONE), code)
    # Transaction and time of the image, if they differ from those of its tracking row.
    found[IMAGE_TRAN] = F.when(~of_image("_Tran-Id").eqNullSafe(tran), of_image("_Tran-Id"))
    found[IMAGE_TIME] = F.when(~of_image("_Time-Stamp").eqNullSafe(time), of_image("_Time-Stamp"))
    found[CUT] = of_image(SPLIT)
    found[ZONE] = (
        of_tracking(TIME_ZONE) if TIME_ZONE in table.tracking.columns else F.lit(None).cast("string")
    )
    found[OFFSETS] = offsets(table)
    return found


def _words(table: TrackedTable, df: DataFrame, where: Mapping[str, int]) -> tuple[DataFrame, list[Column]]:
    """Returns the rows with their field maps as 64-bit words, in which each bit is at its column's position:
    computed once, because several expressions need them."""
    places = {p - 1: where[c] for c, p in table.source.positions.items()}
    old = mask.words(of_tracking("_Change-FieldMap"), max(places, default=-1) + 1, little=True)
    named = {f"_map{k}": word for k, word in enumerate(old)}
    df = df.withColumns(named) if named else df
    moved = mask.moved([F.col(n) for n in named], places)
    extra = {f"_bits{k}": word for k, word in enumerate(moved)}
    return (df.withColumns(extra) if extra else df), [F.col(n) for n in extra]


def _carried(
    table: TrackedTable, code: Column, changed: Sequence[Column], where: Mapping[str, int]
) -> Column:
    """Returns the column mask; NULL if the image has every column. `changed`: the field map as words."""
    source = table.source
    every = mask.encode(where.values())
    if table.images is None or not where:
        return F.when(~code.isin(*GONE), F.unhex(F.lit("")))
    there = {at: F.lit(True) if c in source.key else says_something(table, c) for c, at in where.items()}
    sparse = mask.with_bits(changed, there)
    captured = F.lit(bytearray(every))
    for policy, columns in source.tracked.items():
        if len(columns) < len(source.columns):
            mine = bytearray(mask.encode(where[c] for c in columns))
            captured = F.when(of_tracking("_Policy-Id") == policy, F.lit(mine)).otherwise(captured)
    said = mask.move(
        of_image("_Column-Map"), {p - 1: where[c] for c, p in source.positions.items()}, little=True
    )
    found = F.coalesce(said, F.when(code.isin(BEFORE_UPDATE, AFTER_UPDATE), sparse).otherwise(captured))
    whole = F.nullif(found, F.lit(bytearray(every)))
    return F.when(of_image(THERE).isNotNull(), whole).when(~code.isin(*GONE), F.unhex(F.lit("")))


def _change_mask(
    source: CapturedTable, oper: Column, changed: Column, carried: Column, where: Mapping[str, int]
) -> Column:
    """Returns the field map for updates; otherwise a mask by Qlik's rules (spec/qlik.md §2)."""
    every, key = (F.lit(bytearray(mask.encode(where[c] for c in some))) for some in (where, source.key))
    return (
        F.when(oper == "U", changed)
        .when(oper == "I", F.coalesce(carried, every))
        .when(oper == "D", key)
        .otherwise(F.unhex(F.lit("")))
    )
