"""Qlik's files without Spark: DFM text, which files make a table, layouts, the order of masks' bytes."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import formats
from tailrace.errors import ConfigError, FormatError
from tailrace.formats.qlik import dfm, files
from tailrace.formats.qlik import layout as lay
from tailrace.formats.qlik.file_reader import completeness
from tailrace.formats.qlik.masks import by_insert, by_update, winner
from tailrace.formats.qlik.options import QlikOptions
from tailrace.model import mask

pytestmark = pytest.mark.unit

PLAIN = QlikOptions()
HEADS = ["header__change_seq", "header__change_oper", "header__change_mask"]
PARTITION = "20260302T080000_20260302T090000"


def put(
    folder: Path, name: str, text: str, columns: list[dfm.DfmColumn] | None = None, **meta: object
) -> None:
    """A text file, and its DFM when columns are given."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = gzip.compress(text.encode()) if name.lower().endswith(".gz") else text.encode()
    (folder / name).write_bytes(packed)
    if columns is not None:
        made = dfm.Dfm(name, tuple(columns), **meta)  # type: ignore[arg-type]
        (folder / f"{files.stem_of(name)}.dfm").write_text(made.to_json())


def test_files_of_tables(tmp_path: Path) -> None:
    columns = [dfm.column(i, n, "string") for i, n in enumerate([*HEADS, "id"], 1)]
    put(tmp_path / "dbo.item__ct", "20260101-120000001.csv.gz", ",".join([*HEADS, "id"]) + "\n", columns)
    put(tmp_path / "dbo.item__ct", "20260101-120000002.csv", ",".join([*HEADS, "id"]) + "\r\n")
    part = "20260101T120000_20260101T130000"
    put(
        tmp_path / "dbo.line__ct" / part,
        "20260101-120000001.json",
        json.dumps(dict.fromkeys([*HEADS, "no"], "1")),
    )
    put(
        tmp_path / "dbo.item",
        "LOAD00000001.csv",
        "id\n1\n",
        [dfm.column(1, "id", "int", key=1)],
        content="data",
    )
    put(tmp_path / "dbo.item", "_SUCCESS", "")
    put(tmp_path / "dbo.item", "notes.txt", "")
    put(tmp_path / "dbo.item", "gone.csv", "", [])
    (tmp_path / "dbo.item" / "gone.csv").unlink()
    schema = pa.schema(
        [("header__change_seq", pa.string()), ("header__change_oper", pa.string()), ("a", pa.int32())]
    )
    (tmp_path / "dbo.wide__ct").mkdir()
    pq.write_table(schema.empty_table(), tmp_path / "dbo.wide__ct" / "20260101-120000001.parquet")
    listed = files.listing(str(tmp_path), PLAIN)
    found = {
        n: [(f.stem, f.kind, f.names, f.partition) for f in fs]
        for n, fs in files.tables(listed, PLAIN).items()
    }
    assert found == {
        "dbo.item": [("LOAD00000001", "csv", ("id",), None)],
        "dbo.item__ct": [
            ("20260101-120000001", "csv", (*HEADS, "id"), None),
            ("20260101-120000002", "csv", (*HEADS, "id"), None),
        ],
        "dbo.line__ct": [("20260101-120000001", "json", (*HEADS, "no"), part)],
        "dbo.wide__ct": [("20260101-120000001", "parquet", tuple(schema.names), None)],
    }
    assert [f.ends for f in listed.files if f.folder == "dbo.item__ct"] == [None, "\r\n"]
    assert listed.notes == (
        "dbo.item/gone.dfm: there is no data file for it",
        "dbo.item/notes.txt: neither data nor DFM, not read",
        f"dbo.line__ct/{part}/20260101-120000001.json: its masks count the columns of its first line",
        "dbo.item__ct/20260101-120000002.csv: there is no DFM for it",
        f"dbo.line__ct/{part}/20260101-120000001.json: there is no DFM for it",
        "dbo.wide__ct/20260101-120000001.parquet: there is no DFM for it",
    )


def test_full_loads_and_changes_in_one_folder(tmp_path: Path) -> None:
    put(tmp_path / "dbo.item", "LOAD00000001.csv", "id\n1\n")
    put(tmp_path / "dbo.item", "20260101-120000001.csv", ",".join([*HEADS, "id"]) + "\n")
    listed = files.listing(str(tmp_path / "dbo.item"), PLAIN)
    assert sorted(files.tables(listed, PLAIN)) == ["dbo.item", "dbo.item__ct"]


