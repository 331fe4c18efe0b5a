"""Hostile bytes for what reads PostgreSQL's stream and COPY: an error of ours or all of it, never a part."""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.errors import FormatError, ValueRangeError
from tailrace.model.change import Column
from tailrace.sources.postgresql.records import RecordBuilder
from tailrace.wire import pgbinary, pgcopy, pgmessages, pgoutput
from tailrace.wire.pgvalues import convert

from ..examples import examples
from .messages import UNSENT, delete, insert, update

pytestmark = pytest.mark.unit

GOLDEN = [bytes.fromhex(m) for m in json.loads((Path(__file__).parent / "golden/pgoutput.json").read_text())]
RARE: dict[str, Callable[[bytes], Any]] = {
    "R": pgmessages.relation,
    "Y": pgmessages.type_,
    "T": pgmessages.truncate,
    "M": pgmessages.message,
    "O": pgmessages.origin,
}
VALUE = st.one_of(st.none(), st.just(UNSENT), st.text(max_size=6))


@st.composite
def mutated(draw: st.DrawFn, real: st.SearchStrategy[bytes]) -> bytes:
    """Real bytes with some of them overwritten, taken out, put in, or cut off at the end."""
    data = bytearray(draw(real))
    for _ in range(draw(st.integers(0, 3))):
        at, how = draw(st.integers(0, len(data))), draw(st.sampled_from("ocpe"))
        some = draw(st.binary(min_size=1, max_size=4) | st.sampled_from([b"\xff" * 4, bytes(4), b"\x7f"]))
        if how == "e":
            del data[at:]
        elif how == "c":
            del data[at : at + len(some)]
        else:
            data[at : at + (len(some) if how == "o" else 0)] = some
    return bytes(data)


@st.composite
def row(draw: st.DrawFn, columns: int = 2) -> bytes:
    """An I, U or D message of a table with two columns."""
    one = st.lists(VALUE, min_size=columns, max_size=columns)
    kind, old = draw(st.sampled_from("IUD")), draw(one)
    if kind == "I":
        return insert(7, draw(one))
    if kind == "D":
        return delete(7, old=old) if draw(st.booleans()) else delete(7, key=old)
    which = draw(st.sampled_from(["old", "key", ""]))
    return update(7, draw(one), **({which: old} if which else {}))


@given(mutated(st.sampled_from([m for m in GOLDEN if chr(m[0]) in RARE])) | st.binary(max_size=40))
@examples(25)
def test_rare_messages(data: bytes) -> None:
    for read in RARE.values():
        try:
            read(data)
        except FormatError as error:
            assert "pgoutput message" in error.what


def test_counts_that_promise_more_than_is_there_cost_nothing() -> None:
    many = b"R" + struct.pack(">I", 7) + b"s\0t\0d" + b"\xff\xff" + b"\0a\0" + struct.pack(">Ii", 23, -1)
    for data in (many, b"T\xff\xff\xff\xff\0\0\0\0\7", b"M\1" + bytes(8) + b"p\0\xff\xff\xff\xffx"):
        with pytest.raises(FormatError):
            RARE[chr(data[0])](data)
    with pytest.raises(FormatError):
        pgoutput.images(pa.array([b"I\0\0\0\7N\0\1t\x7f\xff\xff\xffx"], pa.binary()), 1)


def told(images: pgoutput.TupleImages, at: int) -> bytes:
    """A row message, written again from what was read."""

    def side(texts: list[pa.StringArray], state: Any) -> list[object]:
        return [UNSENT if s == ord("u") else t[at].as_py() for t, s in zip(texts, state[at], strict=True)]

    old, new = side(images.old_text, images.old_state), side(images.new_text, images.new_state)
    relid = 7
    which = {ord("O"): {"old": old}, ord("K"): {"key": old}, 0: {}}[int(images.old[at])]
    kind = chr(images.kind[at])
    return (
        insert(relid, new)
        if kind == "I"
        else delete(relid, **which)
        if kind == "D"
        else update(relid, new, **which)
    )


