"""The key that a chain is asked for: a value of the column's type, as it is, or an error."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailrace.engine.chains import chain
from tailrace.engine.change_arrays import ChangeArrays
from tailrace.errors import ConfigError

from .change_model import seq

pytestmark = pytest.mark.unit

UTC, PLAIN = pa.timestamp("us", "UTC"), pa.timestamp("us")
NOON = dt.datetime(2026, 1, 1, 12)


def asked(kind: pa.DataType, there: Any, given: Any) -> int:
    """How many changes of the key are found."""
    rows = {
        "header__change_seq": pa.array([seq(1)]), "header__change_oper": pa.array(["I"]),
        "k": pa.array([there], kind),
    }  # fmt: skip
    return len(chain(ChangeArrays.of(pa.table(rows), ["k"]), {"k": given}))


@pytest.mark.parametrize(
    ("kind", "there", "given"),
    [
        (pa.decimal128(8, 3), Decimal("1.500"), 1.5),
        (pa.decimal128(8, 3), Decimal("1.500"), "1.5"),
        (pa.decimal128(8, 3), Decimal("2.000"), 2),
        (pa.float32(), 0.1, 0.1),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), 0.5, Decimal("0.5")),
        (pa.float64(), float("nan"), float("nan")),
        (pa.float64(), float("nan"), "NaN"),
        (pa.float64(), 0.0, -0.0),
        (pa.int32(), 7, "7"),
        (pa.int32(), 7, Decimal(7)),
        (pa.bool_(), True, "true"),
        (pa.bool_(), True, True),
        (pa.date32(), dt.date(2026, 1, 1), "2026-01-01"),
        (UTC, NOON, NOON),
        (UTC, NOON, NOON.replace(tzinfo=dt.timezone.utc)),
        (UTC, NOON, "2026-01-01 12:00:00"),
        (UTC, NOON, "2026-01-01T12:00:00Z"),
        (UTC, NOON, "2026-01-01 14:00:00+02:00"),
        (PLAIN, NOON, "2026-01-01 12:00:00"),
        (pa.string(), "a", "a"),
        (pa.binary(), b"a", "\\x61"),
        (pa.binary(), b"a", b"a"),
    ],
)
def test_a_key_is_read_as_its_column(kind: pa.DataType, there: Any, given: Any) -> None:
    assert asked(kind, there, given) == 1


@pytest.mark.parametrize(
    ("kind", "there", "given"),
    [
        (pa.decimal128(8, 3), Decimal("1.500"), 1.50049),
        (pa.decimal128(8, 3), Decimal("1.500"), "1.5001"),
        (pa.decimal128(8, 3), Decimal("1.500"), Decimal("1.5001")),
        (pa.int32(), 1, dt.date(1970, 1, 2)),
        (pa.int32(), 1, True),
        (pa.int32(), 1, 1.5),
        (pa.int32(), -1, "0xFFFFFFFF"),
        (pa.int64(), 16, "0x10"),
        (pa.int32(), 1, None),
        (pa.int32(), 1, [1]),
        (pa.int32(), 1, object()),
        (pa.int32(), 1, 2**80),
        (pa.bool_(), True, 7),
        (pa.float64(), float(2**53), 2**53 + 1),
        (PLAIN, NOON, NOON.replace(tzinfo=dt.timezone.utc)),
        (PLAIN, NOON, 7),
        (UTC, NOON, "noon"),
        (pa.string(), "1", 1),
    ],
)
def test_a_key_that_is_no_value_of_its_column_is_refused(kind: pa.DataType, there: Any, given: Any) -> None:
    with pytest.raises(ConfigError, match="not a valid value for the key column k") as error:
        asked(kind, there, given)
    assert error.value.hint
