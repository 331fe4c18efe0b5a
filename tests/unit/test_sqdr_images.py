"""The texts of a key log's rows, wherever a batch ends."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from tailrace.formats.sqdr.images import ImageTexts
from tailrace.model import mask
from tailrace.wire.keylog_values import KeyLogField

pytestmark = pytest.mark.unit
FIELDS = (KeyLogField("a b", "int"), KeyLogField("v", octet=True))
OTHERS = (("_seq", "string"), ("_oper", "string"))


def changes(*rows: tuple[str, str, int | None, str | None, list[int] | None]) -> pa.RecordBatch:
    """Changes: sequence, operation, `a b`, v, bits of the column mask."""
    masks = [None if r[4] is None else mask.encode(r[4]) for r in rows]
    return pa.RecordBatch.from_pydict(
        {
            "_seq": pa.array([r[0] for r in rows]),
            "_oper": pa.array([r[1] for r in rows]),
            "_carried": pa.array(masks, pa.binary()),
            "_c0": pa.array([r[2] for r in rows], pa.int32()),
            "_c1": pa.array([r[3] for r in rows], pa.string()),
        }
    )


ROWS = [
    ("1", "I", 1, "\n&", None),
    ("2", "B", 1, None, [0]),
    ("2", "U", 2, "b", None),
    ("3", "U", 2, None, [0]),
    ("4", "B", 2, "b", None),
    ("5", "D", 2, "b", None),
    ("6", "D", 2, None, [0]),
    ("7", "T", None, None, None),
]


@pytest.mark.parametrize("cuts", [[], [1], [2], [5], [2, 5], [1, 2, 3, 4, 5, 6, 7]])
def test_keys_and_images(cuts: list[int]) -> None:
    work = ImageTexts(FIELDS, (0,), (0, 1), OTHERS)
    ends = [0, *cuts, len(ROWS)]
    found: list[dict[str, Any]] = []
    for batch in work(iter([changes(*ROWS[a:b]) for a, b in pairwise(ends)])):
        found += batch.to_pylist()
    key, nil = 'a&#x0020b="{}"'.format, "=&xsi:nil"
    assert [tuple(r.values()) for r in found] == [
        ("1", "I", key(1), None, f'<row>{key(1)} v="&#x0A&amp;"</row>'),
        ("2", "U", key(2), key(1), f'<row>{key(2)} v="b"</row>'),
        ("3", "U", key(2), None, f"<row>{key(2)}</row>"),
        ("5", "D", key(2), None, f'<row>{key(2)} v="b"</row>'),
        ("6", "D", key(2), None, None),
        ("7", "T", f'a&#x0020b{nil}="true"', None, None),
    ]


def test_without_masks_every_row_has_every_column() -> None:
    work = ImageTexts(FIELDS, (0, 1), (), OTHERS)
    (made,) = work(iter([changes(("1", "D", 1, "a", None)).drop_columns(["_carried"])]))
    assert made.to_pylist() == [
        {"_seq": "1", "_oper": "D", "_key": 'a&#x0020b="1" v="a"', "_old_key": None, "_image": None}
    ]


def test_a_table_without_columns() -> None:
    """OpenEdge's level 0: only that rows changed is known."""
    work = ImageTexts((), (), (), OTHERS)
    rows = [changes((seq, "U", None, None, None)).select(["_seq", "_oper"]) for seq in ("1", "2")]
    assert [tuple(r.values()) for made in work(iter(rows)) for r in made.to_pylist()] == [
        ("1", "U", "", None, "<row></row>"),
        ("2", "U", "", None, "<row></row>"),
    ]
