"""Delimited text: values as a model reads them, records that are none with their reason, any bytes at all."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.errors import FormatError
from tailrace.wire import delimited
from tailrace.wire.delimited import Dialect

pytestmark = pytest.mark.unit
PLAIN = Dialect()
Rows = list[tuple[str | None, ...]]


def read(
    data: bytes, width: int, dialect: Dialect = PLAIN, *, header: bool = False
) -> tuple[Rows, dict[int, str], dict[int, str]]:
    """Good rows, reasons of the others and their text, by number."""
    good: Rows = []
    why: dict[int, str] = {}
    raw: dict[int, str] = {}
    for block in delimited.read(io.BytesIO(data).read, dialect, width, header=header):
        rows = zip(*(c.to_pylist() for c in block.columns), strict=True)
        told = zip(block.rows.tolist(), block.why.to_pylist(), block.raw.to_pylist(), rows, strict=True)
        for number, words, text, values in told:
            if words is None:
                assert text is None
                good.append(values)
            else:
                why[number], raw[number] = words, text
    return good, why, raw


def test_nothing_and_the_empty_string() -> None:
    assert read(b'1,,\n2,"",""\n', 3)[0] == [("1", None, None), ("2", "", "")]


def test_quotes_and_lines_in_values() -> None:
    data = b'1,"a, ""b""\nc"\r\n2," ""x"""\r\n3,5" pipe\n'
    assert read(data, 2, Dialect(ends="\r\n")) == (
        [("1", 'a, "b"\nc'), ("2", ' "x"'), ("3", '5" pipe')],
        {},
        {},
    )


def test_a_quote_that_never_ends() -> None:
    good, why, raw = read(b'1,a\n2,"b\n3,c\n4,d\n', 2)
    assert good == [("1", "a"), ("3", "c"), ("4", "d")]
    assert (why, raw) == ({2: "a quote that is never closed"}, {2: '2,"b'})
    good, why, _ = read(b'1,"a\n2,b\n3,"c"\n', 2)
    assert (good, why) == ([("2", "b"), ("3", "c")], {1: "a quote that is never closed"})


def test_text_behind_a_quote() -> None:
    good, why, _ = read(b'1,"a"b\n2,"c" \n3,"d"\n', 2)
    assert good == [("3", "d")]
    assert why == {1: "text after a closing quote", 2: "text after a closing quote"}


def test_too_many_and_too_few_values() -> None:
    good, why, raw = read(b"id,name\n1,a\n2\n3,c,d\n\n4,e\n", 2, header=True)
    assert good == [("1", "a"), ("4", "e")]
    assert why == {2: "the line has 1 values, not 2", 3: "the line has 3 values, not 2"}
    assert raw == {2: "2", 3: "3,c,d"}


def test_bytes_that_are_no_text() -> None:
    data = "1,Müller\n2,b\n".encode("latin-1")
    good, why, raw = read(data, 2)
    assert (good, why, raw) == (
        [("2", "b")],
        {1: "byte 0xFC is not UTF-8: set the option encoding"},
        {1: "1,M\\xfcller"},
    )
    assert read(data, 2, Dialect(encoding="latin-1"))[0] == [("1", "Müller"), ("2", "b")]
    assert read("1,\ufffd\n".encode(), 2)[0] == [("1", "\ufffd")]
    good, why, _ = read(b"1,\x81\n2,\x80\n", 2, Dialect(encoding="cp1252"))
    assert (good, why) == ([("2", "€")], {1: "bytes that are not valid in the encoding"})


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32"])
def test_byte_order_marks(encoding: str) -> None:
    data = "id,n\n1,é\n".encode(encoding)
    assert read(data, 2, Dialect(encoding=encoding), header=True)[0] == [("1", "é")]
    assert delimited.names(io.BytesIO(data).read, Dialect(encoding=encoding)) == ["id", "n"]
    if encoding != "utf-8-sig":
        with pytest.raises(FormatError, match=f"the text is {encoding.upper()}, not utf-8"):
            read(data, 2)


def test_other_dialects() -> None:
    assert read(b"1;a,b\n", 2, Dialect(delimiter=";"))[0] == [("1", "a,b")]
    assert read(b"1||'a||b'|#2||c|#", 2, Dialect(delimiter="||", quote="'", ends="|#"))[0] == [
        ("1", "a||b"),
        ("2", "c"),
    ]
    assert read(b'1,"a\n', 2, Dialect(quote=None))[0] == [("1", '"a')]
    assert read(b'1,"a \\"b\\" \\\\"\n2,"\\n"\n', 2, Dialect(escape="\\"))[0] == [
        ("1", 'a "b" \\'),
        ("2", "\\n"),
    ]
    assert read("1¦þa¦bþ\n".encode(), 2, Dialect(delimiter="¦", quote="þ"))[0] == [("1", "a¦b")]
    with pytest.raises(FormatError, match="must differ"):
        read(b"1", 1, Dialect(delimiter='"'))
    with pytest.raises(FormatError, match="no encoding 'klingon'"):
        read(b"1", 1, Dialect(encoding="klingon"))


