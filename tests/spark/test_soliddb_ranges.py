"""A log read by ranges of TRXID gives the rows that Spark's shuffle gives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace import formats
from tailrace.formats import file_reader, row_groups
from tailrace.formats.base import FILE, RAW, ROW, WHY
from tailrace.formats.soliddb import log_reader
from tailrace.formats.soliddb.log import RECNAMES, SYS_LOG
from tailrace.formats.soliddb.reader import FIELDS, RECORDS
from tailrace.formats.soliddb.reader import TABLES as SYSTEM_TABLES
from tailrace.formats.soliddb.tables import SYS_COLUMNS, SYS_TABLES
from tailrace.model.types import arrow_type
from tailrace.wire.soliddb_address import RANKS, make

from .soliddb_rows import ITEM, OPTIONS, STAFF, TABLES, at, columns, item, staff

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.formats.base import Read

pytestmark = pytest.mark.spark
FORMAT = formats.get("soliddb")
LOG = pa.schema([(c.name, arrow_type(c.type)) for c in SYS_LOG.columns])
Records = list[dict[str, Any]]


def record(recid: int | None, trxid: int, address: bytes | None, **more: Any) -> dict[str, Any]:
    name = None if recid is None else RECNAMES.get(recid, f"REC_{recid}")
    known = {"RECID": recid, "RECNAME": name, "TRXID": trxid, "FLAGS": 1, "LOGADDR": address}
    return {**dict.fromkeys(LOG.names), **known, **more}


def change(chance: random.Random, address: bytes, trxid: int) -> dict[str, Any]:
    """A row record of one of the tables, or a truncate."""
    id = chance.randrange(3)
    statement = chance.choice([None, 1, 2])
    if chance.random() < 0.05:
        by_name = chance.random() < 0.5
        data = chance.choice([b"\0\0\0\x49", b"\x49\0\0\0"]) + (b"SHOP\0ITEM\0" if by_name else b"?\0")
        return record(13, trxid, address, DATA=data, RELID=None if by_name else ITEM, STMTTRXID=statement)
    recid = chance.choice([1, 3, 3, 4, 5, 5])
    if chance.random() < 0.3:
        data, relid = staff(id, "07E8021D0A0B0C"), STAFF
    else:
        note = ("n",) if address >= at(40) else ()
        data, relid = item(id, chance.choice(["a", None]), "1.5", *note), ITEM
    return record(recid, trxid, address, DATA=data, RELID=relid, STMTTRXID=statement)


def spoiled(chance: random.Random, one: dict[str, Any]) -> dict[str, Any]:
    """The record with something wrong in it, or something that only solidDB has."""
    good: bytes = one["DATA"]
    return one | chance.choice(
        [
            {"DATA": None}, {"DATA": good[:-1]}, {"DATA": good + b"\1a"}, {"RELID": 4711}, {"RELID": None},
            {"LOGADDR": None}, {"LOGADDR": b"\1" * 19}, {"LOGADDR": b"\1" * 28}, {"LOGADDR": b"\xff" * 20},
            {"RECID": None}, {"RECID": 9}, {"RECID": 6}, {"RECNAME": "odd"}, {"RECNAME": None}, {"FLAGS": 0},
            {"FLAGS": None}, {"FLAGS": 3}, {"TEXTDATA": "odd"}, {"DATA": b""}, {"RECID": 13, "DATA": b"\0\0\0\x16X"},
        ]
    )  # fmt: skip


def a_log(chance: random.Random, many: int = 60) -> Records:
    """Records of transactions that overlap, some without START or COMMIT, some with a TRXID that was there."""
    made: Records = []
    running: list[int] = []
    for position in range(1, many):
        if len(running) < 3:
            running.append(position // 2 if chance.random() < 0.1 else position)
            if chance.random() < 0.9:
                off = chance.random() < 0.15
                made.append(record(7, running[-1], at(position, 0), FLAGS=0x41 if off else 1))
        for place in range(1, chance.randrange(2, 7)):
            own = chance.random() < 0.7
            rank = RANKS[chance.choice("BDIU")]
            address = at(position, place) if own else make(f"{(position << 32) + place:035d}", rank)
            one = change(chance, address, chance.choice(running))
            made.append(spoiled(chance, one) if chance.random() < 0.1 else one)
        if chance.random() < 0.6:
            over = running.pop(chance.randrange(len(running)))
            if chance.random() < 0.9:
                made.append(record(12, over, at(position, 99)))
    return made


def put(folder: Path, log: Records, *, group: int, lower: bool = False) -> None:
    """The log in two files, and the second of them once more; the system tables."""
    half = len(log) // 2
    for name, some in (("a", log[:half]), ("b", log[half:]), ("c", log[half:])):
        table = pa.Table.from_pylist(some, LOG)
        # Smaller integers and other names are read, too.
        if lower:
            table = table.set_column(0, "RECID", table["RECID"].cast(pa.int16()))
            table = table.rename_columns([n.lower() for n in table.column_names]).drop_columns(["textdata"])
        (folder / "SYS_LOG").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / "SYS_LOG" / f"{name}.parquet", row_group_size=group)
    for kind, rows in ((SYS_TABLES, TABLES), (SYS_COLUMNS, columns())):
        schema = pa.schema([(c.name, arrow_type(c.type)) for c in kind.columns])
        (folder / kind.name).mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / kind.name / "a.parquet")


def rows(df: DataFrame) -> list[str]:
    return sorted(repr(sorted(r.asDict().items())) for r in df.collect())


def told(read: Read) -> dict[str, list[str]]:
    """All rows of all tables, with where they come from and what they were."""
    return {
        **{n: rows(ct.df) for n, ct in read.changes.items()},
        **{n: rows(df) for n, df in read.pending.items()},
    }


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "LEAST_BYTES", 1)
    monkeypatch.setattr(row_groups, "MOST_AGAIN", 99.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "policy", "lower"),
    [
        (1, "skip-all", True),
        (2, "skip-deletes", False),
    ],
)
def test_both_ways_give_the_same(
    spark: SparkSession, tmp_path: Path, seed: int, policy: str, lower: bool
) -> None:
    log = a_log(random.Random(seed))
    put(tmp_path, log, group=20, lower=lower)
    tables = file_reader.load(spark, str(tmp_path))
    ranged = log_reader.in_ranges(tables, ["SYS_LOG"], 20)
    assert ranged is not None
    assert len(ranged.ranges) > 5
    options = formats.options(FORMAT, {**OPTIONS, "capture_off": policy})
    mine, theirs = told(FORMAT.read(tables, options)), told(FORMAT.read(dict(tables), options))
    assert set(mine) == {"SHOP.ITEM", "HR.STAFF", "SYS_LOG", RECORDS, SYSTEM_TABLES, FIELDS}
    for name, found in theirs.items():
        assert mine[name] == found, name
    assert all(len(mine[n]) > 20 for n in ("SHOP.ITEM", "HR.STAFF", RECORDS))
    assert mine["SYS_LOG"]


def test_files_and_numbers_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    log = [
        record(7, 5, at(1)),
        record(1, 5, at(1, 1), DATA=item(1, "a", "1"), RELID=ITEM),
        record(12, 5, at(1, 9)),
    ]
    log += [record(7, 6, at(2)), record(1, 6, at(2, 1), DATA=None, RELID=ITEM), record(12, 6, at(2, 9))]
    put(tmp_path, log, group=2)
    (tmp_path / "SYS_LOG" / "c.parquet").unlink()
    found = FORMAT.read(file_reader.load(spark, str(tmp_path)), formats.options(FORMAT, OPTIONS)).changes
    (one,) = found["SHOP.ITEM"].df.select(FILE, ROW, "ID").collect()
    assert tuple(one) == ("file:" + str(tmp_path / "SYS_LOG" / "a.parquet"), 2, 1)
    (bad,) = found[RECORDS].df.filter(f"{WHY} is not null").select(ROW, WHY, RAW).collect()
    assert (bad[ROW], bad[WHY]) == (2, "a row record without DATA")
    assert bad[RAW].startswith('{"RECID":1,"RECNAME":"DBE_LOGREADER_LOG_REC_INSERT","TRXID":6,')


def test_what_is_left_to_spark(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(random.Random(5), 20)

    def ranged(name: str, log: Records, **more: Any) -> object:
        put(tmp_path / name, log, group=10)
        folder = tmp_path / name / "SYS_LOG"
        if more:
            table = pq.read_table(folder / "a.parquet")
            for column, values in more.items():
                table = table.append_column(column, pa.array(values * table.num_rows))
            pq.write_table(table, folder / "a.parquet")
        return log_reader.in_ranges(file_reader.load(spark, str(tmp_path / name)), ["SYS_LOG"], 20)

    assert ranged("good", log) is not None
    assert (
        ranged("idle", [*log, record(0, 1, None) | {"TRXID": None, "FLAGS": 0}]) is None
    )  # NULL is in no range
    assert ranged("more", log, MORE=["x"]) is None  # a column that nobody knows
    tables = file_reader.load(spark, str(tmp_path / "good"))
    assert log_reader.in_ranges(dict(tables), ["SYS_LOG"], 20) is None
    monkeypatch.setattr(row_groups, "MOST_AGAIN", 1.0)
    assert ranged("mixed", random.Random(5).sample(log, len(log))) is None  # ranges overlap
