"""Recognising vendors' tables by their columns, without Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace import formats
from tailrace.errors import ConfigError, FormatError
from tailrace.formats import recognition
from tailrace.formats.file_reader import columns_at
from tailrace.formats.recognition import recognise

pytestmark = pytest.mark.unit
EXAMPLES = Path(__file__).parents[2] / "examples"
VENDORS = ("openedge", "qlik", "soliddb", "sqdr")


def together(folder: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(EXAMPLES / name / "tables", folder, dirs_exist_ok=True)
    return folder


def whose(path: Path, form: str) -> dict[str, str]:
    found = formats.get(form)
    mine = found.columns(str(path), found.options()) if found.columns else columns_at(str(path))
    return recognition.formats_at(str(path), mine, found)


@pytest.mark.parametrize("vendor", VENDORS)
def test_tables_of_a_vendor_are_recognised(vendor: str) -> None:
    assert recognise(str(EXAMPLES / vendor / "tables"))[0].name == vendor


@pytest.mark.parametrize("name", ["PUB.CDC_Item.csv", "PUB._Cdc-Table-Policy.csv"])
def test_a_table_of_openedge_alone_is_recognised(name: str) -> None:
    assert recognise(str(EXAMPLES / "openedge" / "tables" / name))[0].name == "openedge"


def test_a_full_load_of_qlik_alone_is_recognised_by_its_dfm() -> None:
    assert recognise(str(EXAMPLES / "qlik" / "tables" / "shop.item"))[0].name == "qlik"


def test_tables_of_nobody_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no"):
        recognise(str(tmp_path / "nowhere"))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="no format recognises these tables"):
        recognise(str(tmp_path))


def test_recognising_loads_no_spark() -> None:
    path = str(EXAMPLES / "qlik" / "tables")
    code = f"from tailrace.formats.recognition import recognise; import sys; recognise({path!r}); "
    subprocess.run([sys.executable, "-c", code + "sys.exit('py4j' in sys.modules)"], check=True)


def test_two_vendors_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    root = together(tmp_path, "qlik", "sqdr")
    assert recognise(str(root))[0].name == "sqdr"
    expected = {
        "ir_keylog": "sqdr", "shop.item": "qlik", "shop.item__ct": "qlik", "tailrace_columns": "sqdr",
    }  # fmt: skip
    assert whose(root, "sqdr") == expected
    assert recognition.formats_at(str(root), ["shop.item", "shop.item__ct"], formats.get("qlik")) == expected
    assert recognition.notes(expected, formats.get("sqdr")) == [
        "the folder also has tables of qlik: inspect them with `--from qlik`"
    ]


@pytest.mark.parametrize("other", ["qlik", "soliddb", "sqdr"])
def test_openedge_and_another_vendor_in_one_folder_are_told_apart(tmp_path: Path, other: str) -> None:
    alone = set(columns_at(str(EXAMPLES / "openedge" / "tables")))
    found = whose(together(tmp_path, "openedge", other), "openedge")
    assert {n for n, v in found.items() if v == "openedge"} == alone
    assert set(found.values()) == {"openedge", other}


def test_a_table_of_nobody_next_to_a_vendors_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    assert whose(together(tmp_path, "qlik"), "qlik") == {"shop.item": "qlik", "shop.item__ct": "qlik"}


@pytest.mark.parametrize("name", ["1.parquet", "1.csv.gz"])
def test_a_damaged_file_of_a_table_is_named(tmp_path: Path, name: str) -> None:
    place = tmp_path / "shop.item__ct"
    place.mkdir()
    if name.endswith("parquet"):
        pq.write_table(pa.table({"header__change_seq": ["1" * 35], "id": [1]}), place / "2.parquet")
    (place / name).write_bytes(b"PAR1 \xff\xff\n PAR1")
    with pytest.raises(FormatError, match=r"cannot be read: ") as told:
        columns_at(str(tmp_path))
    assert told.value.where == str(place / name)


def test_declarations_are_read_whole() -> None:
    openedge, soliddb = formats.get("openedge"), formats.get("soliddb")
    assert openedge.declares(["_Policy-Id", "_Policy-Name", "_Level"])
    assert not openedge.declares(["_Policy-Id", "_Change-Sequence", "_Operation", "_Tran-Id"])
    assert soliddb.declares(["id", "table_name", "table_schema"])
    assert not soliddb.declares(["RECID", "TRXID", "LOGADDR", "DATA"])


def test_qlik_without_the_header_line_that_its_dfm_names_is_read_by_its_dfm(tmp_path: Path) -> None:
    file = tmp_path / "dbo.item" / "LOAD00000001.csv"
    file.parent.mkdir()
    file.write_text("1,a\n2,b\n")
    names = [{"ordinal": k, "name": n, "type": "STRING"} for k, n in enumerate(("id", "s"), 1)]
    made = {"fileInfo": {"name": "LOAD00000001", "extension": "csv"}, "dataInfo": {"columns": names}}
    file.with_suffix(".dfm").write_text(json.dumps(made))
    form = formats.get("qlik")
    assert form.columns is not None
    assert form.columns(str(tmp_path), form.options()) == {"dbo.item": ("id", "s")}
