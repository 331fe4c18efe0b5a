"""LOGADDR and change sequences: both ways, in order, for both lengths."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import FormatError
from tailrace.wire import soliddb_address as address

pytestmark = pytest.mark.unit
SEQ = st.one_of(st.integers(0, 10**35 - 1), st.integers(0, 1 << 97)).map(lambda n: f"{n:035d}")


@given(SEQ, SEQ, st.sampled_from([20, 28]))
def test_a_sequence_comes_back_and_keeps_its_order(a: str, b: str, length: int) -> None:
    ranks = address.RANKS
    assert address.sequence_of(address.make(a, ranks["U"], length)) == a
    assert (address.make(a, ranks["U"], length) < address.make(b, ranks["B"], length)) == (a < b)
    assert address.make(a, ranks["start"], length) < address.make(a, ranks["B"], length)
    assert len(address.make(a, 0, length)) == length


@given(st.binary(min_size=20, max_size=20), st.binary(min_size=20, max_size=20))
def test_addresses_order_as_their_sequences(a: bytes, b: bytes) -> None:
    a, b = sorted((bytes([a[0] & 0x7F]) + a[1:], bytes([b[0] & 0x7F]) + b[1:]))
    assert address.sequence_of(a) <= address.sequence_of(b)
    assert (a[:12] == b[:12]) == (address.sequence_of(a) == address.sequence_of(b))


@given(st.lists(SEQ, max_size=9), st.sampled_from([20, 28]))
def test_many_at_once(found: list[str], length: int) -> None:
    octets = b"".join(address.make(seq, address.RANKS["U"], length) for seq in found)
    made = np.frombuffer(octets, np.uint8).reshape(-1, length)
    assert address.sequences(made).to_pylist() == found
    ranks = np.full(len(found), address.RANKS["U"], np.uint8)
    assert address.addresses(pa.array(found, pa.string()), ranks, length).tobytes() == octets


def test_the_published_ones() -> None:
    old = bytes.fromhex("0000000000000001FFFFFFFF0000029500000295")
    new = bytes.fromhex("000000000000015FFFFFFFFF00000000000006DD00000000000006DD")
    assert address.sequence_of(old) == f"{0x1FFFFFFFF:035d}"
    assert address.sequence_of(new) == f"{0x15FFFFFFFFF:035d}"


@pytest.mark.parametrize(
    ("raw", "words"),
    [(b"\0" * 19, "19 bytes"), (b"\xff" * 20, "not fit into 35 digits"), (b"", "0 bytes")],
)
def test_what_does_not_fit(raw: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        address.sequence_of(raw)


@pytest.mark.parametrize("seq", ["1", "", "x" * 35, "٣" * 35])
def test_no_sequence(seq: str) -> None:
    with pytest.raises(FormatError, match="35 digits"):
        address.make(seq, 0)
    with pytest.raises(FormatError, match="35 digits"):
        address.addresses(pa.array(["0" * 35, seq]), np.zeros(2, np.uint8))


def test_ddl_bodies() -> None:
    for kind in address.DDL:
        assert address.ddl(address.ddl_body(kind, "A.B")) == (kind, "A.B")
    assert address.ddl(b"\0\0\0\x0f" + b"A") == (15, "A")  # a number nobody published
    for body, words in ((b"abc", "3 bytes"), (b"\0\0\0\x49\xff", "UTF-8")):
        with pytest.raises(FormatError, match=words):
            address.ddl(body)
