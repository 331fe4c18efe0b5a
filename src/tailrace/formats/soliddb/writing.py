"""Writes canonical change tables as SYS_LOG, SYS_TABLES and SYS_COLUMNS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from ...model.change import BEFORE, DELETE, INSERT, NATIVE, TRUNCATE, UPDATE, ChangeTable
from ...model.types import arrow_type
from ...wire.soliddb_address import LENGTHS, RANKS
from ..base import VendorTable
from ..shape import quoted
from .changes import KEPT, layout_of
from .codec import Encoding
from .log import (
    COLUMNS,
    COMMIT,
    DATA,
    DDL,
    REC_BEFORE,
    REC_DELETE,
    REC_INSERT,
    REC_UPDATE,
    START,
    SYS_LOG,
    recname,
    truncate_body,
)  # fmt: skip
from .options import SolidOptions
from .place import address_of, with_rank
from .reading import FIELDS, RECORDS, TABLES
from .tables import (
    FIRST_RELID,
    SYS_COLUMNS,
    SYS_TABLES,
    Row,
    SolidLayout,
    Spec,
    layouts,
    made_up,
    rows_of,
)  # fmt: skip

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OWN_ID = r"^(0|[1-9][0-9]{0,17})$"
"""Transaction ids that TRXID can hold unchanged; others get a negative number derived from them."""
_BILLION = 1_000_000_000


def write(changes: Mapping[str, ChangeTable], options: SolidOptions) -> dict[str, DataFrame]:
    """The vendor's tables. System tables and records of other kinds that came from solidDB are written
    unchanged (the system tables are collected: they are small); rows are generated for tables that they do
    not name."""
    mine = {n: ct for n, ct in changes.items() if n not in (RECORDS, TABLES, FIELDS)}
    carried = [
        rows_of(changes[n], t) if n in changes else []
        for n, t in ((TABLES, SYS_TABLES), (FIELDS, SYS_COLUMNS))
    ]
    known = layouts(carried[0], carried[1], {})
    there = {x.table for x in known}
    first = max([FIRST_RELID - 1, *(r["ID"] for r in carried[0])]) + 1
    made = made_up([spec_of(n, ct) for n, ct in mine.items() if n not in there], first)
    made_layouts = layouts(made[0], made[1], {})
    session = next((ct.df.sparkSession for ct in changes.values()), None)
    length = options.logaddr_bytes or LENGTHS[0]
    parts, marks = [], []
    for name, ct in mine.items():
        own = name in there
        found = [x for x in (known if own else made_layouts) if x.table == name]
        placed = _placed(_taken(ct, own), [f"_c{i}" for i, c in enumerate(ct.columns) if c in ct.key], length)
        parts.append(_records(placed, ct, name, found, options, own).select(*COLUMNS))
        # Not from the encoded rows: Spark would encode them once more for it.
        marks.append(placed.filter("!_native").select("TRXID", "LOGADDR"))
    if marks:
        parts.append(_marks(reduce(_union, marks)))
    if RECORDS in changes:
        parts.append(changes[RECORDS].df.select(*COLUMNS))
    return {} if session is None else {
        SYS_LOG.name: reduce(_union, parts) if parts else _frame(session, SYS_LOG, []),
        SYS_TABLES.name: _frame(session, SYS_TABLES, [*carried[0], *made[0]]),
        SYS_COLUMNS.name: _frame(session, SYS_COLUMNS, [*carried[1], *made[1]]),
    }  # fmt: skip


def spec_of(name: str, ct: ChangeTable) -> Spec:
    """What SYS_TABLES and SYS_COLUMNS have to contain for a change table."""
    types = {f.name: f.dataType.simpleString() for f in ct.df.schema}
    return name, tuple((c, types[c]) for c in ct.columns), tuple(ct.key)


def is_own(ct: ChangeTable) -> Column:
    """Whether a row came from solidDB: it has its own LOGADDR."""
    from pyspark.sql import functions as F

    name = ct.header(NATIVE + "LOGADDR")
    return F.col(name).isNotNull() if name in ct.df.columns else F.lit(False)


def keeps_id(ct: ChangeTable) -> Column:
    """Whether a row's transaction id fits into TRXID unchanged."""
    from pyspark.sql import functions as F

    return is_own(ct) | F.coalesce(F.col(ct.header("transaction_id")).rlike(OWN_ID), F.lit(False))


def _union(a: DataFrame, b: DataFrame) -> DataFrame:
    return a.unionByName(b)


def _frame(session: SparkSession, kind: VendorTable, rows: Sequence[Row]) -> DataFrame:
    schema = pa.schema([(c.name, arrow_type(c.type)) for c in kind.columns])
    plain = [{k: bytes(v) if isinstance(v, bytearray) else v for k, v in r.items()} for r in rows]
    return session.createDataFrame(pa.Table.from_pylist(plain, schema=schema))