@given(st.lists(mutated(row()) | row(), min_size=1, max_size=4))
@examples(25)
def test_row_messages_are_read_whole_or_refused(messages: list[bytes]) -> None:
    try:
        images = pgoutput.images(pa.array(messages, pa.binary()), 2)
    except FormatError as error:
        assert "row" in (error.where or "")
        return
    again = [told(images, at) for at in range(len(messages))]
    assert [m[5:] for m in again] == [m[5:] for m in messages]


BEGIN = b"B" + struct.pack(">QqI", 5000, 0, 900)
COMMIT = b"C\0" + struct.pack(">QQq", 5000, 5100, 0)
SAID = b"M\1" + bytes(8) + b"p\0\0\0\0\1x"
APART = b"M\0" + struct.pack(">Q", 4000) + b"p\0\0\0\0\1x"
RELATION = b"R\0\0\0\7s\0t\0d\0\1\1id\0\0\0\0\x17\xff\xff\xff\xff"
TRUNCATE = b"T\0\0\0\2\0\0\0\0\7\0\0\0\x08"
FRAMES = st.lists(
    st.sampled_from([BEGIN, COMMIT, SAID, APART, RELATION, TRUNCATE, b"I\0\0\0\7N\0\0"]), max_size=8
)


def lawful(frames: list[bytes]) -> bool:
    """Whether what belongs to a transaction stands between a begin and its commit."""
    inside = False
    for frame in frames:
        if frame in (BEGIN, COMMIT):
            if inside == (frame == BEGIN):
                return False
            inside = frame == BEGIN
        elif frame not in (RELATION, APART) and not inside:
            return False
    return True


@given(FRAMES, st.integers(0, 8))
@examples(20)
def test_a_stream_of_records_is_whole_or_refused(frames: list[bytes], cut: int) -> None:
    payloads = [b"w" + bytes(24) + frame for frame in frames]
    builder = RecordBuilder()
    try:
        built = [builder.build(part) for part in (payloads[:cut], payloads[cut:]) if part]
    except FormatError:
        assert not lawful(frames)
        return
    assert lawful(frames)
    counted = sum({RELATION: 0, TRUNCATE: 2}.get(frame, 1) for frame in frames)
    assert sum(b.records.num_rows for b in built) == counted
    assert sum(len(b.relations) for b in built) == frames.count(RELATION)


@given(st.lists(mutated(st.sampled_from([BEGIN, COMMIT, SAID, TRUNCATE, insert(7, ["x"])])), max_size=4))
@examples(20)
def test_frames_that_are_cut_do_not_read_the_next(frames: list[bytes]) -> None:
    payloads = [(b"w" + bytes(24) + f) for f in (BEGIN, *frames, COMMIT)]
    try:
        built = RecordBuilder().build(payloads)
    except FormatError:
        return
    sizes = {"B": 21, "C": 26}
    for frame in frames:
        letter = chr(frame[0])
        assert len(frame) == sizes.get(letter, len(frame))
        assert letter not in "IUD" or len(frame) >= 6
    data = built.records["DATA"].to_pylist()
    assert [d for d in data if d[:1] in b"IUD"] == [f for f in frames if f[:1] in b"IUD"]


@given(st.lists(st.binary(max_size=30), max_size=3))
@examples(25)
def test_payloads_without_a_header_or_a_known_letter(payloads: list[bytes]) -> None:
    assume(payloads)
    with pytest.raises(FormatError):
        RecordBuilder().build([b"w" + p for p in payloads])


def csv(rows: list[list[str | None]]) -> list[bytes]:
    """Rows as COPY writes them, each value quoted."""
    cells = [["" if v is None else '"' + v.replace('"', '""') + '"' for v in r] for r in rows]
    return [(",".join(r) + "\n").encode() for r in cells]