def test_nothing_at_all() -> None:
    assert read(b"", 2) == ([], {}, {})
    assert read(b"\n\r\n", 2, Dialect(ends="\r\n")) == ([], {}, {})
    assert delimited.names(io.BytesIO(b"").read, PLAIN) == []


def written(rows: Rows, dialect: Dialect, always: bool) -> bytes:
    """What a writer of the dialect makes of values."""
    quote, escape = dialect.quote or "", dialect.escape

    def value(text: str | None) -> str:
        if text is None:
            return ""
        special = {dialect.delimiter, quote, "\n", "\r", *dialect.ends}
        if not always and text and not any(s in text for s in special):
            return text
        inner = text if escape == quote else text.replace(escape, escape + escape)
        return quote + inner.replace(quote, escape + quote) + quote

    made = dialect.ends.join([*(dialect.delimiter.join(map(value, row)) for row in rows), ""])
    return made.encode(dialect.encoding)


DIALECTS = [
    PLAIN,
    Dialect(ends="\r\n"),
    Dialect(delimiter=";", quote="'", escape="'"),
    Dialect(escape="\\"),
    Dialect(delimiter="||", ends="#|\n"),
    Dialect(delimiter="\t", encoding="utf-16-le"),
]
ODD = st.text(alphabet="ab,;|#\t\"'\\\n\ré🚀\0\ufffd", max_size=6)


@given(
    st.lists(st.tuples(st.none() | ODD, st.none() | ODD, st.none() | ODD), max_size=6),
    st.sampled_from(DIALECTS),
    st.booleans(),
    st.integers(1, 40),
)
def test_what_was_written_is_read(rows: Rows, dialect: Dialect, always: bool, chunk: int) -> None:
    kept = [r for r in rows if r != (None,) * 3]  # a line of delimiters is a row, too
    whole = list(delimited._records(io.BytesIO(written(kept, dialect, always)).read, dialect, chunk))
    found: Rows = []
    for records in whole:
        block = records.block(3, 1)
        assert block.why.null_count == len(block.why)
        found += zip(*(c.to_pylist() for c in block.columns), strict=True)
    assert found == kept


def pasted() -> st.SearchStrategy[bytes]:
    parts = [b"a", b",", b'"', b'""', b"\n", b"\r\n", b"\\", b"\xff", b"\xfd", "é".encode(), b"\0", b"||"]
    return st.lists(st.sampled_from(parts), max_size=30).map(b"".join)


@given(pasted() | st.binary(max_size=60), st.sampled_from(DIALECTS), st.integers(1, 3), st.integers(1, 70))
@example(b"\xff\xfe", PLAIN, 1, 4)
@example(b'"', PLAIN, 1, 1)
@example(b"\xef\xbb\xbf", PLAIN, 1, 1)
def test_any_bytes(data: bytes, dialect: Dialect, width: int, chunk: int) -> None:
    """Each record is a row or has a reason; in pieces as as a whole."""

    def all_of(chunk: int) -> list[object]:
        found: list[object] = []
        for records in delimited._records(io.BytesIO(data).read, dialect, chunk):
            block = records.block(width, 1)
            assert len(block.rows) == len(block.why) == len(block.raw)
            rows = list(zip(*(c.to_pylist() for c in block.columns), strict=True))
            found += zip(rows, block.why.to_pylist(), strict=True)
        return found

    try:
        whole = all_of(1 << 20)
    except FormatError:
        return
    assert all_of(chunk) == whole


def seconds(data: bytes, dialect: Dialect = PLAIN) -> tuple[float, int]:
    began = time.process_time()
    good, why, _ = read(data, 2, dialect)
    return time.process_time() - began, len(good) + len(why)


@pytest.mark.parametrize(
    "parts",
    [
        (b'1,"a\n', b"1,a\n"),  # open to the end
        (b"", b'1,"a\n'),
        (b'"', b'"",\n'),
        (b"", b'1,"""\n'),
        (b"", b'""",\n'),
        (b"\xff", b"\xff,\xff\n"),
    ],
)
def test_time_grows_with_the_text(parts: Sequence[bytes]) -> None:
    """Four times as much takes a few times as long, not sixteen times: a bound far above what is usual."""
    small, large = (seconds(parts[0] + parts[1] * n)[0] for n in (4_000, 16_000))
    assert large < 10 * small + 1