def _records(
    df: DataFrame, ct: ChangeTable, name: str, found: Sequence[SolidLayout], options: SolidOptions, own: bool
) -> DataFrame:
    """SYS_LOG rows of one table's changes."""
    from pyspark.sql import functions as F

    df = df.withColumn("_layout", layout_of(found, "_RELID" if own else None))
    encoding = Encoding(tuple(x.fields for x in found), _types(ct), tuple(ct.columns), options.style())
    df = df.mapInArrow(encoding, encoding.schema(df))
    relids = F.create_map(*[F.lit(v) for i, x in enumerate(found) for v in (i, x.relid)])
    said = F.col("_RELID") if own else F.lit(None).cast("int")
    relid = F.coalesce(F.element_at(relids, F.col("_layout")), said, F.lit(found[-1].relid))
    data = F.when(F.col("RECID") == DDL, F.lit(truncate_body(name))).otherwise(F.col("_encoded"))
    return df.withColumns(
        {
            "RECNAME": _own("RECNAME", recname(F.col("RECID"))),
            "RELID": _own("RELID", relid),
            "FLAGS": _own("FLAGS", F.lit(DATA)),
            "DATA": F.when(F.col("_native") & F.col("_DATA").isNotNull(), F.col("_DATA")).otherwise(data),
            "TEXTDATA": _own("TEXTDATA", F.lit(None).cast("string")),
        }
    )


def _taken(ct: ChangeTable, own: bool) -> DataFrame:
    """The values of a change table as `_c0`, `_c1`, ..., solidDB's own values of its rows as `_<column>`;
    and `_native`, `_keeps`."""
    from pyspark.sql import functions as F

    header = {h: F.col(quoted(ct.header(h))) for h in ct.headers}
    return ct.df.select(
        header["change_seq"].alias("_seq"), header["change_oper"].alias("_oper"),
        (is_own(ct) if own else F.lit(False)).alias("_native"), keeps_id(ct).alias("_keeps"),
        _or_null(header, "transaction_id", "string").alias("_transaction"),
        _or_null(header, "statement_id", "bigint").alias("STMTTRXID"),
        *[_or_null(header, NATIVE + c, _type(c)).alias(f"_{c}") for c in KEPT],
        *[F.col(quoted(c)).alias(f"_c{i}") for i, c in enumerate(ct.columns)],
    )  # fmt: skip


def _placed(df: DataFrame, key: Sequence[str], length: int) -> DataFrame:
    """Rows with RECID, TRXID and LOGADDR."""
    from pyspark.sql import functions as F

    oper, moved = F.col("_oper"), _key_change(df, key)
    recid = (
        F.when(oper == BEFORE, F.when(moved, REC_DELETE).otherwise(REC_BEFORE))
        .when(oper == UPDATE, F.when(moved, REC_INSERT).otherwise(REC_UPDATE))
        .when(oper == INSERT, REC_INSERT).when(oper == DELETE, REC_DELETE).when(oper == TRUNCATE, DDL)
    )  # fmt: skip
    ranks = F.create_map(
        *[F.lit(x) for o in (BEFORE, DELETE, INSERT, UPDATE, TRUNCATE) for x in (o, RANKS[o])]
    )
    made = address_of(F.col("_seq"), F.element_at(ranks, oper), length)
    return df.withColumns(
        {
            "RECID": _own("RECID", recid),
            "TRXID": F.when(F.col("_keeps"), F.col("_transaction").cast("bigint")).otherwise(_made_id()),
            "LOGADDR": _own("LOGADDR", made),
        }
    )


def _own(name: str, otherwise: Column) -> Column:
    from pyspark.sql import functions as F

    return F.when(F.col("_native"), F.col(f"_{name}")).otherwise(otherwise)


def _or_null(header: Mapping[str, Column], name: str, kind: str) -> Column:
    from pyspark.sql import functions as F

    return header.get(name, F.lit(None)).cast(kind)


def _type(column: str) -> str:
    return next(c.type for c in SYS_LOG.columns if c.name == column)


def _types(ct: ChangeTable) -> tuple[str, ...]:
    types = {f.name: f.dataType.simpleString() for f in ct.df.schema}
    return tuple(types[c] for c in ct.columns)


def _key_change(df: DataFrame, key: Sequence[str]) -> Column:
    """Whether a B or U row belongs to an update that changes the key. One shuffle by change sequence."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not key:
        return F.lit(False)
    same = Window.partitionBy("_seq")
    old, new = (
        F.first(F.when(F.col("_oper") == o, F.struct(*key)), ignorenulls=True).over(same)
        for o in (BEFORE, UPDATE)
    )
    return old.isNotNull() & new.isNotNull() & ~old.eqNullSafe(new)


def _made_id() -> Column:
    """A TRXID for changes without a transaction id (each is one of its own), or with one that is not a
    number."""
    from pyspark.sql import functions as F

    number = F.substring("_seq", -9, 9).cast("bigint")
    hashed = F.pmod(F.xxhash64("_transaction"), F.lit(_BILLION)) + _BILLION
    return -1 - F.when(F.col("_transaction").isNull(), number).otherwise(hashed)


def _marks(changes: DataFrame) -> DataFrame:
    """TRX_START and COMMIT around changes that came without them."""
    from pyspark.sql import functions as F

    ends = changes.groupBy("TRXID").agg(F.min("LOGADDR").alias("_first"), F.max("LOGADDR").alias("_last"))
    both = [
        F.struct(F.lit(recid).alias("RECID"), with_rank(F.col(place), RANKS[rank]).alias("LOGADDR"))
        for recid, place, rank in ((START, "_first", "start"), (COMMIT, "_last", "commit"))
    ]
    marks = ends.select("TRXID", F.inline(F.array(*both)))
    known = {"RECNAME": recname(F.col("RECID")), "FLAGS": F.lit(DATA)}
    known |= {c: F.col(c) for c in ("RECID", "TRXID", "LOGADDR")}
    made = [known.get(c.name, F.lit(None)).cast(c.type).alias(c.name) for c in SYS_LOG.columns]
    return marks.select(*made)