ROWS = st.lists(st.lists(st.none() | st.text(max_size=5), min_size=2, max_size=2), min_size=1, max_size=4)


@given(ROWS, st.data())
@examples(20)
def test_copy_gives_every_row_or_refuses(rows: list[list[str | None]], draw: st.DataObject) -> None:
    sent = csv(rows)
    columns = pgcopy.tables(b"".join(sent), 2, rows=len(sent))
    assert [list(r) for r in zip(*(c.to_pylist() for c in columns), strict=True)] == rows
    broken = draw.draw(mutated(st.just(b"".join(sent))))
    try:
        columns = pgcopy.tables(broken, 2, rows=len(sent))
    except FormatError:
        return
    assert [len(c) for c in columns] == [len(sent)] * 2


KINDS = {
    "boolean": "bool", "smallint": "int2", "int": "int4", "bigint": "int8", "float": "float4", "double": "float8",
    "decimal(5,2)": "numeric", "decimal(38,10)": "float8", "string": "text", "binary": "bytea", "date": "date",
    "timestamp_ntz": "timestamp", "timestamp": "timestamptz",
}  # fmt: skip
TEXTS = (
    st.none() | st.text(max_size=12) | st.from_regex(r"[-+ ]?[0-9.eE:\\xTZ infatyNBC-]{0,30}", fullmatch=True)
)


@given(st.sampled_from(list(KINDS)), st.lists(TEXTS, max_size=5))
@examples(30)
def test_any_text_of_any_type_is_a_value_or_bad(kind: str, texts: list[str | None]) -> None:
    text = pa.array(texts, pa.string())
    values, bad = convert(kind, KINDS[kind], text)
    wrong = bad.to_pylist() if bad is not None else [False] * len(texts)
    values.validate(full=True)
    assert [v is None for v in values.to_pylist()] == [
        t is None or bool(w) for t, w in zip(texts, wrong, strict=True)
    ]
    if kind == "decimal(5,2)":
        assert all(
            Decimal(t) == v for t, v in zip(texts, values.to_pylist(), strict=True) if v is not None and t
        )


ARRAYS = st.sampled_from(
    [
        (pa.int8(), st.integers(-128, 127)),
        (pa.bool_(), st.booleans()),
        (pa.string(), st.text(max_size=4)),
        (pa.binary(), st.binary(max_size=4)),
        (pa.decimal128(38, 5), st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-5"))),
        (pa.date32(), st.dates()),
        (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.timezone.utc))),
    ]
)


@given(
    ARRAYS.flatmap(lambda t: st.tuples(st.just(t[0]), st.lists(st.none() | t[1], max_size=5))),
    st.integers(0, 2),
)
@examples(20)
def test_binary_copy_has_every_row(given: tuple[pa.DataType, list[Any]], skip: int) -> None:
    kind, values = given
    batch = pa.record_batch({"v": pa.array(values, kind), "n": pa.array(range(len(values)), pa.int32())})[
        skip:
    ]
    try:
        sent = b"".join(pgbinary.rows(batch))
    except ValueRangeError:
        assert any(isinstance(v, str) and "\0" in v for v in values[skip:])
        return
    at, found = 0, []
    while at < len(sent):
        (fields, size) = struct.unpack_from(">hi", sent, at)
        assert fields == 2
        at += 6 + max(size, 0)
        found.append((size < 0, *struct.unpack_from(">ii", sent, at)))
        at += 8
    assert found == [(v is None, 4, n) for n, v in enumerate(values)][skip:]


ONE = (Column("id", 1, "integer", "int4", "int"),)


def test_rows_that_copy_sent_and_the_reader_did_not_see() -> None:
    assert pgcopy.batch(ONE, b"1\n2\n", rows=2)[0].num_rows == 2
    with pytest.raises(FormatError, match="2 rows were sent, but 1 were read"):
        pgcopy.batch((Column("v", 1, "text", "text", "string"),), b'"1\n2"\n', rows=2)
