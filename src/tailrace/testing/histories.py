"""Data of the conformance suite for formats: histories of changes, hostile text, extreme values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from .changes import Image

AT = datetime(2026, 3, 4, 5, 6, 7, 123_456, tzinfo=timezone.utc)


def full(id: int | None, name: str | None = "a", note: str | None = None) -> dict[str, Any]:
    """Returns a full image of `COLUMNS`."""
    return {"id": id, "name": name, "amount": Decimal("12.50"), "at": AT, "note": note}


HOSTILE = (
    '"', "'", 'a="b" c="d"', "&amp;&#x0A;&xsi:nil", "<row></row>", "a,b;c~d\\e|f", "line\nfeed\r\ntab\t",
    " spaces ", "?", "NULL", "null", "é中🚀\u2028", "\x01\x1f\x7f", "`${}`", "%s", "0x00", "a'--",
)  # fmt: skip
HISTORIES: dict[str, list[Image]] = {
    "nothing": [],
    "inserts": [Image(1, "I", full(1)), Image(2, "I", full(2, None)), Image(3, "I", full(3, ""))],
    "pairs": [
        Image(1, "I", full(1)),
        Image(2, "B", full(1)),
        Image(2, "U", full(1, "b")),
        Image(3, "B", full(1, "b")),
        Image(3, "U", full(1, None, "x")),
    ],
    "after images only": [
        Image(1, "U", full(1, "b"), ["name"]),
        Image(2, "U", full(2, None), ["name", "note"]),
    ],
    "deletes": [Image(1, "I", full(1)), Image(2, "D", full(1))],
    "truncate": [Image(1, "I", full(1)), Image(2, "T"), Image(3, "I", full(1, "again"))],
    "key change": [Image(1, "I", full(1)), Image(2, "B", full(1)), Image(2, "U", full(9))],
    "sparse": [
        Image(1, "U", {"id": 1, "name": "b"}, ["name"]),
        Image(2, "U", {"id": 1, "note": None}, ["note"]),
        Image(3, "D", {"id": 1}),
    ],
    "null, absent, empty": [
        Image(1, "I", full(1, None, "")),
        Image(2, "U", {"id": 1, "name": None}, ["name"]),
        Image(3, "U", {"id": 1, "note": ""}, ["note"]),
        Image(4, "U", {"id": 1, "amount": None, "at": None}, ["amount", "at"]),
    ],
    "one transaction": [
        Image(1, "I", full(1), transaction=1),
        Image(2, "I", full(2), transaction=1),
        Image(3, "D", full(1), transaction=1),
        Image(4, "I", full(1), transaction=2),
    ],
    "hostile text": [Image(n, "I", full(n, text)) for n, text in enumerate(HOSTILE, 1)],
}
EXTREMES: dict[str, tuple[str, list[Any]]] = {
    "boolean": ("boolean", [True, False, None]),
    "smallint": ("smallint", [-32768, 0, 32767, None]),
    "int": ("int", [-2147483648, 2147483647, None]),
    "bigint": ("bigint", [-(2**63), 2**63 - 1, None]),
    "double": ("double", [0.1, -1.7976931348623157e308, 5e-324, None]),
    "decimal": (
        "decimal(38,10)",
        [Decimal("9999999999999999999999999999.9999999999"), Decimal("-0.0000000001"), None],
    ),
    "string": ("string", ["", "x" * 40_000, "\x7f", None]),
    "binary": ("binary", [b"", b"\x00\xff\x00", bytes(range(256)), None]),
    "date": ("date", [date(1, 1, 1), date(1582, 10, 4), date(9999, 12, 31), None]),
    "timestamp": (
        "timestamp",
        [
            datetime(1, 1, 2, tzinfo=timezone.utc),
            datetime(9999, 12, 30, 23, 59, 59, 999_999, timezone.utc),
            AT,
            None,
        ],
    ),
}


def random_history(seed: int) -> list[Image]:
    """Returns forty random changes of a few keys: every operation, sparse images, pairs and single updates,
    key changes, and transactions with several changes."""
    rng = random.Random(seed)
    images: list[Image] = []
    transaction = 0
    for number in range(1, 41):
        transaction += rng.random() < 0.6  # some transactions have several changes
        key = rng.randint(1, 5)
        values = full(key, rng.choice([None, "", "b", "cc"]), rng.choice([None, "", "n"]))
        kind = rng.choice(["I", "I", "pair", "pair", "U", "sparse", "D", "T" if number % 20 == 0 else "I"])
        if kind == "pair":
            old = (
                values
                | {rng.choice(["name", "note"]): "old"}
                | ({"id": key + 10} if rng.random() < 0.2 else {})
            )
            images.append(Image(number, "B", old, transaction=transaction))
            images.append(Image(number, "U", values, transaction=transaction))
        elif kind == "sparse":
            some = {"id": key, "name": values["name"]}
            images.append(Image(number, "U", some, ["name"], transaction))
        elif kind == "U":
            images.append(Image(number, "U", values, ["name"], transaction))
        else:
            images.append(Image(number, kind, {} if kind == "T" else values, transaction=transaction))
    rng.shuffle(images)
    return images


def one_after_the_other(names: Sequence[str]) -> list[Image]:
    """Returns histories combined into one: the numbers of each follow those of the previous one."""
    result: list[Image] = []
    for n, name in enumerate(names):
        for one in HISTORIES[name]:
            transaction = one.number if one.transaction is None else one.transaction
            result.append(replace(one, number=one.number + 100 * n, transaction=transaction + 100 * n))
    return result
