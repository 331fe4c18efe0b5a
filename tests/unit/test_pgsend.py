"""Texts that go into columns of other types by binary COPY."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.wire.pgsend import SENT

pytestmark = pytest.mark.unit
TEXT = "00112233-4455-6677-8899-aabbccddeeff"


def test_uuids_are_sixteen_bytes() -> None:
    texts = pa.array([None, TEXT, "f" * 8 + "-0000-0000-0000-" + "0" * 12, None])
    want = [None, bytes.fromhex(TEXT.replace("-", "")), b"\xff" * 4 + bytes(12), None]
    assert SENT["uuid"](texts).to_pylist() == want
    assert SENT["uuid"](texts.slice(1, 2)).to_pylist() == want[1:3]
    assert SENT["uuid"](texts.slice(0, 0)).to_pylist() == []
    assert SENT["uuid"](texts.slice(3)).to_pylist() == [None]


def test_jsonb_has_a_version_before_its_text() -> None:
    assert SENT["jsonb"](pa.array(['{"a": "ü"}', None])).to_pylist() == [
        b"\x01" + '{"a": "ü"}'.encode(),
        None,
    ]
