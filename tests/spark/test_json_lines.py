"""JSON lines in encodings: numbers digit for digit, in Qlik's files and in those of any format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tailrace.errors import ConfigError
from tailrace.formats import file_reader, json_lines
from tailrace.formats.tailrace import FORMAT

from .test_text_files import seq

pytestmark = pytest.mark.spark
LINES = [
    *(f'{{"a":"é","n":{n}}}' for n in ("1.239", "1.2390000000000000000000000001", "-0.10", "1e400", "1E+2", "0", "1.5e-3")),
    '{"a":1,"n":12345678901234567890.00000000005E0}', '{"n" : 9007199254740993 , "a" : 0.30 }\r', ' {"a":-1.0,"n":null}',
    r'{"a":"say \"n\":1.239, \\","n":1.239000000000000000000001}', r'{"a":"1,2:{3}[4]","n":-7.00}', '{"a":true,"n":"1.50"}',
    r'{"a":"' + r"\" 1.10 " * 20000 + r'","n":1.10}', '{"a":"' + "x-1" * 50000 + '","n":2.10}',
]  # fmt: skip
ODD = [
    '{"a":{"n":1,"o":["x]",{}]},"n":1.10}',
    '{"a":[1,"2",{"b":3}],"n":2.10}',
    '{"a":01,"n":1}',
    '{"a":1x}',
    "{no json 1.10",
]
ENCODINGS = ["utf-8", "latin-1", "utf-16-le"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_numbers_are_read_digit_for_digit(spark: SparkSession, tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes("\n".join([*LINES, "", " ", *ODD]).encode(encoding))
    columns = StructType().add("a", "string").add("n", "string").add("bad", "string")
    df = json_lines.read(spark, [str(path)], columns, line="bad", encoding=encoding, where="x.json")
    rows = [(r["a"], r["n"], r["bad"] and r["bad"].strip()) for r in df.collect()]
    plain = [json.loads(t, parse_float=str, parse_int=str) for t in LINES]
    assert rows[: len(LINES)] == [("true" if r["a"] is True else r["a"], r["n"], None) for r in plain]
    nested = [(ODD[0][5:-10], "1.10", None), (ODD[1][5:-10], "2.10", None)]
    assert rows[len(LINES) :] == [*nested, *((None, None, line) for line in ODD[2:])]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_format_reads_numbers_as_they_are(spark: SparkSession, tmp_path: Path, encoding: str) -> None:
    line = f'{{"header__change_seq":"{seq(1)}","header__change_oper":"I","name":"é","n":1.2390000000000000000000001}}\n'
    (tmp_path / "shop.item__ct.json").write_bytes(line.encode(encoding))
    (df,) = file_reader.load(spark, str(tmp_path), FORMAT.options(encoding=encoding)).values()
    assert [(r["name"], r["n"]) for r in df.collect()] == [("é", "1.2390000000000000000000001")]


def test_an_encoding_that_spark_does_not_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="JSON in the encoding cp1252 cannot be read") as told:
        json_lines.charset("cp1252", "x.json")
    assert "convert the files to UTF-8" in str(told.value)
