"""Qlik's files as their heads, paths and DFM files describe them: what must not be taken for something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import FormatError
from tailrace.formats.qlik import dfm, files
from tailrace.formats.qlik.options import QlikOptions

from .test_qlik_files import HEADS, PLAIN, put

pytestmark = pytest.mark.unit

COLUMNS = [dfm.column(i, n, "string") for i, n in enumerate([*HEADS, "id"], 1)]
CHANGE = ",".join([*HEADS, "id"]) + "\n1,I,,1\n"


def two_schemas(root: Path, second: dict[str, Any], *, load: bool = False) -> None:
    put(root / "HR" / "EMP__ct", "20261102-081500500.csv", CHANGE, COLUMNS, schema="HR", table="EMP")
    if load:
        put(root / "FIN" / "EMP", "LOAD00000001.csv", "id\n1\n", COLUMNS[3:], **second)
    else:
        put(root / "FIN" / "EMP__ct", "20261102-081500500.csv", CHANGE, COLUMNS, **second)


@pytest.mark.parametrize("load", [False, True])
def test_tables_of_two_schemas_are_not_one(tmp_path: Path, load: bool) -> None:
    two_schemas(tmp_path, {"schema": "FIN", "table": "EMP"}, load=load)
    with pytest.raises(FormatError, match=r"EMP is the table (HR|FIN)\.EMP and (HR|FIN)\.EMP") as wrong:
        files.refuse(str(tmp_path), PLAIN)
    assert "HR/EMP__ct/20261102-081500500.csv" in str(wrong.value.where)
    assert "FIN/EMP" in str(wrong.value.where)


@pytest.mark.parametrize(
    "second",
    [{"schema": "hr", "table": "Emp"}, {"schema": "", "table": "EMP"}, {"schema": "HR", "table": "EMP__ct"}],
)
def test_one_table_in_two_folders(tmp_path: Path, second: dict[str, Any]) -> None:
    two_schemas(tmp_path, second)
    found = files.tables(files.listing(str(tmp_path), PLAIN), PLAIN)
    assert {n: len(fs) for n, fs in found.items()} == {"EMP__ct": 2}


def test_a_first_line_of_values_may_have_equal_ones(tmp_path: Path) -> None:
    put(tmp_path / "shop.item", "LOAD00000001.csv", "1,1,a\n2,2,b\n")
    listed = files.listing(str(tmp_path), QlikOptions(csv_header=False))
    assert [f.names for f in listed.files] == [("_c0", "_c1", "_c2")]
    with pytest.raises(FormatError, match="two columns 1"):
        files.listing(str(tmp_path), PLAIN)


@pytest.mark.parametrize("letter", ["\u2028", "\u0085", "\u2029"])
def test_letters_that_end_no_line_of_json(tmp_path: Path, letter: str) -> None:
    first = json.dumps({"b": f"x{letter}y", "a": 1}, ensure_ascii=False)
    put(tmp_path / "shop.item", "LOAD00000001.json", first + '\r\n{"c": 1}\r\n')
    assert files.listing(str(tmp_path), PLAIN).files[0].names == ("b", "a")
    reference = tmp_path / "R00000001.json"
    put(tmp_path / f"shop.{letter}", "LOAD00000001.json", '{"a": 1}\n')
    reference.write_text(json.dumps({"t": "x", "f": f"shop.{letter}/LOAD00000001.json"}, ensure_ascii=False))
    listed = files.listing(str(tmp_path), QlikOptions(reference=str(reference)))
    assert [f.path for f in listed.files] == [f"shop.{letter}/LOAD00000001.json"]


@pytest.mark.parametrize("path", ["other/../in", "in/.", "./in", "in//", "other/..//in/shop.item"])
def test_a_path_as_spark_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    put(tmp_path / "in" / "shop.item", "LOAD00000001.json", '{"a": 1}\n')
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    for given in (path, f"{tmp_path}/{path}"):
        listed = files.listing(given, PLAIN)
        file = listed.files[0].path
        assert f"{listed.root}/{file}" == f"{tmp_path}/in/shop.item/LOAD00000001.json"
        assert str(Path(listed.spark_path(file)).absolute()) == f"{listed.root}/{file}"
        assert ".." not in listed.spark_path(file)
        assert "shop.item" in files.tables(listed, PLAIN)
