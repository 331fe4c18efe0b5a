"""LOG exported as SYS_LOG, and read again as any other solidDB log."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace import formats
from tailrace.errors import UnsupportedError
from tailrace.formats import file_reader
from tailrace.formats.base import FILE, RAW, ROW, WHY
from tailrace.formats.soliddb.reader import FIELDS, RECORDS, TABLES
from tailrace.formats.soliddb.tables import layouts
from tailrace.lake import log
from tailrace.model.change import PREFIX, Column, Relation
from tailrace.operate.sys_log import export_sys_log, needs_spark
from tailrace.wire.pgoutput_write import messages
from tailrace.wire.records import RECORDS as SCHEMA
from tailrace.wire.records import Chunk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
OLD = Relation(16384, "shop", "item", "f", (
    Column("id", 1, "integer", "int4", "int", key=True),
    Column("v", 2, "text", "text", "string"),
))  # fmt: skip
NEW = OLD.with_columns([*OLD.columns, Column("n", 3, "smallint", "int2", "smallint")])
FORMAT = formats.get("soliddb")


def message(kind: str, new: list[Any] | None, old: list[Any] | None = None) -> bytes:
    sides = [None if s is None else [pa.array([v], pa.string()) for v in s] for s in (new, old)]
    return bytes(messages(kind, OLD.relid, *sides)[0].as_py())


def a_log(folder: Path) -> tuple[str, str]:
    records = [
        (7, b""), (1, message("I", ["1", "a"])), (3, message("U", ["1", "é"], ["1", "a"])), (12, b""),
        (7, b""), (3, message("U", ["9", None, "5"], ["1", "é", None])), (4, message("D", None, ["9", None, "5"])),
        (13, b""), (12, b""),
    ]  # fmt: skip
    return log_of(folder, records, [(1, OLD), (5, NEW)])


def log_of(
    folder: Path, records: list[tuple[int, bytes]], layouts: list[tuple[int, Relation]]
) -> tuple[str, str]:
    """A LOG of these records (RECID, DATA), and layouts, each with the record from which it holds."""
    writer = log.LogWriter(str(folder / "log"), str(folder / "relations"))
    rows = [
        {"RECID": recid, "TRXID": 700 + (n > 3), "STMTTRXID": None, "RELID": OLD.relid, "FLAGS": 1,
         "LOGADDR": n.to_bytes(20, "big"), "DATA": data,
         "COMMIT_TIME": datetime(2026, 1, 1, 0, 0, n > 3, tzinfo=timezone.utc)}
        for n, (recid, data) in enumerate(records)
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    writer.add(Chunk(batch, layouts, len(rows), (99).to_bytes(20, "big")))
    writer.commit()
    return str(folder / "log"), str(folder / "relations")


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "size", "here"), [("A", "20", True), ("B", "28", False)])
def test_export(spark: SparkSession, tmp_path: Path, layout: str, size: str, here: bool) -> None:
    out = tmp_path / "out"
    options = {"row_layout": layout, "logaddr_bytes": size}
    done = export_sys_log(*a_log(tmp_path), str(out), spark=None if here else spark, options=options)
    # two transactions of two marks; I, 5 + 3, 4 + 1 (the key change), D, T
    assert done.rows == {"SYS_LOG": 11, "SYS_TABLES": 1, "SYS_COLUMNS": 5}
    assert (done.absent_columns, done.kept_after) == (0, None)
    given = formats.options(FORMAT, {"row_layout": layout})
    found = FORMAT.read(file_reader.load(spark, str(out)), given).changes
    assert sorted(found) == sorted([RECORDS, TABLES, FIELDS, "shop.item"])
    ct = found["shop.item"]
    assert ct.key == ["id"]
    assert ct.df.schema["n"].dataType.simpleString() == "smallint"
    order = [PREFIX + "change_seq", PREFIX + "change_oper"]
    names = [PREFIX + "change_oper", PREFIX + "transaction_id", "id", "v", "n", WHY]
    assert [tuple(r) for r in ct.df.orderBy(*order).select(*names).collect()] == [
        ("I", "700", 1, "a", None, None),
        ("B", "700", 1, "a", None, None),
        ("U", "700", 1, "é", None, None),
        ("B", "701", 1, "é", None, None),
        ("U", "701", 9, None, 5, None),
        ("D", "701", 9, None, 5, None),
        ("T", "701", None, None, None, None),
    ]
    seqs = [r[0] for r in ct.df.orderBy(*order).select(order[0]).distinct().orderBy(order[0]).collect()]
    assert seqs[0] == "2026010100000000" + "2".zfill(19)
    assert found[RECORDS].df.count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv", "delta"])
def test_this_process_writes_what_spark_writes(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    paths = a_log(tmp_path)
    done = [
        export_sys_log(*paths, str(tmp_path / str(bool(one))), spark=one, kind=kind) for one in (None, spark)
    ]
    assert done[0] == done[1]
    for name in done[0].rows:
        here, theirs = (file_reader.read(spark, tmp_path / str(one) / name) for one in (False, True))
        rows = [sorted(map(repr, df.drop(FILE, ROW, WHY, RAW).collect())) for df in (here, theirs)]
        assert rows[0] == rows[1], name
        assert [(f.name, f.dataType) for f in here.schema] == [(f.name, f.dataType) for f in theirs.schema]


@pytest.mark.parametrize(
    ("bare", "why"),
    [
        (Relation(16385, "shop", "bare", "f", ()), "no tables without columns"),
        (Relation(3_000_000_000, "shop", "bare", "f", OLD.columns), "has a larger OID"),
    ],
)
def test_a_table_that_soliddb_cannot_have_is_refused_by_name(
    tmp_path: Path, bare: Relation, why: str
) -> None:
    paths = a_log(tmp_path)
    writer = log.LogWriter(*paths)
    row = {"RECID": 1, "TRXID": 702, "RELID": bare.relid, "FLAGS": 1, "LOGADDR": (20).to_bytes(20, "big"),
           "DATA": b"I", "COMMIT_TIME": datetime(2026, 1, 1, 0, 1, tzinfo=timezone.utc)}  # fmt: skip
    rows = [row | {"RECID": recid} for recid in (7, 1, 12)]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    writer.add(Chunk(batch, [(1, bare)], len(rows), (120).to_bytes(20, "big")))
    writer.commit()
    with pytest.raises(UnsupportedError, match=why) as refused:
        export_sys_log(*paths, str(tmp_path / "out"))
    assert (refused.value.where, "option tables" in (refused.value.hint or "")) == ("shop.bare", True)
    some = export_sys_log(*paths, str(tmp_path / "some"), options={"tables": "shop.item"})
    assert some.rows["SYS_LOG"] == 11


def typed(*columns: tuple[int, str, str, str]) -> Relation:
    """shop.item with these columns besides its key: attnum, name, source type, lake type."""
    more = [Column(name, attnum, source, source, kind) for attnum, name, source, kind in columns]
    return Relation(16384, "shop", "item", "f", (OLD.columns[0], *more))


def test_a_column_that_was_bytes_and_is_text_is_written_under_both_types(tmp_path: Path) -> None:
    was, now = typed((2, "v", "bytea", "binary")), typed((2, "v", "text", "string"))
    records = [
        (7, b""), (1, message("I", ["1", r"\xff00"])), (1, message("I", ["2", None])), (12, b""),
        (7, b""), (1, message("I", ["3", "txt"])), (12, b""),
    ]  # fmt: skip
    paths = log_of(tmp_path, records, [(1, was), (5, now)])
    export_sys_log(*paths, str(tmp_path / "out"))
    rows = pq.read_table(tmp_path / "out" / "SYS_LOG").sort_by("LOGADDR").to_pylist()
    assert [r["DATA"] for r in rows if r["RECID"] == 1] == [
        b"\4\0\0\0\1" b"\2\xff\0", b"\4\0\0\0\2" b"\0", b"\4\0\0\0\3" b"\7\0t\0x\0t\0",
    ]  # fmt: skip


def test_a_column_that_is_added_again_has_another_id(tmp_path: Path) -> None:
    was, now = (
        typed((2, "r", "text", "string"), (3, "v", "text", "string")),
        typed((3, "v", "text", "string"), (4, "r", "text", "string")),
    )
    records = [
        (7, b""), (1, message("I", ["1", "old", "a"])), (12, b""),
        (7, b""), (1, message("I", ["2", "b", "new"])), (12, b""),
    ]  # fmt: skip
    export_sys_log(*log_of(tmp_path, records, [(1, was), (4, now)]), str(tmp_path / "out"))
    data = pq.read_table(tmp_path / "out" / "SYS_LOG")["DATA"].to_pylist()
    wide = ["old".encode(f"utf-16-{e}e") for e in "lb"]
    assert [any(w in d for w in wide) for d in data if d] == [True, False]  # a log has what was there
    rows = [pq.read_table(tmp_path / "out" / n).to_pylist() for n in ("SYS_TABLES", "SYS_COLUMNS")]
    first = min(r["ID"] for r in rows[1]) - 1
    assert [(r["COLUMN_NAME"], r["ID"] - first) for r in rows[1]] == [
        ("id", 1), ("r", 2), ("v", 3), ("id", 1), ("v", 3), ("r", 4),
    ]  # fmt: skip
    found = layouts(*rows, {})
    assert [[f.name for f in x.fields if f.taken] for x in found] == [["id", "v"], ["id", "v", "r"]]


@pytest.mark.parametrize(
    ("options", "want"),
    [({}, (1, 0)), ({"row_layout": "B"}, (0, 0)), ({"trailing_nul": "false"}, (1, 2))],
)
def test_empty_values_that_become_null_are_counted(
    tmp_path: Path, options: dict[str, str], want: tuple[int, int]
) -> None:
    both = typed((2, "b", "bytea", "binary"), (3, "s", "text", "string"))
    images = [["1", r"\x", ""], ["2", None, None], ["3", r"\x00", ""]]
    records = [(7, b""), *((1, message("I", [*x])) for x in images), (13, b""), (12, b"")]
    done = export_sys_log(*log_of(tmp_path, records, [(1, both)]), str(tmp_path / "out"), options=options)
    assert (done.empty_binary, done.empty_text) == want


def test_what_takes_spark(tmp_path: Path) -> None:
    path, _ = a_log(tmp_path)
    assert needs_spark(path, "parquet", {}, 1 << 20) is None
    assert needs_spark(path, "csv", {}, 1 << 20) is None
    assert needs_spark(path, "json", {}, 1 << 20) == "it writes json files"
    assert needs_spark(path, "csv", {"binary": "base64"}, 1 << 20) == "it writes base64"
    assert "bytes" in (needs_spark(path, "parquet", {}, 0) or "")
