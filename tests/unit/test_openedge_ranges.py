"""Tracking rows and images joined by ranges of numbers, over the row groups of Parquet files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.formats import row_groups
from tailrace.formats.openedge import ranges as by
from tailrace.formats.openedge.changes import THERE
from tailrace.formats.openedge.ranges import RangeJoin, side_of
from tailrace.formats.openedge.shares import Share
from tailrace.formats.openedge.tables import CHANGE, TRACKING
from tailrace.formats.row_groups import ranges

pytestmark = pytest.mark.unit
TRACKED = {
    "_Change-Sequence": "bigint",
    "_Operation": "int",
    "_Policy-Id": "string",
    "_Source-Table-Number": "int",
}
IMAGED = {
    "_Change-Sequence": "bigint",
    "_Operation": "smallint",
    "_Continuation-Position": "int",
    "v": "string",
}
ARROW = {"bigint": pa.int64(), "int": pa.int32(), "smallint": pa.int16(), "string": pa.string()}
Rows = list[tuple[Any, ...]]


def put(folder: Path, name: str, kinds: dict[str, str], rows: Rows, group: int) -> list[Path]:
    """The rows in two files, with row groups of so many."""
    folder.mkdir(exist_ok=True)
    schema = pa.schema([(n, ARROW[k]) for n, k in kinds.items()])
    files = []
    for part in range(2):
        some = rows[part * len(rows) // 2 : (part + 1) * len(rows) // 2]
        columns = [list(c) for c in zip(*some, strict=True)] or [[] for _ in kinds]
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
        files.append(folder / f"{name}-{part}.parquet")
        pq.write_table(table, files[-1], row_group_size=group)
    return files


def sides(folder: Path, tracked: Rows, imaged: Rows, group: int = 5) -> Any:
    tracking = side_of(put(folder, "t", TRACKED, tracked, group), TRACKING, TRACKED)
    images = side_of(put(folder, "c", IMAGED, imaged, group), CHANGE, IMAGED, ["v"])
    return tracking, images


def found(folder: Path, tracked: Rows, imaged: Rows, share: Share) -> list[tuple[Any, ...]]:
    """(number, operation of the tracking row, operation of the image, v), and where both come from."""
    (tracking, groups), (images, more) = sides(folder, tracked, imaged)
    plan = ranges([more, groups])
    assert plan is not None
    assert len(plan) > 3
    join = RangeJoin(tracking, images, share, plan)
    names = list(join.columns())
    rows = []
    for n in range(len(plan)):
        for batch in join(iter([pa.record_batch({"id": pa.array([n], pa.int64())})])):
            assert batch.schema.types == [
                ARROW.get(k, t) for k, t in zip(join.columns().values(), batch.schema.types, strict=True)
            ]
            rows += [dict(zip(names, r.values(), strict=True)) for r in batch.to_pylist()]
    seq, places = "_Change-Sequence", {}
    for side, files in (("_t", tracking.files), ("_c", images.files)):
        places[side] = [pq.read_table(f) for f in files]
    for r in rows:  # a row's file and number are its own
        for side, tables in places.items():
            assert (r[f"{side}:{THERE}"] is None) == (r[f"{side}:{seq}"] is None)
            if r[f"{side}:{THERE}"]:
                lies = (
                    tables[r[f"{side}:{row_groups.FILE_INDEX}"]]
                    .slice(r[f"{side}:{row_groups.NUMBER}"] - 1, 1)
                    .to_pylist()[0]
                )
                assert lies[seq] == r[f"{side}:{seq}"]
    return [(r[f"_t:{seq}"], r["_t:_Operation"], r[f"_c:{seq}"], r["_c:_Operation"], r["_c:v"]) for r in rows]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "LEAST_BYTES", 1)
    monkeypatch.setattr(by, "SLICE", 7)
    monkeypatch.setattr(row_groups, "MOST_AGAIN", 3.0)


def test_every_row_meets_those_of_its_number(tmp_path: Path) -> None:
    chance = random.Random(7)
    tracked: Rows = [
        (n, chance.choice([1, 2, 4, 7]), "p", chance.choice([18, 20, None])) for n in range(1, 60)
    ]
    tracked.append((60, 5, "p", 18))  # it changes no row
    tracked.insert(30, tracked[29])  # twice
    imaged: Rows = []
    for n in range(3, 63):
        imaged += [(n, 3, 0, f"b{n}")] if n % 3 == 0 else []
        imaged += [(n, 4, 0, f"u{n}")] if n % 7 else []
    mine = [r for r in tracked if r[3] in (18, None) and r[1] != 5]
    want = [(t[0], t[1], c[0], c[1], c[3]) for c in imaged for t in mine if t[0] == c[0]]
    want += [(None, None, c[0], c[1], c[3]) for c in imaged if not any(t[0] == c[0] for t in mine)]
    want += [(t[0], t[1], None, None, None) for t in mine if not any(t[0] == c[0] for c in imaged)]
    assert sorted(map(repr, found(tmp_path, tracked, imaged, Share(18, ("p",), False)))) == sorted(
        map(repr, want)
    )


def test_what_is_left_to_spark(tmp_path: Path) -> None:
    tracked: Rows = [(n, 1, "p", 18) for n in range(1, 9)]
    imaged: Rows = [(n, 1, 0, "v") for n in range(1, 9)]
    assert None not in sides(tmp_path, tracked, imaged)
    assert sides(tmp_path, [(None, 1, "p", 18), *tracked], imaged)[0] is None  # it has no number
    assert sides(tmp_path, tracked, [(1, 1, 9, "v"), *imaged])[1] is None  # a half
    files = put(tmp_path, "c", IMAGED, imaged, 5)
    assert side_of(files, CHANGE, IMAGED | {"v": "int"}, ["v"]) is None  # not as Spark reads it
    shuffled = random.Random(7).sample(imaged * 50, 400)
    _, groups = side_of(put(tmp_path, "d", IMAGED, shuffled, 5), CHANGE, IMAGED, ["v"])  # type: ignore[misc]
    assert ranges([groups]) is None
