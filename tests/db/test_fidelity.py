"""Extreme values of every built-in type: the same from a baseline and from the stream, and as written here."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from tailrace.config.task import load

from .test_model import drain

pytestmark = [pytest.mark.db, pytest.mark.spark]

UTC = dt.timezone.utc
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
Case = tuple[str, list[tuple[str, Any]]]
CASES: list[Case] = [
    ("boolean", [("true", True), ("false", False)]),
    ("smallint", [("-32768", -32768), ("32767", 32767)]),
    ("integer", [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)]),
    ("bigint", [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)]),
    ("oid", [("4294967295", 2**32 - 1)]),
    ("real", [("3.4028235e38", 3.4028234663852886e38), ("1e-45", 1.401298464324817e-45), ("'-Infinity'", -math.inf)]),
    ("double precision", [("1.7976931348623157e308", 1.7976931348623157e308), ("5e-324", 5e-324), ("'NaN'", math.nan)]),
    ("numeric(38,0)", [("9" * 38, Decimal("9" * 38)), ("-1", Decimal(-1))]),
    ("numeric(12,2)", [("9999999999.99", Decimal("9999999999.99")), ("0.005", Decimal("0.01"))]),
    ("numeric", [("1e50", "1" + "0" * 50), ("'NaN'", "NaN"), ("'-Infinity'", "-Infinity"), ("0.10", "0.10")]),
    ("numeric(45,5)", [("1." + "2" * 5, "1.22222")]),
    ("date", [("'0001-01-01'", dt.date(1, 1, 1)), ("'9999-12-31'", dt.date(9999, 12, 31)),
              ("'infinity'", dt.date(9999, 12, 31)), ("'-infinity'", dt.date(1, 1, 1))]),
    ("timestamp", [("'0001-01-01'", dt.datetime(1, 1, 1)), ("'2026-02-28 23:59:59.999999'", dt.datetime(2026, 2, 28, 23, 59, 59, 999999)),
                   ("'infinity'", LAST), ("'-infinity'", dt.datetime(1, 1, 1))]),
    ("timestamptz", [("'2026-07-01 12:00:00.000001+05:30'", dt.datetime(2026, 7, 1, 6, 30, 0, 1, UTC)),
                     ("'infinity'", LAST.replace(tzinfo=UTC))]),
    ("timestamp(0)", [("'2026-01-01 00:00:01'", dt.datetime(2026, 1, 1, 0, 0, 1))]),
    ("time", [("'24:00:00'", "24:00:00"), ("'00:00:00.000001'", "00:00:00.000001")]),
    ("timetz", [("'23:59:59.999999-08'", "23:59:59.999999-08")]),
    ("interval", [("'-178000000 years'", "-178000000 years"), ("'1 mon -2 days 03:04:05.6'", "1 mon -2 days +03:04:05.6")]),
    ("text", [("''", ""), ("'NULL'", "NULL"), ("E'tab\\t nl\\n cr\\r bs\\\\ q\\' dq\" , 😀'", "tab\t nl\n cr\r bs\\ q' dq\" , 😀"),
              ("repeat('x', 300000)", "x" * 300000)]),
    ("varchar(5)", [("'ab  '", "ab  ")]),
    ("char(5)", [("'ab'", "ab   ")]),
    ('"char"', [("'a'", "a")]),
    ("name", [("'n'", "n")]),
    ("bytea", [("'\\x'", b""), ("'\\x00ff5c2c22'", b"\x00\xff\\,\"")]),
    ("uuid", [("'ffffffff-ffff-ffff-ffff-ffffffffffff'", "ffffffff-ffff-ffff-ffff-ffffffffffff")]),
    ("json", [("'{\"a\":  [1, null]}'", '{"a":  [1, null]}')]),
    ("jsonb", [("'{\"b\":1,  \"a\":\"\\u0041\"}'", '{"a": "A", "b": 1}')]),
    ("inet", [("'10.0.0.1/8'", "10.0.0.1/8"), ("'::1'", "::1")]),
    ("cidr", [("'10.0.0.0/8'", "10.0.0.0/8")]),
    ("macaddr", [("'08:00:2b:01:02:03'", "08:00:2b:01:02:03")]),
    ("macaddr8", [("'08:00:2b:01:02:03:04:05'", "08:00:2b:01:02:03:04:05")]),
    ("bit(3)", [("B'101'", "101")]),
    ("varbit", [("B''", ""), ("B'1'", "1")]),
    ("money", [("'-92233720368547758.08'", "-$92,233,720,368,547,758.08")]),
    ("point", [("'(1.5,-2)'", "(1.5,-2)")]),
    ("box", [("'((0,0),(1,1))'", "(1,1),(0,0)")]),
    ("circle", [("'<(0,0),1>'", "<(0,0),1>")]),
    ("polygon", [("'((0,0),(1,1),(1,0))'", "((0,0),(1,1),(1,0))")]),
    ("int[]", [("'{}'", "{}"), ("'{1,NULL,-3}'", "{1,NULL,-3}"), ("'[2:3]={4,5}'", "[2:3]={4,5}"), ("'{{1,2},{3,4}}'", "{{1,2},{3,4}}")]),
    ("text[]", [("array['a,b', null, 'NULL', '', 'q\"\\']", '{"a,b",NULL,"NULL","","q\\"\\\\"}')]),
    ("int4range", [("'empty'", "empty"), ("'[1,]'", "[1,)")]),
    ("tstzrange", [("'[2026-01-01 00:00+00,infinity]'", '["2026-01-01 00:00:00+00",infinity]')]),
    ("int4multirange", [("'{[1,2],[5,6]}'", "{[1,3),[5,7)}")]),
    ("tsvector", [("'a:1 b:2'", "'a':1 'b':2")]),
    ("pg_lsn", [("'FFFFFFFF/FFFFFFFF'", "FFFFFFFF/FFFFFFFF")]),
    ("xid8", [("'18446744073709551615'", "18446744073709551615")]),
    ("mood", [("'happy'", "happy")]),
    ("pair", [("row(1,'x,y')::pair", '(1,"x,y")')]),
    ("positive", [("7", 7)]),
    ("price", [("1234.50", Decimal("1234.50"))]),
]  # fmt: skip
TYPES = (
    "create type mood as enum ('sad', 'happy'); create type pair as (a int, b text); "
    "create domain positive as int check (value > 0); create domain cents as numeric(10,2); "
    "create domain price as cents not null default 0;"
)
STREAMED = 1000


def same(got: Any, want: Any) -> bool:
    if isinstance(want, float) and math.isnan(want):
        return isinstance(got, float) and math.isnan(got)
    return bool(got == want) and type(got) is type(want)


def test_every_type_means_the_same_from_baseline_and_from_stream(
    tmp_path: Path, database: str, spark: object
) -> None:
    path = tmp_path / "types.yaml"
    path.write_text(
        f"name: types\nhome: home\nsource: {{url: '{database}', tables: ['f.*']}}\ntarget: {{path: lake}}\n"
        "baseline: {workers: 1}\n"
    )
    task = load(path)
    height = max(len(values) for _, values in CASES)
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(TYPES)
        session.execute("create schema f")
        columns = ", ".join(f"c{k} {kind}" for k, (kind, _) in enumerate(CASES))
        session.execute(f"create table f.types (id int primary key, {columns})")  # type: ignore[arg-type]

        def write(first: int) -> None:
            for row in range(height + 1):
                # the last row is NULL wherever that is allowed
                texts = [
                    "0" if kind == "price" and row >= len(v) else "null" if row >= len(v) else v[row][0]
                    for kind, v in CASES
                ]
                session.execute(f"insert into f.types values ({first + row}, {', '.join(texts)})")  # type: ignore[arg-type]

        write(0)
        drain(task, spark)
        write(STREAMED)
        drain(task, spark)
    rows = {r["id"]: r for r in DeltaTable(task.target_path("f.types")).to_pyarrow_table().to_pylist()}
    assert len(rows) == 2 * (height + 1)
    wrong = []
    for k, (kind, values) in enumerate(CASES):
        for row in range(height + 1):
            want = values[row][1] if row < len(values) else Decimal("0.00") if kind == "price" else None
            for way, first in (("baseline", 0), ("stream", STREAMED)):
                got = rows[first + row][f"c{k}"]
                if not same(got, want):
                    wrong.append((kind, way, want, got))
    assert wrong == []


def test_a_key_that_is_stored_out_of_line(tmp_path: Path, database: str, db: psycopg.Connection) -> None:
    """PostgreSQL does not send it again in the new row of an update."""
    db.execute("create schema f; create table f.a (k text primary key, v text)")
    db.execute("alter table f.a alter k set storage external")
    path = tmp_path / "task.yaml"
    path.write_text(
        f"name: t\nhome: home\nsource: {{url: '{database}', tables: ['f.*']}}\ntarget: {{path: lake}}\n"
    )
    task = load(path)
    drain(task, None)
    db.execute(
        "insert into f.a select string_agg(md5(n::text), '' order by n), 'old' from generate_series(1, 80) n"
    )
    db.execute("update f.a set v = 'new'")
    drain(task, None)
    rows = DeltaTable(task.target_path("f.a")).to_pyarrow_table().to_pylist()
    assert [(len(r["k"]), r["v"]) for r in rows] == [(2560, "new")]
