"""`tailrace inspect` without Spark: each vendor's example, a part of it alone, very wide tables."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tailrace import formats
from tailrace.errors import ConfigError, FormatError
from tailrace.formats import vendors
from tailrace.formats.glance import glance
from tailrace.formats.inspect import Found
from tailrace.formats.samples import samples
from tailrace.model import mask

pytestmark = pytest.mark.unit
EXAMPLES = Path(__file__).parents[2] / "examples"
WIDE = 10_000
"""Columns: more than Python's stack is deep."""


def look(*path: str | Path, **more: Any) -> Found:
    found = glance(str(EXAMPLES.joinpath(*path)), **more)
    assert found is not None
    return found


def changed(found: Found, table: str) -> list[tuple[str, list[str] | None]]:
    (one,) = (t for t in found.tables if t.name == table)
    return [(row["change_oper"], row["changed"]) for row in one.rows]


def test_openedge() -> None:
    found = look("openedge", "tables", rows=20)
    assert (found.format, found.sure) == ("openedge", 1.0)
    item, till = found.tables
    assert (item.name, item.key, item.operations) == ("PUB.Item", ["Id"], {"I": 3, "B": 2, "U": 3, "D": 1})
    assert item.columns == {"Id": "int", "Name": "string", "Price": "decimal(38,2)", "Tags": "string"}
    assert ("U", ["Price", "Tags"]) in changed(found, "PUB.Item")
    assert (till.name, till.columns, till.operations) == ("PUB.Till", {}, {"U": 1})


def test_openedge_tables_alone() -> None:
    assert [t.operations for t in look("openedge", "tables", "PUB.CDC_Item.csv").tables] == [
        {"I": 3, "B": 2, "U": 2, "D": 1}
    ]
    policies = look("openedge", "tables", "PUB._Cdc-Table-Policy.csv")
    assert (policies.format, policies.tables) == ("openedge", [])
    assert policies.control_tables["PUB._Cdc-Table-Policy"][0]["_Policy-Name"] == "item_values"


def test_openedge_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    """An owner in front of its name makes no other table."""
    shutil.copytree(EXAMPLES / "openedge" / "tables", tmp_path, dirs_exist_ok=True)
    (tmp_path / "_File").mkdir()
    shutil.copy(tmp_path / "PUB._File.csv", tmp_path / "_File" / "a.csv")
    with pytest.raises(FormatError, match="are both the table _file"):
        glance(str(tmp_path), form="openedge")


def test_qlik_in_two_layouts_and_a_full_load() -> None:
    found = look("qlik", "tables", rows=20)
    (item,) = found.tables
    assert (found.format, item.name, item.key) == ("qlik", "shop.item", ["id"])
    assert item.columns == {"id": "int", "name": "string", "colour": "string", "price": "decimal(10,2)"}
    assert item.operations == {"I": 3, "B": 3, "U": 3, "D": 1}
    # Bits count the columns of the row's own file.
    assert [c for c in changed(found, "shop.item") if c[0] == "U"] == [
        ("U", ["name", "price"]), ("U", ["colour"]), ("U", ["price"]),
    ]  # fmt: skip


def test_sqdr() -> None:
    found = look("sqdr", "tables")
    (item,) = found.tables
    assert (found.format, item.name, item.key) == ("sqdr", "SHOP.ITEM", ["ID"])
    assert item.operations == {"I": 4, "U": 2, "D": 1}
    assert item.rows[0]["carried"] == ["ID", "NAME", "PRICE", "TAG"]
    alone = look("sqdr", "tables", "ir_keylog.csv").tables[0]
    assert (alone.key, list(alone.columns)) == (["ID"], ["ID", "NAME", "PRICE", "TAG"])


