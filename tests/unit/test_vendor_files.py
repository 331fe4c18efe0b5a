"""Tables in files of any vendor, as far as no Spark is needed to read them: names, types, dialects, options."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.errors import FormatError
from tailrace.formats import file_reader, parquet, tailrace
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
    assert file_reader._written_order(["a", "b", "c", "zoë"], file, Options(encoding=encoding)) == [
        "zoë",
        "b",
        "a",
        "c",
    ]


def test_the_first_file_with_a_line_of_json_has_the_order(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text("oops\n")
    (tmp_path / "2.json").write_text('{"b": 1, "a": 1}\n')
    assert file_reader._written_order(["a", "b"], tmp_path, Options()) == ["b", "a"]


def test_columns_of_json_without_an_order_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{'b': 1, 'a': 1}\n")
    with pytest.raises(
        FormatError, match="the order of columns is unknown, because no line is a JSON object"
    ) as wrong:
        file_reader._written_order(["a", "b"], tmp_path, Options())
    assert "encoding" in str(wrong.value.hint)


def test_two_tables_of_one_name(tmp_path: Path) -> None:
    tables: Any = {n: SimpleNamespace(columns=[*CT, "id"]) for n in ("shop.item", "shop.item__ct")}
    with pytest.raises(FormatError, match=r"shop\.item and shop\.item__ct are both the table shop\.item"):
        tailrace.read(tables, TailraceOptions())


def parquet_files(folder: Path, *columns: dict[str, pa.Array]) -> list[Path]:
    made = [folder / f"{i}.parquet" for i in range(len(columns))]
    for file, one in zip(made, columns, strict=True):
        pq.write_table(pa.table(one), file)
    return made


def times(unit: str, tz: str | None = None) -> pa.Array:
    return pa.array([0], pa.timestamp(unit, tz))


def test_a_column_has_one_type_beside_nanoseconds_too(tmp_path: Path) -> None:
    found = parquet_files(
        tmp_path,
        {"at": times("ns"), "n": pa.array([2**53 + 1], pa.int64())},
        {"at": times("us"), "n": pa.array([1.5], pa.float64())},
    )
    with pytest.raises(FormatError, match=r"n is of the type double, in 0\.parquet int64"):
        parquet.read(None, found)  # type: ignore[arg-type]


def test_types_that_are_one_to_spark(tmp_path: Path) -> None:
    found = parquet_files(
        tmp_path,
        {"at": times("ns", "UTC"), "n": pa.array([1], pa.uint32()), "l": pa.array([[1]]), "d": times("ms")},
        {"at": times("us", "Europe/Berlin"), "n": pa.array([1]), "d": times("us"),
         "l": pa.array([[1]], pa.large_list(pa.field("item", pa.int64(), nullable=False)))},
    )  # fmt: skip
    parquet._refuse_two_kinds(kinds_of(found))


def kinds_of(files: list[Path]) -> dict[Path, list[tuple[str, str]]]:
    """The names and types of the columns in files."""
    schemas = {f: pq.read_schema(f) for f in files}
    return {f: list(zip(s.names, map(str, s.types), strict=True)) for f, s in schemas.items()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.decimal64(10, 2), pa.decimal128(30, 2)),
        (pa.decimal32(5, 2), pa.decimal256(38, 2)),
        (pa.uint64(), pa.decimal128(38, 0)),
        (pa.list_(pa.decimal128(10, 2)), pa.list_(pa.decimal128(12, 2))),
    ],
)
def test_types_that_spark_takes_together_exactly(
    tmp_path: Path, one: pa.DataType, other: pa.DataType
) -> None:
    found = parquet_files(tmp_path, {"v": pa.nulls(1, one)}, {"v": pa.nulls(1, other)})
    parquet._refuse_two_kinds(kinds_of(found))


def test_decimals_of_two_scales_are_two_types(tmp_path: Path) -> None:
    one, other = pa.nulls(1, pa.decimal128(10, 2)), pa.nulls(1, pa.decimal128(12, 4))
    found = parquet_files(tmp_path, {"v": one}, {"v": other})
    why = r"v is of the type decimal128\(12, 4\), in 0\.parquet decimal128\(10, 2\)"
    with pytest.raises(FormatError, match=why):
        parquet._refuse_two_kinds(kinds_of(found))


def test_files_of_several_dialects(tmp_path: Path) -> None:
    for name, text in (
        ("a", "id,name\n1,x\n"),
        ("b", "id,name\r\n2,y\r\n"),
        ("c", "id;name\n3,z\n"),
        ("d", ""),
    ):
        (tmp_path / f"{name}.csv").write_bytes(text.encode())
    names, found = file_reader._by_dialect(tmp_path, Options())
    assert names == ("id", "name")
    assert [(d.ends, d.delimiter, [Path(f).name for f in fs]) for d, fs in found.items()] == [
        ("\n", ",", ["a.csv"]),
        ("\r\n", ",", ["b.csv"]),
        ("\n", ";", ["c.csv"]),
    ]


def test_columns_of_text_are_read_as_the_options_say(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("id~näme\n1~x\n".encode("latin-1"))
    options = Options(encoding="latin-1", delimiter="~")
    assert file_reader.columns_at(str(tmp_path / "t.csv"), options) == {"t": ("id", "näme")}


def test_whether_a_table_is_wanted_is_seen_as_its_options_say(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("id~name\n".encode("utf-16-le"))
    options = Options(encoding="utf-16-le", delimiter="~")
    assert file_reader._is_wanted(tmp_path / "t.csv", lambda names: float(names == ("id", "name")), options)
