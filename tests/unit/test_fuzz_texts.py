"""Whatever stands in a file that others wrote: it is read, or refused with an error of ours, in bounded time."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.config.task import Task, load, read
from tailrace.config.yaml_lines import Mistake
from tailrace.errors import ConfigError, FormatError
from tailrace.formats.qlik import dfm
from tailrace.wire import cd_dump, keylog_text, soliddb, soliddb_address, soliddb_rows
from tailrace.wire.keylog_values import KeyLogField

from ..examples import examples

pytestmark = pytest.mark.unit
fuzzed = settings(examples(15), deadline=5000)

TASK = """\
name: shop
source: {url: "postgresql://me@db/shop", tables: [public.a, "public.b*"]}
target: {path: lake}
baseline: {workers: 2, window: auto}
tables:
  public.a: {key: [id], on: {insert: error}, where: "x > 1", mode: upsert}
policies:
  - {tables: [public.*], level: 2}
groups: {g: {tables: [public.a]}}
maintenance: {every: 5m, small_files: 8}
"""
DFM = dfm.Dfm("f", (dfm.column(1, "id", "INT4", key=1), dfm.column(2, "n", "STRING"))).to_json()
KEYS = 'ID="7" N="a&amp;b" A=&xsi:nil="true"'


@st.composite
def cut_and_pasted(draw: st.DrawFn, text: str) -> str:
    """A valid text of which pieces are left out, doubled, or replaced."""
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 12)))
        new = draw(
            st.text(max_size=6)
            | st.sampled_from(
                ["&a ", "*a", "[", "{", "}", "]", '"', "<<: *a", "!!python/object:os", "1e999", ": "]
            )
            | st.just(text[begin:end] * 2)
        )
        text = text[:begin] + new + text[end:]
    return text


def task_of(text: str) -> None:
    found = read(text, folder=Path("/nowhere"))
    assert isinstance(found, Task) or (found and all(isinstance(one, Mistake) for one in found))


@fuzzed
@given(st.text(max_size=200) | cut_and_pasted(TASK))
@example("&a [*a]")
@example("name: &a {b: *a}")
@example("[" * 3000)
@example("{a: " * 2000)
@example("name: 2001-99-99")
@example("name: " + "9" * 5000)
@example("a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefghi", "bcdefghij", strict=True)))  # fmt: skip
@example("\x00")
@example("? [a]\n: 1")
@example("name: !!binary a")
@example("name: 1_:9")
def test_a_task_file(text: str) -> None:
    task_of(text)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"name: \xe4", b"\x00\x01"])
def test_a_task_file_that_is_no_text(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "t.yaml"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=r"t\.yaml"):
        load(file)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@st.composite
def dfm_like(draw: st.DrawFn) -> str:
    """A DFM some of whose values are others."""
    whole = json.loads(DFM)
    for _ in range(draw(st.integers(1, 3))):
        at = whole
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(at[key], (dict, list)) and draw(st.booleans()):
                at = at[key]
                continue
            at[key] = draw(JSON)
            break
    return json.dumps(whole)


@fuzzed
@given(st.text(max_size=100) | cut_and_pasted(DFM) | dfm_like())
@example("[" * 100_000)
@example('{"dataInfo": {"columns": [{"name": "a", "length": 1e999}]}}')
@example('{"dataInfo": {"columns": [{"name": "a", "length": ' + "9" * 5000 + "}]}}")
@example('{"fileInfo": [], "dataInfo": {"columns": {}}}')
@example('{"fileInfo": {"name": 7, "extension": []}, "dataInfo": {"columns": []}}')
def test_a_dfm(text: str) -> None:
    try:
        found = dfm.parse(text, where="x.dfm")
    except FormatError as error:
        assert error.where == "x.dfm"
        return
    assert isinstance(found.name, str) and isinstance(found.extension, str) and isinstance(found.table, str)
    assert all(isinstance(c.spark(), str) for c in found.columns)


ROWS = b'"Table" "p" "d" 0 "t" "o" "f" yes no ? 1 2 3 4 ? ? ? ? ? ? ? ? 1\n"Field" "p" "n" 1\n'
TRAILER = b".\nPSC\nfilename=CDC\nrecords=00002\nldbname=db\ntimestamp=2026/01/01-00:00:00\nnumformat=44,46\ndateformat=mdy-1950\nmap=NO-MAP\ncpstream=%s\n.\n"


def cd_file(rows: bytes, codepage: bytes = b"UTF-8") -> bytes:
    return rows + TRAILER % codepage + b"%010d\n" % (len(rows) + 2)


@st.composite
def cd_like(draw: st.DrawFn) -> bytes:
    rows = (
        draw(st.binary(max_size=60)) if draw(st.booleans()) else draw(cut_and_pasted(ROWS.decode())).encode()
    )
    page = draw(
        st.sampled_from(
            [
                b"UTF-8",
                b"1252",
                b"ISO8859-1",
                b"rot13",
                b"hex",
                b"no-such",
                b"",
                b"\xff",
                b"undefined",
                b"utf-16",
            ]
        )
    )
    data = cd_file(rows, page)
    at = draw(st.integers(0, len(data)))
    return draw(st.sampled_from([data, data[:at], data[:at] + draw(st.binary(max_size=5)) + data[at:]]))


@fuzzed
@given(st.binary(max_size=100) | cd_like())
@example(cd_file(b"\xff\xff\n"))
@example(cd_file(b'"Table"\n', b"hex"))
@example(cd_file(b"", b"rot13").replace(b"records=00002", b"records=x"))
@example(cd_file(b"9" * 5000))
@example(cd_file(b'"' * 100_000))
@example(cd_file(b"a\x00" * 10))
def test_a_cd_file(data: bytes) -> None:
    try:
        assert isinstance(cd_dump.read(data, where="x.cd"), cd_dump.Dump)
    except FormatError as error:
        assert error.where is not None and error.where.startswith("x.cd")


FIELDS = [
    KeyLogField("ID", "int"),
    KeyLogField("N"),
    KeyLogField("A", "decimal(9,2)"),
    KeyLogField("T", "timestamp"),
    KeyLogField("B", "binary"),
]


@fuzzed
@given(st.lists(st.none() | st.text(max_size=40) | cut_and_pasted(KEYS), max_size=6), st.booleans())
@example(['ID="' + "9" * 10_000 + '"'], False)
@example(['A="1e999999999"'], False)
@example(['T="99999-99-99 99:99:99"', 'B="0x1"'], False)
@example(["&" * 10_000, '"' * 9_999], True)
def test_key_log_text(rows: list[str | None], row: bool) -> None:
    text = pa.array([None if r is None else r.encode("utf-8", "replace").decode() for r in rows], pa.string())
    found = keylog_text.parse(text, FIELDS, row=row)
    assert [len(v) for v in found.values] == [len(rows)] * len(FIELDS) and len(found.why) == len(rows)
    assert isinstance(keylog_text.names(text, row=row), list)


SOLID = [
    soliddb.RowField("id", "INTEGER", "int"), soliddb.RowField("d", "DFLOAT", "decimal(9,2)"),
    soliddb.RowField("t", "DATE", "timestamp_ntz"), soliddb.RowField("w", "UNICODE", "string"),
    soliddb.RowField("c", "CHAR", "string"), soliddb.RowField("x", "DOUBLE", "double"),
    soliddb.RowField("b", "BINARY", "binary"), soliddb.RowField("l", "BIGINT", "bigint"),
]  # fmt: skip


@fuzzed
@given(
    st.lists(
        st.none()
        | st.binary(max_size=80)
        | st.lists(st.binary(max_size=9), max_size=8).map(
            lambda parts: b"".join(bytes([len(p)]) + p for p in parts)
        ),
        max_size=5,
    ),
    st.sampled_from(sorted(soliddb_rows.LAYOUTS)),
)
@example([b"\xff" * 9], "A")
def test_rows_of_sys_log(rows: list[bytes | None], layout: str) -> None:
    data = pa.array(rows, pa.binary())
    try:
        found = soliddb.decode(data, SOLID, soliddb.Style(layout=layout))
    except FormatError:
        return
    assert [len(c) for c in found.columns] == [len(rows)] * len(SOLID) == [len(found.why)] * len(SOLID)
    assert isinstance(found.exact.to_pylist(), list)


@fuzzed
@given(st.binary(max_size=40))
def test_addresses_and_bodies_of_sys_log(data: bytes) -> None:
    for reads in (soliddb_address.sequence_of, soliddb_address.ddl):
        with suppress(FormatError):
            reads(data)