def test_one_file_with_its_dfm(tmp_path: Path) -> None:
    put(
        tmp_path,
        "LOAD00000001.csv",
        "id\n1\n",
        [dfm.column(1, "id", "int", key=1)],
        start="2026-01-01T00:00:00.000",
    )
    put(tmp_path, "LOAD00000002.csv", "id\n2\n")
    listed = files.listing(str(tmp_path / "LOAD00000001.csv"), PLAIN)
    assert [(f.path, f.meta is not None) for f in listed.files] == [("LOAD00000001.csv", True)]


def test_an_empty_file(tmp_path: Path) -> None:
    put(tmp_path / "a__ct", "20260101-120000001.csv", "")
    with pytest.raises(FormatError, match=r"a__ct/20260101-120000001\.csv is empty"):
        files.refuse_nothing(files.listing(str(tmp_path), PLAIN), "in")
    put(tmp_path / "a__ct", "20260101-120000002.csv", ",".join(HEADS) + "\n")
    assert files.listing(str(tmp_path), PLAIN).notes == (
        "a__ct/20260101-120000001.csv: it is empty, not read",
    )


def test_what_is_not_qliks(tmp_path: Path) -> None:
    put(tmp_path / "in", "orders.csv", "id,name\n1,a\n")
    with pytest.raises(FormatError, match="contains no table of Qlik's") as wrong:
        files.refuse_nothing(files.listing(str(tmp_path), PLAIN), "in")
    assert wrong.value.where == "in/orders.csv: no headers, no DFM, and not named like Qlik's files: not read"
    put(tmp_path / "in", "more.zip", "")
    with pytest.raises(ConfigError, match=r"more\.zip is an archive"):
        files.listing(str(tmp_path), PLAIN)


@pytest.mark.parametrize(
    ("file", "text", "options", "columns"),
    [
        ("shop.item__ct/20261102-081500500.csv", "1,I,,7\n", {}, None),
        ("shop.item__ct/20261102-081500500.csv", "1,I,,7\n", {"csv_header": False}, None),
        ("shop.item__ct/20261102-081500500.json", '{"id": 7}\n', {}, None),
        ("shop.item/20261102-081500500.csv", "1,I,,7\n", {"csv_header": False}, None),
        ("shop.item__ct/1.csv", "7\n", {"csv_header": False}, ["id"]),
        ("shop.item__ct/20261102-081500500.csv", ",".join([*HEADS, "id"]) + "\n", {"prefix": "h_"}, None),
    ],
)
def test_changes_without_headers_are_no_full_load(
    tmp_path: Path, file: str, text: str, options: dict[str, Any], columns: list[str] | None
) -> None:
    named = columns and [dfm.column(i, n, "string") for i, n in enumerate(columns, 1)]
    put((tmp_path / file).parent, Path(file).name, text, named)
    with pytest.raises(FormatError, match="a file of changes without change_seq and change_oper") as wrong:
        files.listing(str(tmp_path), QlikOptions(**options))
    assert wrong.value.where == file
    assert "DFM" in str(wrong.value.hint)


def test_full_loads_in_a_change_tables_folder(tmp_path: Path) -> None:
    columns = [dfm.column(1, "id", "string")]
    put(tmp_path / "shop.item__ct", "LOAD00000001.csv", "id\n1\n")
    put(tmp_path / "shop.item__ct", "20261102-081500500.csv", "id\n2\n", columns, content="data")
    put(tmp_path / "attrep_status", "20261102-081500500.csv", "server_name,task_name\na,b\n")
    listed = files.listing(str(tmp_path), PLAIN)
    assert {n: len(fs) for n, fs in files.tables(listed, PLAIN).items()} == {
        "attrep_status": 1,
        "shop.item": 2,
    }


def test_the_delimiter_is_found(tmp_path: Path) -> None:
    for n, delimiter in enumerate(",;\t|", 1):
        put(tmp_path / "in__ct", f"20260101-12000000{n}.csv", delimiter.join([*HEADS, "id"]) + "\n")
    found = files.listing(str(tmp_path), PLAIN).files
    assert [(f.names[-1], f.delimiter) for f in found] == [
        ("id", ","),
        ("id", ";"),
        ("id", "\t"),
        ("id", "|"),
    ]
    with pytest.raises(FormatError, match="without change_seq and change_oper") as wrong:
        files.listing(str(tmp_path), QlikOptions(delimiter=";"))
    assert wrong.value.where == "in__ct/20260101-120000001.csv"


