"""Capture policies: what each level keeps of a table's and of a column's changes, bit for bit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.apply.checks.filled_targets import refuse_lowered
from tailrace.capture.part_readers import PartLoad
from tailrace.config.policies import Policy, policy_of
from tailrace.config.task import Task, read
from tailrace.errors import ConfigError, ValueRangeError
from tailrace.lake import delta as lake
from tailrace.model import mask
from tailrace.model.change import PREFIX, Column, Relation
from tailrace.model.types import schema_of
from tailrace.sources.base import BaselinePart
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.store import images, tables, tracking
from tailrace.store.images import BadImageValue
from tailrace.store.policy import reduced, unpack
from tailrace.store.task import LOG_COLUMNS, KeptLayout, StorePlan, TablePlan
from tailrace.store.writer import Store, StorePaths

from .messages import UNSENT, delete, insert, update
from .test_images import COLUMNS, FULL, ID, KEYED, NAME, PRICE, SCHEMA, records
from .test_log_and_store import ITEM, chunk, writer
from .test_log_gaps import tasks

pytestmark = pytest.mark.unit

NOTE = Column("note", 2, "text", "text", "string")
MESSAGES = (
    insert(7, [1, "a", "2.50"]),
    update(7, [1, "b", "2.50"], old=[1, "a", "2.50"]),
    update(7, [9, "b", "3.00"], old=[1, "b", "2.50"]),
    delete(7, old=[9, "b", "3.00"]),
)


def kept(
    policy: Policy, relation: Relation = FULL
) -> tuple[list[tuple[object, ...]], list[list[int] | None], dict[str, int]]:
    """Rows (oper, changed, carried or None, id, name, price), field maps, counts that are not 0."""
    found = reduced(
        images.decode(records(*MESSAGES), relation, SCHEMA), relation, policy.level, policy.of(relation)
    )
    rows = [
        (
            r["header__change_oper"],
            mask.decode(r["header__change_mask"]),
            None if r["header__column_mask"] is None else mask.decode(r["header__column_mask"]),
            r["id"],
            r["name"],
            None if r["price"] is None else str(r["price"]),
        )
        for r in found.rows.to_pylist()
    ]
    maps = [None if m is None else mask.decode_field_map(m) for m in found.field_maps.to_pylist()]
    return rows, maps, {k: v for k, v in found.counts.items() if v}


I1 = ("I", [ID, NAME, PRICE], None, 1, "a", "2.50")
D4 = ("D", [ID], None, 9, "b", "3.00")
MAPS = [None, [2], [1, 3], None]


def test_level_3_keeps_everything() -> None:
    rows, maps, counts = kept(Policy())
    assert [r[0] for r in rows] == ["I", "B", "U", "B", "U", "D"]
    assert maps == MAPS
    assert counts == {"I": 1, "U": 2, "D": 1, "key_changes": 1}


def test_level_2_keeps_before_images_of_changed_keys_alone() -> None:
    rows, maps, counts = kept(Policy(2))
    assert rows == [
        I1, ("U", [NAME], None, 1, "b", "2.50"), ("B", [], [ID], 1, None, None), ("U", [ID, PRICE], None, 9, "b", "3.00"), D4,
    ]  # fmt: skip
    assert (maps, counts) == (MAPS, {"I": 1, "U": 2, "D": 1, "key_changes": 1})


def test_levels_1_and_0_keep_no_image() -> None:
    assert kept(Policy(1)) == ([], MAPS, {})
    assert kept(Policy(0)) == ([], [None] * 4, {})


def test_columns_have_levels_of_their_own() -> None:
    rows, maps, counts = kept(Policy(3, {"name": 0, "price": 1, "id": 0}))
    assert rows[0] == ("I", [ID, PRICE], [ID], 1, None, None)
    assert rows[2] == ("U", [], [ID], 1, None, None)
    assert rows[-1] == ("D", [ID], [ID], 9, None, None)
    assert maps == [None, [], [1, 3], None]
    assert counts["absent"] == 2
    rows, _, _ = kept(Policy(3, {"name": 2}))
    assert rows[1] == ("B", [], [ID, PRICE], 1, None, "2.50")
    assert rows[2] == ("U", [NAME], None, 1, "b", "2.50")


def test_tables_without_key_keep_their_before_images() -> None:
    keyless = Relation(
        7, "shop", "note", "f", tuple(c.__class__(**{**vars(c), "key": False}) for c in COLUMNS)
    )
    found = kept(Policy(2), keyless)[0]
    assert [r[0] for r in found] == ["I", "B", "U", "B", "U", "D"]
    # A row is known by all of its values: old images have them, too.
    assert [r[2:] for r in found if r[0] == "B"] == [(None, 1, "a", "2.50"), (None, 1, "b", "2.50")]
    hidden = kept(Policy(3, {"price": 1, "name": 2}), keyless)[0]
    assert [r[3:] for r in hidden[1:3]] == [(1, "a", None), (1, "b", None)]


def test_hidden_columns_and_names() -> None:
    assert Policy(3, {"name": 1, "price": 2, "id": 0}).hidden(KEYED) == {"name"}
    assert Policy(1).hidden(KEYED) == {"id", "name", "price"}
    levels = {"shop.*": 1, "shop.item": 3, "shop.item.name": 0, "shop.item2.name": 2}
    assert policy_of(levels, "shop.item") == Policy(3, {"name": 0})
    assert policy_of(levels, "shop.other").level == 1
    assert policy_of({}, "a.b") == Policy()


@pytest.mark.parametrize(("level", "opers", "maps"), [
    (3, ["I", "B", "U", "T"], [None, b"\x01", None]),
    (2, ["I", "B", "U", "T"], [None, b"\x01", None]),
    (1, [], [None, b"\x01", None]),
    (0, [], [None, None, None]),
])  # fmt: skip
def test_a_store_task_keeps_what_the_policy_says(
    tmp_path: Path, level: int, opers: list[str], maps: list[bytes | None]
) -> None:
    w = writer(tmp_path)
    truncate = b"T\0\0\0\1\0\0\0\0\7"
    moved = update(7, [2, UNSENT], key=[1, None])
    w.add(chunk(100, b"B", insert(7, [1, "1"]), moved, truncate, b"C"))
    w.commit()
    path, tracked = str(tmp_path / "item__ct"), str(tmp_path / "tracking")
    kept_layout = KeptLayout(0, ITEM, (level,) * len(ITEM.columns))
    table = TablePlan("shop.item", path, tables.ensure(path, ITEM), (kept_layout,), -1, level)
    lake.create(tracked, tracking.SCHEMA)
    plan = StorePlan({7: table}, tracked, -1, str(tmp_path / "quarantine"))
    batches = lake.read(str(tmp_path / "log"), LOG_COLUMNS).to_batches()
    places = {"changes": path, "tracking": tracked}
    for found in plan(batches):
        if found.file:
            lake.commit(places[found.kind], [found.file], progress={})
        if found.kind == "changes":
            assert found.info["rows"] == len(opers)
    rows = lake.read(path).sort_by("header__change_seq")
    assert rows["header__change_oper"].to_pylist() == opers
    seen = lake.read(tracked).sort_by("_Change-Sequence")
    assert seen["_Operation"].to_pylist() == [1, 4, 7]
    assert seen["_Change-FieldMap"].to_pylist() == maps


def test_a_column_keeps_its_level_under_another_name() -> None:
    item, renamed = (
        replace(ITEM, columns=(ITEM.columns[0], replace(NOTE, name=n))) for n in ("note", "memo")
    )
    policy = Policy(3, {"note": 1})
    assert policy.following([item, renamed]).hidden(renamed) == {"memo"}
    assert policy.following([renamed]).hidden(renamed) == frozenset()  # it was never called that
    assert policy.following([item, renamed, item]).hidden(renamed) == {"memo"}
    again = replace(renamed, relid=8)
    assert policy.following([item, again]).hidden(again) == frozenset()  # another table, another column
    assert policy.following([item, again, renamed]).hidden(renamed) == {
        "memo"
    }  # changes of the first come late
    assert Policy(3, {"note": 1, "memo": 3}).following([item, renamed]).hidden(renamed) == frozenset()
    unknown = replace(item, columns=(item.columns[0], replace(NOTE, name="memo", attnum=-1)))
    assert policy.following([item, unknown]).hidden(unknown) == {"memo"}  # it may be that column


@pytest.mark.parametrize(
    ("later", "columns"),
    [
        pytest.param(NOTE, ["id", "n", "note"], id="another name and type"),
        pytest.param(
            replace(NOTE, name="n", attnum=3), ["id", "n__until_4", "n"], id="another one takes the name"
        ),
    ],
)
def test_the_store_keeps_no_value_of_a_hidden_column(
    tmp_path: Path, later: Column, columns: list[str]
) -> None:
    """The change table calls the column `n__until_4` once a later one of another type has its name."""
    layouts = ITEM, replace(ITEM, columns=(ITEM.columns[0], later))
    w = writer(tmp_path)
    for k, layout in enumerate(layouts):
        one = chunk(100 * (k + 1), b"B", insert(7, [k, "41"]), b"C")
        w.add(replace(one, relations=[(0, layout)]))
        w.commit()
    path = {n: str(tmp_path / n) for n in ("relations", "tracking", "stored", "quarantine")}
    policy = Policy(3, {"n": 1}).following(layouts)
    changes = str(tmp_path / "item__ct")
    mine = Store(StorePaths(**path, changes=lambda _: changes, policy=lambda _: policy))
    mine.batch(tasks(lake.read(str(tmp_path / "log")).sort_by("CHANGE_SEQ")))
    stored = lake.read(changes).sort_by("id")
    assert [n for n in stored.column_names if not n.startswith(PREFIX)] == columns
    assert [stored[n].null_count for n in columns] == [0, 2, 2]


PART = BaselinePart("shop.item", 0, None, 2)


def test_baselines_leave_hidden_columns_null(tmp_path: Path) -> None:
    path = str(tmp_path / "item")
    lake.create(path, schema_of(ITEM.columns))
    batch = pa.record_batch(
        {"id": [1, 2], "n": pa.array([1, 2], pa.decimal128(5, 1))}, schema=schema_of(ITEM.columns)
    )
    bad = [BadImageValue(0, "n", "NaN")]

    def reader(*_: object) -> Iterator[tuple[pa.RecordBatch, list[BadImageValue]]]:
        yield batch, bad

    loaded = PartLoad(reader, None, ITEM, path, False, frozenset({"n"}))(PART)  # type: ignore[arg-type]
    assert loaded.added is not None and loaded.bad == []
    lake.commit(path, [loaded.added], progress={})
    assert lake.read(path).to_pylist() == [{"id": 1, "n": None}, {"id": 2, "n": None}]


def test_a_bad_value_of_a_row_key_stops_a_baseline_in_any_case(tmp_path: Path) -> None:
    """Later changes would not find the row."""
    path = str(tmp_path / "item")
    lake.create(path, schema_of(ITEM.columns))
    batch = pa.record_batch(
        {"id": [1, None], "n": pa.nulls(2, pa.decimal128(5, 1))}, schema=schema_of(ITEM.columns)
    )

    def reader(*_: object) -> Iterator[tuple[pa.RecordBatch, list[BadImageValue]]]:
        yield batch, [BadImageValue(0, "n", "NaN"), BadImageValue(1, "id", "infinity")]

    with pytest.raises(ValueRangeError, match="'infinity'") as said:
        PartLoad(reader, None, ITEM, path, True)(PART)  # type: ignore[arg-type]
    assert said.value.hint == (
        'keep the column as text with `types: {"shop.item.id": string}`; a row key cannot be NULL'
    )
    assert lake.read(path).num_rows == 0


def test_a_target_is_not_left_standing(tmp_path: Path) -> None:
    text = (
        "name: shop\nsource: {url: 'postgresql://localhost/shop'}\npolicies: {shop.item: 1, shop.item.n: 0}"
    )
    task = read(text, tmp_path)
    assert isinstance(task, Task)
    assert task.policy("shop.item") == Policy(1, {"n": 0})
    refuse_lowered(task)
    now = dt.datetime.now(dt.timezone.utc)
    write_baseline(task.control_path("baselines"), Baseline("shop.item", ITEM, "00" * 20, 1, 0, now, 1.0))
    with pytest.raises(ConfigError, match="would not get any more changes at level 1"):
        refuse_lowered(task)
    (mistake,) = read(text.replace("item: 1", "item: 4"), tmp_path)  # type: ignore[misc]
    assert "less than or equal to 3" in mistake.what


@given(st.lists(st.none() | st.sets(st.integers(0, 40)), max_size=6), st.booleans(), st.integers(0, 2))
def test_masks_unpack_as_they_were_packed(rows: list[set[int] | None], little: bool, skip: int) -> None:
    encoded = [
        None if r is None else mask.encode_field_map(n + 1 for n in r) if little else mask.encode(r)
        for r in rows
    ]
    got = unpack(pa.array(encoded, pa.binary()).slice(skip), list(range(41)), little=little)
    assert [{n for n in range(41) if bits[n]} for bits in got] == [r or set() for r in rows[skip:]]
