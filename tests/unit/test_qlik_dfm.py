"""Qlik's DFM and reference files, which say what is in the data files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError, FormatError
from tailrace.formats.qlik import dfm, files
from tailrace.formats.qlik.options import QlikOptions

from .test_qlik_files import HEADS, PLAIN, put

pytestmark = pytest.mark.unit


def test_dfm_as_the_vendor_writes_it() -> None:
    text = {
        "dfmVersion": "1.1",
        "taskInfo": {"name": "T", "replicationServer": "srv", "operation": "dataProduced"},
        "fileInfo": {
            "name": "LOAD00000001.csv", "extension": "gz", "startWriteTimestamp": "2016-08-02T10:05:04.802",
            "content": "data", "recordCount": 3, "errorCount": 0,
        },
        "formatInfo": {"format": "delimited", "options": {"fieldDelimiter": ",", "nullValue": "NULL"}},
        "dataInfo": {
            "sourceSchema": "S", "sourceTable": "T", "targetSchema": "dbo", "targetTable": "item", "tableVersion": 2,
            "columns": [
                {"ordinal": 2, "name": "price", "type": "NUMERIC", "precision": 10, "scale": 2, "primaryKeyPos": 0},
                {"ordinal": 1, "name": "id", "type": "INT4", "primaryKeyPos": 1},
                {"ordinal": 3, "name": "doc", "type": "NCLOB"},
                {"ordinal": 4, "name": "x", "type": "SOMETHING"},
            ],
        },
    }  # fmt: skip
    read = dfm.parse("\ufeff" + json.dumps(text), where="x.dfm")
    assert [(c.name, c.spark(), c.key) for c in read.columns] == [
        ("id", "int", 1),
        ("price", "decimal(10,2)", 0),
        ("doc", "string", 0),
        ("x", "string", 0),
    ]
    assert (read.content, read.records, read.version, read.schema, read.table) == (
        "data",
        3,
        2,
        "dbo",
        "item",
    )
    assert (read.start, read.options["nullValue"], read.task) == ("2016-08-02T10:05:04.802", "NULL", "T")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"dataInfo": {}}', '{"dataInfo": {"columns": [{}]}}'])
def test_what_is_no_dfm(text: str) -> None:
    with pytest.raises(FormatError, match="no DFM"):
        dfm.parse(text, where="x.dfm")


TYPES = st.sampled_from(
    ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
     "timestamp_ntz", "decimal(1,0)", "decimal(38,38)", "decimal(20,0)"]
)  # fmt: skip


@given(st.lists(st.tuples(st.text(min_size=1), TYPES, st.integers(0, 3)), max_size=6))
def test_dfm_there_and_back(columns: list[tuple[str, str, int]]) -> None:
    made = tuple(dfm.column(i, n, t, key=k) for i, (n, t, k) in enumerate(columns, 1))
    whole = dfm.Dfm(
        "f.csv", made, start="2026-01-01T00:00:00.000", records=7, table="t", schema="s", task="x"
    )
    again = dfm.parse(whole.to_json(), where="f.dfm")
    assert again == whole
    assert [c.spark() for c in again.columns] == [t for _, t, _ in columns]


def test_headers_have_the_documented_lengths() -> None:
    assert dfm.column(1, "h_change_seq", "string", header="change_seq").length == 35
    made = dfm.column(3, "h_change_mask", "binary", header="change_mask")
    assert (made.type, made.length) == ("BYTES", 128)


def test_reference_files(tmp_path: Path) -> None:
    for n in (1, 2):
        put(tmp_path / "dbo.item", f"LOAD0000000{n}.csv", "id\n1\n", [dfm.column(1, "id", "int")])
    named = tmp_path / "Ref00000001.csv"
    named.write_text("dbo.item,bucket/path/dbo.item/LOAD00000002.csv\n")
    read = QlikOptions(reference=str(named))
    assert [f.path for f in files.listing(str(tmp_path), read).files] == ["dbo.item/LOAD00000002.csv"]
    named.write_text("dbo.item,bucket/path/dbo.item/LOAD00000003.csv\n")
    with pytest.raises(FormatError, match=r"LOAD00000003\.csv is missing"):
        files.listing(str(tmp_path), read)


def test_a_reference_file_that_cannot_be_read(tmp_path: Path) -> None:
    put(tmp_path / "dbo.item", "LOAD00000001.csv", "id\n1\n")
    missing = tmp_path / "none.csv"
    with pytest.raises(ConfigError, match=r"option reference: there is no file .*none\.csv"):
        files.listing(str(tmp_path), QlikOptions(reference=str(missing)))
    for name, said in (
        ("a.json", b"dbo.item,LOAD00000001.csv\n"),
        ("b.json", b"[]\n"),
        ("c.json", b"{}\n"),
        ("d.csv", b"\xff\xfed\x00b\x00"),
    ):
        (tmp_path / name).write_bytes(said)
        with pytest.raises(FormatError) as refused:
            files.listing(str(tmp_path), QlikOptions(reference=str(tmp_path / name)))
        assert refused.value.where == str(tmp_path / name)


def test_a_dfm_in_another_encoding(tmp_path: Path) -> None:
    put(tmp_path / "dbo.item", "LOAD00000001.csv", "id\n1\n")
    (tmp_path / "dbo.item" / "LOAD00000001.dfm").write_bytes(b"\xff\xfe{\x00}\x00")
    with pytest.raises(FormatError, match="cannot be read") as refused:
        files.listing(str(tmp_path), PLAIN)
    assert refused.value.where == "dbo.item/LOAD00000001.dfm"


def test_a_dfm_of_another_table_is_said(tmp_path: Path) -> None:
    columns = [dfm.column(i, n, "string") for i, n in enumerate([*HEADS, "id"], 1)]
    text = ",".join([*HEADS, "id"]) + "\n"
    for n, (schema, table) in enumerate(
        [("dbo", "ITEM"), ("dbo", "item__ct"), ("", "item"), ("dbo", "line"), ("hr", "item")], 1
    ):
        put(tmp_path / "dbo.item__ct", f"20260101-12000000{n}.csv", text, columns, schema=schema, table=table)
    assert files.listing(str(tmp_path), PLAIN).notes == tuple(
        f"dbo.item__ct/20260101-12000000{n}.csv: its DFM is that of {other}, it is read as one of dbo.item"
        for n, other in ((4, "dbo.line"), (5, "hr.item"))
    )