@pytest.mark.parametrize(
    ("said", "letter"), [("0x01", "\x01"), ("\\x01", "\x01"), ("\\t", "\t"), ("0x7C0x7c", "||")]
)
def test_delimiters_of_a_dfm_may_be_hexadecimal(tmp_path: Path, said: str, letter: str) -> None:
    options = {"fieldDelimiter": said, "recordDelimiter": "0x0D0A", "quoteChar": "\\x27"}
    put(tmp_path / "in__ct", "LOAD00000001.csv", "", [dfm.column(1, "id", "string")], options=options)
    (found,) = files.listing(str(tmp_path), PLAIN).files
    dialect = files.dialect(found, PLAIN)
    assert (dialect.delimiter, dialect.ends, dialect.quote) == (letter, "\r\n", "'")
    assert files.dialect(found, QlikOptions(delimiter=said)).delimiter == letter


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no"):
        files.listing(str(tmp_path / "none"), PLAIN)


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    put(tmp_path / "a__ct", "20260101-120000001.parquet", "hello")
    with pytest.raises(FormatError, match="head of the file"):
        files.listing(str(tmp_path), PLAIN)


def test_prefixes_and_headers() -> None:
    assert lay.find_prefix(["c$_change_seq", "c$_change_oper", "id"]) == "c$_"
    assert lay.find_prefix(["change_seq", "oper", "id"]) == ""
    assert lay.find_prefix(["change_seq", "id"]) is None
    both = ["header__change_seq", "header__change_oper", "x_change_seq", "x_change_oper"]
    assert lay.find_prefix(both) == "header__"
    assert lay.find_prefix(both, "X_") == "x_"
    assert lay.natives_of([*both, "header__User"], "header__") == {"native_user": "header__User"}
    with pytest.raises(FormatError, match="two columns"):
        lay.headers_of(["a", "A"], "header__")


def test_layouts_as_one() -> None:
    old = lay.QlikLayout({"h": "string", "id": "int", "a": "decimal(10,0)", "gone": "date"}, {"id": 1})
    new = lay.QlikLayout({"h": "string", "A": "decimal(19,2)", "id": "bigint", "new": "float"}, {"id": 1})
    made = lay.merged([old, new])
    assert made.types == {"h": "string", "A": "decimal(19,2)", "id": "bigint", "new": "float", "gone": "date"}
    assert lay.key_of([old, new]) == ["id"]
    assert lay.widen("decimal(38,0)", "decimal(10,5)") == "string"
    assert lay.widen("timestamp", "date") == "timestamp"
    assert lay.widen("tinyint", "bigint") == "bigint"


@given(st.integers(2, 70), st.integers(1, 80), st.randoms())
def test_inserts_tell_the_byte_order(headers: int, columns: int, rng: random.Random) -> None:
    """An INSERT's mask marks all data columns: it is never taken for the other order."""
    data = range(headers, headers + columns)
    octets = mask.encode(data)
    assert by_insert(octets, data) in (False, None)
    assert by_insert(octets[::-1], data) in (True, None)
    changed = sorted(rng.sample(list(data), rng.randint(1, columns)))
    assert by_update(mask.encode(changed), changed, data) in (False, None)
    assert by_update(mask.encode(changed)[::-1] + b"\0\0", changed, data) in (True, None)


def test_votes() -> None:
    assert winner([True, True, False, None]) is True
    assert winner([]) is None


def test_options() -> None:
    form = formats.get("qlik")
    assert formats.options(form, {"before_images": "false", "start": "keep"}).before_images is False
    with pytest.raises(ConfigError, match="did you mean 'suffix'"):
        formats.options(form, {"sufix": "x"})
    with pytest.raises(ConfigError, match="is none of"):
        formats.options(form, {"headers": "change_seq,user"})
    assert PLAIN.written_headers(True)[-1] == "partition_name"
    assert QlikOptions(headers="change_mask").written_headers(False) == [
        "change_seq",
        "change_oper",
        "change_mask",
    ]
    assert PLAIN.source_of("dbo.item") is None


def test_knows() -> None:
    knows = formats.get("qlik").knows
    assert knows(["HEADER__CHANGE_SEQ", "HEADER__CHANGE_OPER", "ID"]) == 0.9
    assert knows(["header__change_seq", "header__change_oper", "header__column_mask"]) == 0.5
    assert knows(["TASK_NAME", "TABLE_OWNER", "TABLE_NAME", "ERROR_TIME", "STATEMENT", "ERROR"]) == 0.9
    assert knows(["id"]) == 0