def test_two_subscriptions_of_one_sqdr_table_have_the_columns_that_are_declared(tmp_path: Path) -> None:
    there = EXAMPLES / "sqdr" / "tables"
    shutil.copy(there / "tailrace_columns.csv", tmp_path)
    with (there / "ir_keylog.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    place = head.index("subscription_id")
    with (tmp_path / "ir_keylog.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows, *([*r[:place], "32", *r[place + 1 :]] for r in rows)])
    (alone,) = look("sqdr", "tables").tables
    found = look(tmp_path).tables
    assert [t.name for t in found] == [f"SHOP.ITEM@{s}" for s in (rows[0][place], "32")]
    assert [(t.key, t.columns) for t in found] == [(alone.key, alone.columns)] * 2


def test_soliddb() -> None:
    found = look("soliddb", "tables")
    assert (found.format, [t.name for t in found.tables]) == ("soliddb", ["SHOP.ITEM"])
    assert found.tables[0].operations["U"] == 3


@pytest.mark.parametrize(("relid", "name"), [(10003, "SHOP.ITEM"), (4711, '"SHOP"."ITEM"')])
def test_truncates_of_soliddb_are_counted(tmp_path: Path, relid: int, name: str) -> None:
    """By RELID, or by name if no table has it."""
    shutil.copytree(EXAMPLES / "soliddb" / "tables", tmp_path / "log")
    address, log = "00000000000000990000000100000295000002FF", tmp_path / "log" / "SYS_LOG.csv"
    data = (73).to_bytes(4, "big").hex() + name.encode().hex()
    with log.open("a") as file:
        file.write(f"13,DBE_LOGREADER_LOG_REC_DDL,999,,{relid},1,{address},{data.upper()}\n")
    before, after = (
        look(at).tables[0].operations for at in (EXAMPLES / "soliddb" / "tables", tmp_path / "log")
    )
    assert after == {**before, "T": before.get("T", 0) + 1}


KINDS = ("csv.gz", "json", "json.gz", "parquet")


def as_kind(vendor: str, folder: Path, kind: str) -> None:
    """A vendor's example as files of another kind, every value as text."""
    shutil.copytree(EXAMPLES / vendor / "tables", folder)
    for file in sorted(folder.rglob("*.csv")):
        with file.open(newline="") as lines:
            rows: list[dict[str, str | None]] = [
                {n: v or None for n, v in row.items()} for row in csv.DictReader(lines)
            ]
        made = file.read_bytes() if kind.startswith("csv") else b""
        if kind.startswith("json"):
            made = "".join(json.dumps(row) + "\n" for row in rows).encode()
        wanted = file.with_suffix(f".{kind}")
        file.unlink()
        if kind in ("parquet", "delta"):
            text = pa.schema([(n, pa.string()) for n in rows[0]])
            table = pa.Table.from_pylist(rows, schema=text)
            if kind == "delta":
                write_deltalake(file.with_suffix(""), table)
            else:
                pq.write_table(table, wanted)
        else:
            wanted.write_bytes(gzip.compress(made) if kind.endswith(".gz") else made)


ALL = [(vendor, kind) for vendor in ("openedge", "qlik", "soliddb", "sqdr") for kind in KINDS]


@cache
def of_text(vendor: str) -> Found:
    return look(vendor, "tables")


# Qlik's changes of one table lie in many files, whose order a Delta table does not keep.
@pytest.mark.parametrize(("vendor", "kind"), [*ALL, *((v, "delta") for v in ("openedge", "soliddb", "sqdr"))])
def test_every_kind_of_file_says_the_same(tmp_path: Path, vendor: str, kind: str) -> None:
    as_kind(vendor, tmp_path / "in", kind)
    found, text = look(tmp_path / "in"), of_text(vendor)
    assert (found.format, found.tables) == (vendor, text.tables)


@pytest.mark.parametrize("kind", ["csv", *KINDS])
def test_every_kind_of_file_of_tailrace(tmp_path: Path, kind: str) -> None:
    as_kind("qlik", tmp_path / "qlik", kind)
    file = tmp_path / f"shop.item.{kind}"
    shutil.move(tmp_path / "qlik" / "shop.item__ct" / f"20261102-081500500.{kind}", file)
    (item,) = look(file, form="tailrace").tables
    assert (item.name, item.operations) == ("shop.item", {"I": 1, "B": 1, "U": 1, "D": 1})


@pytest.mark.parametrize("line", ["[1]", "{", "7"])
def test_lines_that_are_not_json_objects_name_their_file(tmp_path: Path, line: str) -> None:
    file = tmp_path / "shop.item__ct" / "20261102-081500500.json"
    file.parent.mkdir()
    rows = f'{{"header__change_seq":"{1:035d}","header__change_oper":"I","id":"ü"}}\n'
    file.write_text(rows, "latin-1")
    assert look(tmp_path, given={"encoding": "latin-1"}, form="qlik").tables[0].operations == {"I": 1}
    with pytest.raises(FormatError, match=r"cannot be read(.|\n)*20261102-081500500\.json"):
        look(tmp_path, form="qlik")
    file.write_text(f"{rows}{line}\n")
    with pytest.raises(FormatError, match=r"cannot be read(.|\n)*20261102-081500500\.json"):
        look(tmp_path, form="qlik")


@pytest.mark.parametrize("name", ["3.parquet", "1.csv", "1.json", "1.csv.gz"])
def test_a_damaged_file_of_a_table_is_named(tmp_path: Path, name: str) -> None:
    place = tmp_path / "shop.item__ct"
    place.mkdir()
    kind = name.partition(".")[2]
    if kind == "parquet":
        for good in ("1.parquet", "2.parquet"):
            pq.write_table(pa.table({"header__change_seq": ["1" * 35], "id": [1]}), place / good)
    else:
        (place / f"2.{kind}").write_bytes(b"more")
    (place / name).write_bytes(b"PAR1 \xff\xff\n PAR1")
    with pytest.raises(FormatError, match=r"cannot be read: ") as told:
        samples(str(tmp_path))
    assert told.value.where == str(place / name)


def test_no_spark_is_loaded() -> None:
    code = f"from tailrace.formats.glance import glance; import sys; glance({str(EXAMPLES / 'qlik' / 'tables')!r}); "
    subprocess.run([sys.executable, "-c", code + "sys.exit('py4j' in sys.modules)"], check=True)


def test_tables_of_nobody(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no"):
        glance(str(tmp_path / "nowhere"))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="no format recognises these tables"):
        glance(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_thousands_of_columns(tmp_path: Path, kind: str) -> None:
    heads = ("change_seq", "change_oper", "change_mask")
    names = [f"header__{h}" for h in heads] + [f"c{n}" for n in range(WIDE)]
    octets = mask.encode([3, WIDE + 2])
    values = [
        "2026010112000000" + "0" * 18 + "1",
        "U",
        octets if kind == "parquet" else octets.hex(),
        *"x" * WIDE,
    ]
    place = tmp_path / "t__ct"
    place.mkdir()
    if kind == "parquet":
        pq.write_table(pa.table({n: [v] for n, v in zip(names, values, strict=True)}), place / "1.parquet")
    else:
        (place / "1.csv").write_text("\n".join(",".join(map(str, line)) for line in (names, values)) + "\n")
    found = look(tmp_path)
    assert (found.tables[0].name, len(found.tables[0].columns)) == ("t", WIDE)
    assert changed(found, "t") == [("U", ["c0", f"c{WIDE - 1}"])]


def test_text_files_that_are_odd(tmp_path: Path) -> None:
    """The delimiter is found, lines that are none are left out, and nothing is said of nothing."""
    heads = "header__change_seq;header__change_oper;id;name\n"
    file = tmp_path / "shop.item__ct.csv"
    file.write_bytes((heads + f'{1:035d};I;1;a\n{2:035d};I;2;Müller\n{3:035d};I;3;"b\n').encode("latin-1"))
    assert look(file).tables[0].operations == {"I": 1}
    named = glance(str(file), given={"encoding": "latin-1"})
    assert named is not None
    assert named.tables[0].operations == {"I": 2}
    file.write_text(heads)
    assert "there are no rows" in look(file).notes
    file.write_text("")
    with pytest.raises(FormatError, match="is empty"):
        look(file)


def together(folder: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(EXAMPLES / name / "tables", folder, dirs_exist_ok=True)
    return folder


def test_two_vendors_in_one_folder(tmp_path: Path) -> None:
    found = look(together(tmp_path, "qlik", "sqdr"))
    assert (found.format, [t.name for t in found.tables]) == ("sqdr", ["SHOP.ITEM"])
    assert found.vendors == {
        "ir_keylog": "sqdr",
        "shop.item": "qlik",
        "shop.item__ct": "qlik",
        "tailrace_columns": "sqdr",
    }
    assert "the folder also has tables of qlik: inspect them with `--from qlik`" in found.notes
    assert [t.name for t in look(tmp_path, form="qlik").tables] == ["shop.item"]
    assert vendors.at(str(tmp_path), ["shop.item", "shop.item__ct"], formats.get("qlik")) == found.vendors


@pytest.mark.parametrize("other", ["qlik", "soliddb", "sqdr"])
def test_openedge_and_another_vendor(tmp_path: Path, other: str) -> None:
    alone = set(samples(str(EXAMPLES / "openedge" / "tables")))
    found = look(together(tmp_path, "openedge", other))
    assert (found.format, [t.name for t in found.tables]) == ("openedge", ["PUB.Item", "PUB.Till"])
    assert {n for n, v in found.vendors.items() if v == "openedge"} == alone
    assert set(found.vendors.values()) == {"openedge", other}


def test_one_vendor_and_a_table_of_nobody(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    found = look(together(tmp_path, "qlik"))
    assert found.vendors == {"shop.item": "qlik", "shop.item__ct": "qlik"}


def test_qlik_headers_of_its_own_are_no_columns(tmp_path: Path) -> None:
    """They are carried as `header__native_...`."""
    file = tmp_path / "dbo.item__ct" / "20261102-081500500.csv"
    file.parent.mkdir()
    file.write_text(
        "header__change_seq,header__change_oper,id,header__x,v\n20261102081500500000000000000000001,I,1,q,a\n"
    )
    (item,) = look(tmp_path, form="qlik").tables
    assert item.columns == {"id": "string", "v": "string"}


def test_qlik_without_the_header_line_that_its_dfm_names(tmp_path: Path) -> None:
    file = tmp_path / "dbo.item" / "LOAD00000001.csv"
    file.parent.mkdir()
    file.write_text("1,a\n2,b\n")
    names = [{"ordinal": k, "name": n, "type": "STRING"} for k, n in enumerate(("id", "s"), 1)]
    made = {"fileInfo": {"name": "LOAD00000001", "extension": "csv"}, "dataInfo": {"columns": names}}
    file.with_suffix(".dfm").write_text(json.dumps(made))
    with pytest.raises(FormatError, match="the first line has the columns 1, a, not id, s") as told:
        look(tmp_path, form="qlik")
    assert "csv_header=false" in str(told.value) and "LOAD00000001.csv" in str(told.value)
    (item,) = look(tmp_path, form="qlik", given={"csv_header": "false"}).tables
    assert item.operations == {"I": 2}
