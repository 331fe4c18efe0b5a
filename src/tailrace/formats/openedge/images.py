"""Builds a source table's canonical change table from its tracking rows and images.

Which columns an image carries (spec/openedge.md §1.3, §2.3): a create or delete every captured one; an
update, before and after, those whose bit is set and the identifying ones, and whatever is not NULL (nor all
unknown, if it is an array); no image, none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...model import mask
from ...model.change import NATIVE, OPERATIONS, PREFIX, ChangeTable
from ..base import FILE, FINER, OWN, RAW, ROW, WHY
from ..shape import any_of, canonical, data_start, reasons
from .bad_rows import bad_rows
from .both_rows import THERE, TrackedTable, both_rows, of_image, of_tracking, raw_rows
from .kept import KEPT, Kept
from .masks import with_bits
from .options import OpenEdgeOptions
from .policy import CapturedTable
from .split import SPLIT
from .tables import AFTER_UPDATE, BEFORE_UPDATE, GONE, OPER
from .tenants import of_tenant
from .values import offsets, says_something, values_of, zoned

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NATIVES = {
    "_Policy-Id": "string", "_Source-Table-Number": "int", "_Version": "int", "_User-Misc": "string",
    "_Misc": "string", "_Change-FieldMap": "binary",
}  # fmt: skip
"""Tracking columns that are carried as native headers, with types."""
OF_POLICY = ("_Policy-Id", "_Source-Table-Number", "_Change-FieldMap")
"""Those that mean nothing without the policies and schema rows under which they were written."""
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
"""Column of tracking rows with text times: their zone, e.g. `+01:00`."""


def canonical_of(of: TrackedTable, options: OpenEdgeOptions) -> ChangeTable:
    """The canonical change table."""
    from pyspark.sql import functions as F

    source = of.source
    df = both_rows(of).filter(of_tenant(of_tracking("_Tenant-Id"), options.chosen))
    code = F.coalesce(of_image("_Operation"), of_tracking("_Operation"))
    oper = F.create_map(*[F.lit(x) for pair in OPER.items() for x in pair])[code]
    values, bad, cut = values_of(of, options)
    where = {c: data_start(HEADERS) + i for i, c in enumerate(source.columns)}
    df, words = _words(of, df, where)
    df = df.withColumn(_CARRIED, _carried(of, code, words, where))
    carried = F.col(_CARRIED)
    is_update = F.when(
        code.isin(AFTER_UPDATE, BEFORE_UPDATE) & of_tracking("_Change-FieldMap").isNotNull(), F.lit(True)
    )
    changed = F.when(is_update, mask.from_words(words))
    bad = [*bad_rows(of, options, code, oper), *bad]
    df = df.withColumn(WHY, reasons(bad)).withColumn(RAW, raw_rows())
    for name in (FILE, ROW, FINER):
        there = [
            side(name) for side, df_ in ((of_image, of.images), (of_tracking, of.tracking)) if _has(df_, name)
        ]
        if name == FINER:  # of either row, or of a value
            there = [any_of(F.coalesce(one, F.lit(False)) for one in (*there, *cut))] if there or cut else []
        if there:
            df = df.withColumn(name, F.coalesce(*there))
    headers = _headers(of, code, oper) | {
        "change_mask": _change_mask(source, oper, changed, carried, where),
        "column_mask": carried,
    }
    made = canonical(df, headers, values, key=source.key, name=source.name)
    kept = Kept(
        dict(of.given), source.change_table, dict(source.positions), dict(source.rows), of.added, zoned(of)
    )
    return made.with_df(made.df.withMetadata(PREFIX + "change_seq", {KEPT: kept.to_json()}))


def _has(df: DataFrame | None, name: str) -> bool:
    return df is not None and name in df.columns


def _headers(of: TrackedTable, code: Column, oper: Column) -> dict[str, Column]:
    from pyspark.sql import functions as F

    number = F.coalesce(of_tracking("_Change-Sequence"), of_image("_Change-Sequence"))
    seq = F.coalesce(of_tracking("change_seq"), F.lpad(number.cast("string"), 35, "0"))
    tran, time = (F.coalesce(of_tracking(n), of_image(n)) for n in ("_Tran-Id", "_Time-Stamp"))
    operations = F.create_map(*[F.lit(x) for pair in OPERATIONS.items() for x in pair])
    found = {
        "change_seq": seq,
        "change_oper": oper,
        "operation": operations[oper],
        "transaction_id": tran.cast("string"),
        "timestamp": time,
        "partition_id": of_tracking("_Partition-Id"),
        "tenant_id": of_tracking("_Tenant-Id"),
        "recid": of_tracking("_Recid").cast("string"),
        "user_name": of_tracking("_User-Name"),
    }
    found |= {NATIVE + name: of_tracking(name).cast(kind) for name, kind in NATIVES.items()}
    found[GONE_CODE] = F.when(code.isin(*GONE), code)
    # The image's own transaction and time, if they differ from those of its tracking row.
    found[IMAGE_TRAN] = F.when(~of_image("_Tran-Id").eqNullSafe(tran), of_image("_Tran-Id"))
    found[IMAGE_TIME] = F.when(~of_image("_Time-Stamp").eqNullSafe(time), of_image("_Time-Stamp"))
    found[CUT] = of_image(SPLIT)
    found[ZONE] = of_tracking(TIME_ZONE) if TIME_ZONE in of.tracking.columns else F.lit(None).cast("string")
    found[OFFSETS] = offsets(of)
    return found


def _words(of: TrackedTable, df: DataFrame, where: Mapping[str, int]) -> tuple[DataFrame, list[Column]]:
    """The rows with the words of their field maps, each bit moved to its column's position: computed once,
    because several expressions need them."""
    from pyspark.sql import functions as F

    places = {p - 1: where[c] for c, p in of.source.positions.items()}
    old = mask.words(of_tracking("_Change-FieldMap"), max(places, default=-1) + 1, little=True)
    named = {f"_map{k}": word for k, word in enumerate(old)}
    df = df.withColumns(named) if named else df
    moved = mask.moved([F.col(n) for n in named], places)
    extra = {f"_bits{k}": word for k, word in enumerate(moved)}
    return (df.withColumns(extra) if extra else df), [F.col(n) for n in extra]


def _carried(of: TrackedTable, code: Column, changed: Sequence[Column], where: Mapping[str, int]) -> Column:
    """The column mask; NULL if the image has every column. `changed`: the words of the field map."""
    from pyspark.sql import functions as F

    source = of.source
    every = mask.encode(where.values())
    if of.images is None or not where:
        return F.when(~code.isin(*GONE), F.unhex(F.lit("")))
    there = {at: F.lit(True) if c in source.key else says_something(of, c) for c, at in where.items()}
    sparse = with_bits(changed, there)
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
    """For updates the field map; otherwise Qlik's rules (spec/qlik.md §2)."""
    from pyspark.sql import functions as F

    every, key = (F.lit(bytearray(mask.encode(where[c] for c in some))) for some in (where, source.key))
    return (
        F.when(oper == "U", changed)
        .when(oper == "I", F.coalesce(carried, every))
        .when(oper == "D", key)
        .otherwise(F.unhex(F.lit("")))
    )