def test_rows_are_not_counted_where_no_dfm_says_how_many_there_are(tmp_path: Path) -> None:
    folder = tmp_path / "shop.item__ct"
    folder.mkdir()
    (folder / "20260101.csv").write_text(f"{','.join(HEADS)},id\n1,I,,1\n")
    assert completeness(None, str(tmp_path), PLAIN) == []  # type: ignore[arg-type]  # no session: nothing reads


@pytest.mark.parametrize(
    ("path", "table", "partition"),
    [
        ("shop.item__ct/sub/20260302-080000000.csv", "shop.item__ct", None),
        ("shop.item__ct/sub/deep/20260302-080000000.csv", "shop.item__ct", None),
        ("shop.item__ct/item/20260302-080000000.csv", "shop.item__ct", None),
        ("shop.item__ct/20260302T080000_20260302T090000/sub/1.csv", "shop.item__ct", PARTITION),
        ("shop.item__ct/sub/20260302T080000_20260302T090000/1.csv", "shop.item__ct", PARTITION),
        ("sub/20260302-080000000.csv", "sub__ct", None),
    ],
)
def test_a_folder_inside_a_change_tables(
    tmp_path: Path, path: str, table: str, partition: str | None
) -> None:
    columns = [dfm.column(i, n, "string") for i, n in enumerate([*HEADS, "id"], 1)]
    place = tmp_path / path
    put(
        place.parent,
        place.name,
        ",".join([*HEADS, "id"]) + "\n1,I,,1\n",
        columns,
        table="item",
        schema="shop",
    )
    listed = files.listing(str(tmp_path), PLAIN)
    assert {n: [f.path for f in fs] for n, fs in files.tables(listed, PLAIN).items()} == {table: [path]}
    assert [f.partition for f in listed.files] == [partition]


def test_a_tables_own_folder_in_a_root_named_like_a_change_table(tmp_path: Path) -> None:
    root, columns = tmp_path / "old__ct", [dfm.column(1, "id", "string")]
    put(root / "dbo.item", "LOAD00000001.csv", "id\n1\n", columns, table="item", schema="dbo")
    put(root / "sub", "LOAD00000001.csv", "id\n1\n")
    assert set(files.tables(files.listing(str(root), PLAIN), PLAIN)) == {"dbo.item", "old"}


def delta(root: Path, *names: str) -> Path:
    """Delta tables by their logs alone."""
    for name in names:
        put(root / name / "_delta_log", "00000000000000000000.json", "{}")
    return root


@pytest.mark.parametrize(
    ("folders", "file", "both"),
    [
        (["a/item__ct", "b/item__ct"], "c/other__ct", "a/item__ct and b/item__ct"),
        (["b/item__ct"], "a/item__ct", "a/item__ct and b/item__ct"),
    ],
)
def test_a_delta_tables_name_is_no_other_tables(
    tmp_path: Path, folders: list[str], file: str, both: str
) -> None:
    root = delta(tmp_path, *folders)
    put(root / file, "20211201-112233444.csv", "header__change_seq,header__change_oper,id\n1,I,1\n")
    with pytest.raises(ConfigError, match=f"{both} are both the table item__ct") as wrong:
        files.refuse(str(root), PLAIN)
    assert "move one of them away" in str(wrong.value)
    with pytest.raises(ConfigError, match=both):
        files.columns_at(str(root), PLAIN)


def test_hidden_delta_tables_are_passed_over(tmp_path: Path) -> None:
    root = delta(tmp_path, "item__ct", "_trash/item__ct", ".old/other__ct", "my_delta_log/third__ct")
    put(root / "_trash" / "item__ct", "20211201-112233444.csv", "header__change_seq\n1\n")
    listed = files.listing(str(root), PLAIN)
    assert files.delta_by_name(listed, PLAIN) == {
        "item__ct": "item__ct",
        "third__ct": "my_delta_log/third__ct",
    }
    assert not listed.files


@pytest.mark.parametrize(
    ("kind", "text"),
    [("CSV.GZ", "id,v\n1,a\n"), ("Csv.Gz", "id,v\n1,a\n"), ("JSON.GZ", '{"id": "1", "v": "a"}\n')],
)
@pytest.mark.parametrize("columns", [None, [dfm.column(1, "id", "string"), dfm.column(2, "v", "string")]])
def test_packed_files_are_told_in_any_letter_case(
    tmp_path: Path, kind: str, text: str, columns: list[dfm.DfmColumn] | None
) -> None:
    put(tmp_path / "shop.item", f"LOAD00000001.{kind}", text, columns)
    assert files.columns_at(str(tmp_path), PLAIN) == {"shop.item": ("id", "v")}
