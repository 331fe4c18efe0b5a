"""Text files with anything in them: a table with its bad lines, or an error of ours that names the file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from tailrace.errors import ConfigError, FormatError
from tailrace.formats import text
from tailrace.formats.qlik import files
from tailrace.formats.qlik.options import QlikOptions

from ..examples import examples

pytestmark = pytest.mark.unit
fuzzed = examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
HEADS = b"header__change_seq,header__change_oper,id\n"
PARTS = [
    HEADS,
    b"a",
    b",",
    b";",
    b"\t",
    b'"',
    b"\n",
    b"\r\n",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\0",
    b"[" * 99,
    b"{}",
]
ANY = st.binary(max_size=60) | st.lists(st.sampled_from(PARTS), max_size=12).map(b"".join)


@fuzzed
@given(ANY, st.sampled_from(["utf-8", "latin-1", "utf-16", "cp1252"]), st.sampled_from(["", ";", "\\t"]))
@example(b"a,A\n", "utf-8", "")
@example(b"\xff\xfe", "utf-8", "")
@example(b'"\n', "utf-8", "")
def test_a_text_file(tmp_path: Path, data: bytes, encoding: str, delimiter: str) -> None:
    file = tmp_path / "any.csv"
    file.write_bytes(data)
    try:
        head = text.head(str(file), encoding=encoding, delimiter=delimiter)
        rows = [
            b.num_rows for b in text._ReadTask([str(file)], head.names, head.dialect, True)._read(str(file))
        ]
    except FormatError as error:
        assert error.where == str(file)
        assert error.hint
        return
    assert len({n.lower() for n in head.names}) == len(head.names)
    assert sum(rows) <= max(1, len(data))


@fuzzed
@given(ANY)
@example(b"\x1f\x8b")
@example(gzip.compress(HEADS)[:-4])
@example(gzip.compress(HEADS) * 2 + b"rest")
def test_a_packed_file(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "any.csv.gz"
    for packed in (data, gzip.compress(data), gzip.compress(data)[:-5]):
        file.write_bytes(packed)
        try:
            head = text.head(str(file))
            list(text._ReadTask([str(file)], head.names, head.dialect, True)._read(str(file)))
        except FormatError as error:
            assert error.where == str(file)


@fuzzed
@given(
    ANY, st.sampled_from(["20260101-120000001.csv", "LOAD00000001.json", "x.parquet", "x.csv.gz", "x.dfm"])
)
@example(b"[" * 100_000, "LOAD00000001.json")
@example(b"1\n", "LOAD00000001.json")
@example(b'[{"a": 1}]\n', "LOAD00000001.json")
def test_qliks_files(tmp_path: Path, data: bytes, name: str) -> None:
    folder = tmp_path / "dbo.item__ct"
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_bytes(data)
    try:
        files.refuse_nothing(files.listing(str(tmp_path), QlikOptions()), str(tmp_path))
    except (ConfigError, FormatError) as error:
        assert error.where or error.hint
    finally:
        file.unlink()


@examples(15)
@given(st.lists(st.text(max_size=20) | st.dictionaries(st.text(max_size=3), st.none()).map(json.dumps),
                max_size=5))  # fmt: skip
def test_names_of_json(lines: list[str]) -> None:
    assert all(isinstance(n, str) for n in text.json_names(lines))
