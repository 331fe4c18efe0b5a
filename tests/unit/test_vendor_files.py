"""Tables in files of any vendor, as far as no Spark is needed to read them: names, types, dialects, options."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.errors import FormatError
from tailrace.formats import files, tailrace
from tailrace.formats.base import Options
from tailrace.formats.tailrace import TailraceOptions

pytestmark = pytest.mark.unit

CT = ["header__change_seq", "header__change_oper"]


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "latin-1"])
def test_columns_of_json_come_as_they_were_written(tmp_path: Path, encoding: str, ending: str) -> None:
    lines = ["no JSON: é", "{}", json.dumps({"zoë": "é\u0085", "b": "é", "a": 1}, ensure_ascii=False)]
    data = "\n".join(lines).encode(encoding)
    file = tmp_path / f"t{ending}"
    file.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    assert files._in_order(["a", "b", "c", "zoë"], file, Options(encoding=encoding)) == ["zoë", "b", "a", "c"]


def test_the_first_file_with_a_line_of_json_has_the_order(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text("oops\n")
    (tmp_path / "2.json").write_text('{"b": 1, "a": 1}\n')
    assert files._in_order(["a", "b"], tmp_path, Options()) == ["b", "a"]


def test_columns_of_json_without_an_order_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{'b': 1, 'a': 1}\n")
    with pytest.raises(FormatError, match="no line says in which order its columns are") as wrong:
        files._in_order(["a", "b"], tmp_path, Options())
    assert "encoding" in str(wrong.value.hint)


def test_two_tables_of_one_name(tmp_path: Path) -> None:
    tables: Any = {n: SimpleNamespace(columns=[*CT, "id"]) for n in ("shop.item", "shop.item__ct")}
    with pytest.raises(FormatError, match=r"shop\.item and shop\.item__ct are both the table shop\.item"):
        tailrace.read(tables, TailraceOptions())
    with pytest.raises(FormatError, match=r"shop\.item and shop\.item__ct are both the table shop\.item"):
        tailrace.glance(tables, TailraceOptions(), "in")
