"""What is rendered as a key log's text reads back as the same values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.types import arrow_type
from tailrace.wire import keylog_text
from tailrace.wire.keylog_render import Item, image, items
from tailrace.wire.keylog_values import KeyLogField

from ..examples import examples

pytestmark = pytest.mark.unit

UTC = dt.timezone.utc
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(38,18)": st.decimals(-(10**19), 10**19, places=18),
}
NAMES = ["id", 'odd "name"=', "ü & <b>"]


@examples(25)
@given(st.data())
def test_text_reads_back_as_it_was(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    many = data.draw(st.integers(1, 4))
    fields = [KeyLogField(name, kind) for name, kind in zip(NAMES, kinds, strict=False)]
    columns = [
        pa.array(
            data.draw(st.lists(st.none() | VALUES[f.type], min_size=many, max_size=many)), arrow_type(f.type)
        )
        for f in fields
    ]
    there = [data.draw(st.none() | st.lists(st.booleans(), min_size=many, max_size=many)) for _ in fields]
    made = [
        Item(f, c, None if t is None else np.array(t)) for f, c, t in zip(fields, columns, there, strict=True)
    ]
    found = keylog_text.parse(image("", made), fields, row=True)
    assert found.why.to_pylist() == [None] * many
    for one, values, present in zip(made, found.values, found.present, strict=True):
        mine = [True] * many if one.there is None else one.there.tolist()
        assert mine == ([True] * many if present is None else present.tolist())
        wanted = [v if m else None for v, m in zip(one.values.to_pylist(), mine, strict=True)]
        assert values.to_pylist() == wanted


def test_what_is_far_or_no_number() -> None:
    far = pa.array([253_402_300_800_000_000, -62_135_596_800_000_001], pa.timestamp("us"))
    assert items([Item(KeyLogField("t", "timestamp_ntz"), far)]).to_pylist() == [
        't="+10000-01-01T00:00:00.000000"',
        't="0000-12-31T23:59:59.999999"',
    ]
    odd = pa.array([float("nan"), float("-inf"), None])
    assert items([Item(KeyLogField("d", "double"), odd)]).to_pylist() == [
        'd="NaN"',
        'd="-Infinity"',
        'd=&xsi:nil="true"',
    ]
    tiny = pa.array([Decimal("1E-18")], pa.decimal128(38, 18))
    assert items([Item(KeyLogField("n", "decimal(38,18)"), tiny)]).to_pylist() == ['n="1E-18"']
