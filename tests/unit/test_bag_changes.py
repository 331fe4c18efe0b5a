"""Questions to tables without a key: bags of rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine.change_arrays import ChangeArrays
from tailrace.engine.keyless_changes import KeylessState, as_keyed, net_of_keyless
from tailrace.engine.pairs import pairs
from tailrace.errors import BaselineNeededError, ConfigError, UnsupportedError

from ..examples import examples

pytestmark = pytest.mark.unit
SCHEMA = pa.schema(
    [
        ("header__change_seq", pa.string()), ("header__change_oper", pa.string()),
        ("header__column_mask", pa.binary()), ("v", pa.int64()), ("w", pa.string()),
    ]
)  # fmt: skip
Row = tuple[int | None, str | None]
Change = tuple[str, Row, Row | None]


def arrays(changes: list[Change]) -> ChangeArrays:
    rows: list[dict[str, Any]] = []
    for number, (oper, row, old) in enumerate(changes, 1):
        images = [("B", old), ("U", row)] if oper == "U" else [(oper, row)]
        for letter, image in images:
            values = (None, None) if image is None or oper == "T" else image
            rows.append(
                {
                    "header__change_seq": f"{number:035d}",
                    "header__change_oper": letter,
                    "v": values[0],
                    "w": values[1],
                }
            )
    return ChangeArrays.of(pa.Table.from_pylist(rows, SCHEMA), [])


def bag_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"v": v, "w": w} for v, w in rows], pa.schema([SCHEMA.field(n) for n in "vw"])
    )


def after(base: list[Row], changes: list[Change]) -> Counter[Row]:
    bag = Counter(base)
    for oper, row, old in changes:
        if oper == "T":
            bag.clear()
            continue
        if oper in "IU":
            bag[row] += 1
        if oper == "D" or old is not None:
            bag[row if oper == "D" else old] -= 1  # type: ignore[index]
    return +bag


ROWS = st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "a"]))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Row], list[Change]]:
    """Rows, and changes that a source may make of them."""
    base = draw(st.lists(ROWS, max_size=6))
    now = list(base)
    changes: list[Change] = []
    for _ in range(draw(st.integers(0, 8))):
        oper = draw(st.sampled_from("IIUUDT" if now else "IT"))
        old = now.pop(draw(st.integers(0, len(now) - 1))) if oper in "UD" else None
        row = old if oper == "D" and old is not None else draw(ROWS)
        if oper == "T":
            now.clear()
        elif oper != "D":
            now.append(row)
        changes.append((oper, row, old if oper == "U" else None))
    return base, changes


@examples(30, derandomize=True)
@given(histories(), st.integers(1, 4))
def test_a_bag_after_changes(given_in: tuple[list[Row], list[Change]], size: int) -> None:
    base, changes = given_in
    state = KeylessState(arrays(changes))
    parts = [state.left(b) for b in bag_of(base).to_batches(max_chunksize=size)]
    found = [tuple(r.values()) for part in (*parts, state.more()) for r in part.to_pylist()]
    assert Counter(found) == after(base, changes)


@examples(30, derandomize=True)
@given(histories())
def test_net_changes_are_what_differs(given_in: tuple[list[Row], list[Change]]) -> None:
    base, changes = given_in
    found = net_of_keyless(arrays(changes), base=bag_of(base)).to_pylist()
    bag = Counter(base)
    for sign in ("delete", "insert"):
        bag.subtract((r["v"], r["w"]) for r in found if r["_change_type"] == sign == "delete")
        bag.update((r["v"], r["w"]) for r in found if r["_change_type"] == sign == "insert")
    assert +bag == after(base, changes) and min(bag.values(), default=0) >= 0
    versions = [r["_commit_version"] for r in found]
    assert versions == sorted(versions)


def test_every_change_of_a_bag() -> None:
    changes: list[Change] = [
        ("I", (1, "a"), None),
        ("U", (1, "a"), (1, "a")),
        ("U", (2, "a"), (1, "a")),
        ("T", (0, ""), None),
    ]
    made = arrays(changes)
    told = [(r["_change_type"], r["v"]) for r in net_of_keyless(made, mode="none").to_pylist()]
    assert told == [
        ("insert", 1), ("update_preimage", 1), ("update_postimage", 1), ("update_preimage", 1), ("update_postimage", 2), ("truncate", None),
    ]  # fmt: skip
    plain = [
        r["_change_type"] for r in net_of_keyless(made, mode="dropCarryovers", updates=False).to_pylist()
    ]
    assert plain == ["insert", "delete", "insert", "truncate"]
    assert [r["_change_type"] for r in net_of_keyless(made).to_pylist()] == ["truncate"]
    paired = [(r["before"], r["after"], r["changed"]) for r in pairs(as_keyed(made)).to_pylist()]
    assert paired[2] == ({"v": 1, "w": "a"}, {"v": 2, "w": "a"}, ["v"])


def test_what_a_bag_cannot_tell_is_an_error() -> None:
    rows = arrays([("U", (1, "a"), (2, "a"))]).rows
    with pytest.raises(UnsupportedError, match="no before image"):
        KeylessState(ChangeArrays.of(rows.slice(1), []))
    sparse = rows.set_column(2, SCHEMA.field(2), pa.array([b"\x08", None], pa.binary()))
    with pytest.raises(UnsupportedError, match="images have missing columns"):
        net_of_keyless(ChangeArrays.of(sparse, []))
    with pytest.raises(BaselineNeededError, match="1 rows that changes delete do not exist"):
        KeylessState(arrays([("D", (1, "a"), None)])).more()
    with pytest.raises(ConfigError, match="deduplicationMode is 'netchanges'"):
        net_of_keyless(arrays([("I", (1, "a"), None)]), mode="netchanges")
