"""pgoutput messages: columnar decoding against a plain-Python encoder, hostile bytes, a real server's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import FormatError
from tailrace.wire import pgoutput
from tailrace.wire.pgmessages import RelationColumn, RelationMessage

pytestmark = pytest.mark.unit

GOLDEN = [bytes.fromhex(m) for m in json.loads((Path(__file__).parent / "golden/pgoutput.json").read_text())]

UNCHANGED = object()
Tuple = list[Any]
"""Values of a tuple: text, None (NULL), UNCHANGED."""


def encode_tuple(values: Tuple) -> bytes:
    out = len(values).to_bytes(2, "big")
    for value in values:
        if value is None:
            out += b"n"
        elif value is UNCHANGED:
            out += b"u"
        else:
            raw = value.encode()
            out += b"t" + len(raw).to_bytes(4, "big") + raw
    return out


def encode(kind: str, relid: int, old: tuple[str, Tuple] | None, new: Tuple | None) -> bytes:
    out = kind.encode() + relid.to_bytes(4, "big")
    if old:
        out += old[0].encode() + encode_tuple(old[1])
    if new is not None:
        out += b"N" + encode_tuple(new)
    return out


def decoded(images: pgoutput.TupleImages, row: int) -> tuple[str, tuple[str, Tuple] | None, Tuple | None]:
    def values(texts: list[pa.StringArray], state: np.ndarray) -> Tuple:
        out: Tuple = []
        for text, letter in zip(texts, state[row].tolist(), strict=True):
            value = text[row].as_py()
            assert (value is not None) == (letter == ord("t"))
            out.append(UNCHANGED if letter == ord("u") else value)
        return out

    kind = chr(images.kind[row])
    old = (chr(images.old[row]), values(images.old_text, images.old_state)) if images.old[row] else None
    if not old:
        assert not images.old_state[row].any()
    if kind == "D":
        assert not images.new_state[row].any()
    return kind, old, None if kind == "D" else values(images.new_text, images.new_state)


def messages_of(ncolumns: int) -> st.SearchStrategy[list[tuple[str, tuple[str, Tuple] | None, Tuple | None]]]:
    value = st.one_of(st.none(), st.just(UNCHANGED), st.text("aZ0né漢😀\n", max_size=9))
    values = st.lists(value, min_size=ncolumns, max_size=ncolumns)
    old = st.tuples(st.sampled_from("KO"), values)
    return st.lists(
        st.one_of(
            st.tuples(st.just("I"), st.none(), values),
            st.tuples(st.just("U"), st.none() | old, values),
            st.tuples(st.just("D"), old, st.none()),
        ),
        max_size=12,
    )


@given(st.integers(0, 5).flatmap(lambda n: st.tuples(st.just(n), messages_of(n))), st.integers(0, 3))
def test_images_give_back_what_was_encoded(case: tuple[int, Any], skip: int) -> None:
    ncolumns, messages = case
    data = pa.array([encode(kind, 77, old, new) for kind, old, new in messages], pa.binary()).slice(skip)
    images = pgoutput.images(data, ncolumns)
    assert [decoded(images, row) for row in range(len(data))] == messages[skip:]
    for text in images.new_text + images.old_text:
        text.validate(full=True)
        assert len(text) == len(data)
    buf, starts, ends = pgoutput.flat(data)
    kinds, relids = pgoutput.heads(buf, starts, ends)
    assert kinds.tolist() == [ord(m[0]) for m in messages[skip:]]
    assert relids.tolist() == [77] * len(data)


WHOLE = [
    encode("U", 1, ("O", ["a", None, UNCHANGED]), ["bb", "", None]),
    encode("I", 1, None, ["a", None, "ccc"]),
    encode("D", 1, ("K", ["a", None, None]), None),
]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_every_cut_and_every_extra_byte_is_refused(victim: int) -> None:
    # The neighbours are whole: reading past the end would land in bytes that look right.
    whole = WHOLE[victim]
    for broken in [whole[:n] for n in range(len(whole))] + [whole + b"n", whole + b"\0"]:
        messages = [WHOLE[1], broken, WHOLE[0]]
        with pytest.raises(FormatError) as caught:
            pgoutput.images(pa.array(messages, pa.binary()), 3)
        assert "row 1" in str(caught.value)


@given(st.sampled_from(WHOLE), st.integers(0, 40), st.integers(0, 255))
def test_a_changed_byte_gives_an_error_or_a_sound_result(whole: bytes, at: int, byte: int) -> None:
    broken = bytearray(whole)
    broken[at % len(whole)] = byte
    data = pa.array([WHOLE[1], bytes(broken), WHOLE[2]], pa.binary())
    try:
        images = pgoutput.images(data, 3)
    except FormatError:
        return
    for text in images.new_text + images.old_text:
        text.validate(full=True)


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(0, 3))
def test_noise_is_refused(noise: list[bytes], ncolumns: int) -> None:
    data = pa.array(noise, pa.binary())
    if noise:
        with pytest.raises(FormatError):
            pgoutput.images(data, ncolumns)


@pytest.mark.parametrize(
    ("message", "ncolumns", "says"),
    [
        (b"B" + bytes(20), 1, "not a row message"),
        (b"I\0\0\0\1K\0\1n", 1, "wrong kind"),
        (b"D\0\0\0\1N\0\1n", 1, "wrong kind"),
        (b"I\0\0\0\1X\0\1n", 1, "unknown tuple letter"),
        (b"I\0\0\0\1N\0\2nn", 1, "a tuple that does not have 1 columns"),
        (b"I\0\0\0\1N\0\1x", 1, "unknown value letter in column 0"),
        (b"I\0\0\0\1N\0\1b\0\0\0\1\1", 1, "start replication without the option binary"),
        (b"I\0\0\0\1N\0\1t\xff\xff\xff\xff", 1, "column 0 is longer than its message"),
        (b"I\0\0\0\1N\0\1t\x7f\xff\xff\xff", 1, "column 0 is longer than its message"),
        (b"I\0\0\0\1N\0\1t\0\0\0\1\xff", 1, "column 0 is not UTF-8"),
        (b"U\0\0\0\1K\0\1n", 1, "it ends before its new tuple"),
        (b"U\0\0\0\1K\0\1nK\0\1n", 1, "no new tuple after the old one"),
        (b"I\0\0\0\1N\0\1nn", 1, "bytes left over"),
    ],
)
def test_errors_name_the_row_and_what_is_wrong(message: bytes, ncolumns: int, says: str) -> None:
    good = encode("I", 1, None, ["x"] * ncolumns)
    with pytest.raises(FormatError) as caught:
        pgoutput.images(pa.array([good, good, message, good], pa.binary()), ncolumns)
    assert says in str(caught.value)
    assert "row 2" in str(caught.value)


def test_what_is_not_a_plain_binary_array_is_refused() -> None:
    with pytest.raises(FormatError, match="NULL"):
        pgoutput.images(pa.array([None], pa.binary()), 1)
    with pytest.raises(FormatError, match="large_binary"):
        pgoutput.images(pa.array([b"I"], pa.large_binary()), 1)


def test_no_messages_and_no_columns() -> None:
    images = pgoutput.images(pa.array([], pa.binary()), 2)
    assert (len(images.kind), images.new_state.shape, len(images.new_text)) == (0, (0, 2), 2)
    images = pgoutput.images(pa.array([b"I\0\0\0\1N\0\0"], pa.binary()), 0)
    assert (images.kind.tolist(), images.new_text) == ([ord("I")], [])


def test_headers_of_cut_messages_are_refused() -> None:
    for read, message in [
        (pgoutput.heads, b"I\0\0"),
        (pgoutput.begins, b"B" + bytes(19)),
        (pgoutput.commits, b"C" + bytes(24)),
        (pgoutput.commits, b"B" + bytes(25)),
    ]:
        buf, starts, ends = pgoutput.flat(pa.array([message], pa.binary()))
        with pytest.raises(FormatError):
            read(buf, starts, ends)


def test_begin_and_commit() -> None:
    begin = (
        b"B" + (5 << 32).to_bytes(8, "big") + (1_000_000).to_bytes(8, "big") + (2**32 - 1).to_bytes(4, "big")
    )
    long = [(7).to_bytes(8, "big"), (9).to_bytes(8, "big"), (-1_000_000).to_bytes(8, "big", signed=True)]
    data = pa.array([begin, b"C\0" + b"".join(long)], pa.binary())
    buf, starts, ends = pgoutput.flat(data)
    assert [x.tolist() for x in pgoutput.begins(buf, starts[:1], ends[:1])] == [
        [5 << 32],
        [946684801000000],
        [2**32 - 1],
    ]
    assert [x.tolist() for x in pgoutput.commits(buf, starts[1:], ends[1:])] == [[7], [9], [946684799000000]]


# --- messages of a real server (golden/capture.py) ---


def golden(letter: bytes) -> list[bytes]:
    return [m for m in GOLDEN if m[:1] == letter]


def relations() -> dict[str, list[RelationMessage]]:
    found: dict[str, list[RelationMessage]] = {}
    for raw in golden(b"R"):
        found.setdefault((one := pgoutput.relation(raw)).name, []).append(one)
    return found


def rows(table: str) -> list[Any]:
    """All row messages of a table while its first layout was in force."""
    layout = relations()[table][0]
    head = layout.relid.to_bytes(4, "big")
    raw = [m for m in GOLDEN if m[:1] in (b"I", b"U", b"D") and m[1:5] == head]
    images = pgoutput.images(pa.array(raw, pa.binary()), len(layout.columns))
    return [decoded(images, row) for row in range(len(raw))]


def test_golden_order_of_messages() -> None:
    letters = b"".join(m[:1] for m in GOLDEN).decode()
    assert letters == "BYRIIUUDC" + "BRIUUDC" + "BRIIUDC" + "BRIMRYRTC" + "BRIC"


def test_golden_relations() -> None:
    found = relations()
    plain = found["plain"][0]
    assert (plain.schema, plain.identity) == ("shop", "d")
    mood = pgoutput.type_(golden(b"Y")[0])
    assert (mood.schema, mood.name) == ("shop", "mood")
    assert plain.columns == (
        RelationColumn(1, "id", 23, -1),
        RelationColumn(0, "name", 25, -1),
        RelationColumn(0, "feel", mood.oid, -1),
        RelationColumn(0, "price", 1700, (8 << 16 | 2) + 4),
        RelationColumn(0, "big", 25, -1),
    )
    keys = {name: (one[0].identity, [c.flags for c in one[0].columns]) for name, one in found.items()}
    assert keys == {
        "plain": ("d", [1, 0, 0, 0, 0]),
        "indexed": ("i", [0, 1, 0]),
        "whole": ("f", [1, 1, 1]),
        "log": ("n", [0, 0]),
    }
    assert [c.name for c in found["log"][-1].columns] == ["id", "w"]


def test_golden_rows_of_a_primary_key_table() -> None:
    assert rows("plain") == [
        ("I", None, ["1", "one", "calm", "1.50", "x" * 3000]),
        ("I", None, ["2", None, None, "-20.00", ""]),
        ("U", None, ["1", "uno", "calm", "1.50", UNCHANGED]),
        ("U", ("K", ["2", None, None, None, None]), ["3", None, None, "-20.00", ""]),
        ("D", ("K", ["3", None, None, None, None]), None),
    ]


def test_golden_rows_of_an_index_identity() -> None:
    assert rows("indexed") == [
        ("I", None, ["1", "a", "10"]),
        ("U", None, ["1", "a", "11"]),
        ("U", ("K", [None, "a", None]), ["1", "b", "11"]),
        ("D", ("K", [None, "b", None]), None),
    ]


def test_golden_rows_of_a_full_identity() -> None:
    assert rows("whole") == [
        ("I", None, ["1", "é", "y" * 3000]),
        ("I", None, ["2", None, None]),
        ("U", ("O", ["1", "é", "y" * 3000]), ["1", "ü", UNCHANGED]),
        ("D", ("O", ["2", None, None]), None),
    ]


def test_golden_rare_messages() -> None:
    found = relations()
    (cut,) = golden(b"T")
    truncated = pgoutput.truncate(cut)
    assert (truncated.relids, truncated.options) == ((found["log"][0].relid, found["plain"][0].relid), 3)
    (sent,) = golden(b"M")
    said = pgoutput.message(sent)
    assert (said.transactional, said.prefix, said.content) == (True, "tailrace", b"hello")
    assert pgoutput.origin(b"O" + (77).to_bytes(8, "big") + b"berlin\0").name == "berlin"


def test_golden_transactions() -> None:
    buf, starts, ends = pgoutput.flat(pa.array(golden(b"B"), pa.binary()))
    final, began, xids = pgoutput.begins(buf, starts, ends)
    buf, starts, ends = pgoutput.flat(pa.array(golden(b"C"), pa.binary()))
    commit, end, ended = pgoutput.commits(buf, starts, ends)
    assert final.tolist() == commit.tolist()
    assert began.tolist() == ended.tolist()
    assert (end > commit).all()
    assert (end[:-1] <= commit[1:]).all()
    assert np.diff(xids).tolist() == [1, 1, 1, 1]
    assert (began.astype("datetime64[us]") > np.datetime64("2026-01-01")).all()


@pytest.mark.parametrize(
    ("letter", "read"),
    [
        (b"R", pgoutput.relation),
        (b"Y", pgoutput.type_),
        (b"T", pgoutput.truncate),
        (b"M", pgoutput.message),
    ],
)
def test_golden_rare_messages_cut_or_extended_are_refused(letter: bytes, read: Any) -> None:
    whole = golden(letter)[0]
    for broken in [whole[:n] for n in range(len(whole))] + [whole + b"\0"]:
        with pytest.raises(FormatError):
            read(broken)


def test_a_table_of_the_catalog() -> None:
    assert pgoutput.relation(b"R\0\0\0\1\0pg_class\0d\0\0") == RelationMessage(
        1, "pg_catalog", "pg_class", "d", ()
    )
