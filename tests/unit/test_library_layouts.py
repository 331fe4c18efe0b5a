"""Answers across changes of a table's layout: rows that are one table's, or an error that says where it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailrace
from tailrace.errors import ConfigError, UnsupportedError
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.types import schema_of
from tailrace.store.tables import ensure
from tailrace.targets.lake.layout import mark

from .task_home import COLUMNS, ITEM, TaskHome, at, item, partly_applied, position, rows, seq, values

pytestmark = pytest.mark.unit


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    return partly_applied(tmp_path)


def test_a_column_that_became_another_one_splits_the_range(tmp_path: Path) -> None:
    made = TaskHome(tmp_path)
    made.store((1, "I", item(1)))
    name, price = COLUMNS[1], COLUMNS[2]
    made.layout(2, (COLUMNS[0], name, Column("price", 3, "int", "int4", "decimal(8,2)"), Column("n", 4, "int", "int4", "int")))  # fmt: skip
    table = tailrace.open(made.file).table(ITEM)
    assert table.net().schema.names[:3] == ["id", "name", "price"]  # nothing of the new layout yet
    from tailrace.lake import delta as lake

    lake.add_columns(
        made.task.changes_path(ITEM), [pa.field("n", pa.int32()), pa.field("title", pa.string())]
    )
    made.store((3, "I", item(2) | {"n": 7}))
    assert tailrace.open(made.file).table(ITEM).net().table()["n"].to_pylist() == [None, 7]
    made.layout(4, (COLUMNS[0], Column("title", 2, "text", "text", "string"), price))
    made.store((5, "I", {"id": 3, "title": "x", "price": Decimal(1)}))
    table = tailrace.open(made.file).table(ITEM)
    assert [(r["id"], r["title"]) for r in table.net().rows()] == [(1, "a"), (2, "a"), (3, "x")]
    assert table.net(5).table()["title"].to_pylist() == ["x"]
    # The first change of the range is the first of its layout: rows from before it have another one.
    older = pa.table({"id": pa.array([3], pa.int32()), "name": ["y"], "price": [Decimal("1.00")]})
    with pytest.raises(UnsupportedError, match=f"renamed to title at change_seq {seq(4)}"):
        table.net(5, base=older)
    assert table.net(5, base=older.rename_columns(["id", "title", "price"])).table().num_rows == 2
    assert table.changes is not None


def test_a_layout_of_which_no_change_is_stored_yet(tmp_path: Path) -> None:
    made = TaskHome(tmp_path)
    made.store((1, "I", item(1)))
    made.layout(2, (COLUMNS[0], Column("title", 2, "text", "text", "string"), COLUMNS[2]))
    made.layout(3, (COLUMNS[0], COLUMNS[1], COLUMNS[2], Column("n", 4, "int", "int4", "int")))
    table = tailrace.open(made.file).table(ITEM)
    assert (table.columns, table.schema.names[-3:]) == (["id", "name", "price"], ["id", "name", "price"])
    assert rows(table.net(2)) == []
    assert [r["name"] for r in table.net().rows()] == [item(1)["name"]]


def test_the_difference_of_places_on_both_sides_of_a_rename_is_refused(home: TaskHome) -> None:
    last = max(
        int(r["header__change_seq"][16:]) for r in tailrace.open(home.file).table(ITEM).changes().rows()
    )
    name, price = COLUMNS[1], COLUMNS[2]
    home.layout(last + 1, (COLUMNS[0], Column("title", 2, "text", "text", "string"), price))
    lake.add_columns(home.task.changes_path(ITEM), [pa.field("title", pa.string())])
    home.store((last + 2, "I", {"id": 77, "title": "x", "price": Decimal(1)}))
    table = tailrace.open(home.file).table(ITEM)
    with pytest.raises(UnsupportedError, match=f"{name.name} was renamed to title"):
        table.diff(last)


def test_a_place_behind_a_rename_that_the_target_passed_in_one_batch(home: TaskHome) -> None:
    """The target's versions are of before the rename, and of behind a later change: one batch has both."""
    key, _, price = COLUMNS
    before = [(1, "c"), (4, "a"), (5, "a")]
    home.applied([item(*row) for row in before], 16)
    home.layout(17, (key, Column("title", 2, "text", "text", "string"), price))
    lake.add_columns(home.task.changes_path(ITEM), [pa.field("title", pa.string())])
    added = [{"id": n, "title": "x", "price": Decimal(1)} for n in (77, 78)]
    home.store((17, "I", added[0]), (18, "I", added[1]))
    table = tailrace.open(home.file).table(ITEM)

    def refused(*asked: Callable[[], object]) -> None:
        for ask in asked:
            with pytest.raises(
                UnsupportedError, match=f"name was renamed to title at .*{seq(17)}, and"
            ) as no:
                ask()
            assert "no version between that and this position" in str(no.value)
            assert "use a position that the target has reached" in str(no.value)
            assert no.value.where is not None and "version" in no.value.where

    refused(table.current, lambda: table.as_of(18))
    home.applied([{"id": i, "title": n, "price": Decimal(1)} for i, n in before] + added, 18)
    assert {r["title"] for r in table.current().rows()} == {"a", "c", "x"}
    refused(
        lambda: table.as_of(17), lambda: table.diff(17), lambda: table.net(18, base=table.as_of(17).table())
    )
    assert rows(table.as_of(16)) == before
    with pytest.raises(UnsupportedError, match="within the range"):
        table.diff(16, 18)


def test_a_name_that_another_column_has_by_now_splits_the_range(home: TaskHome) -> None:
    """Rows of before have the old column's values under it; the target has not come to the change of layout."""
    key, _, price = COLUMNS
    before = tailrace.open(home.file).table(ITEM).current().rows()
    home.layout(17, (key, Column("name", 4, "text", "text", "string"), price))
    home.store((17, "U", item(1, "new")))
    table = tailrace.open(home.file).table(ITEM)
    assert table.as_of(16).rows() == before
    for ask in (table.current, lambda: table.as_of(17), lambda: table.diff(16), lambda: table.diff(11, 17)):
        with pytest.raises(
            UnsupportedError, match=f"name was replaced by another .* at change_seq {seq(17)}"
        ):
            ask()
    home.applied([item(1, "new"), item(3)], 17)
    home.store((18, "U", item(3, "newer")))
    assert sorted(values(r)[:2] for r in table.diff(17).rows()) == [(3, "a"), (3, "newer")]


def test_a_name_that_was_dropped_and_added_again_splits_the_range(home: TaskHome) -> None:
    """Changes lie between the two, so that no two layouts in sequence differ in it."""
    key, _, price = COLUMNS
    home.layout(17, (key, price))
    home.store((17, "U", {"id": 1, "price": Decimal(5)}))
    assert tailrace.open(home.file).table(ITEM).current().schema.names == ["id", "price"]
    home.layout(18, (key, Column("name", 4, "text", "text", "string"), price))
    home.store((18, "U", item(1, "new")))
    table = tailrace.open(home.file).table(ITEM)
    for ask in (table.current, lambda: table.diff(16)):
        with pytest.raises(UnsupportedError, match="name was replaced by another column of that name"):
            ask()
    # The new column was NULL in all rows until then.
    assert [r["name"] for r in table.pairs(15).rows() for r in (r["after"],)] == [None, None, None, "new"]
    assert [r["name"] for r in table.diff(17).rows() if r["id"] == 1] == [None, "new"]


def test_a_baseline_of_a_new_layout_is_of_that_layout(home: TaskHome) -> None:
    """The first change of the range is the first that has it; the rows of before have it from the baseline."""
    key, _, price = COLUMNS
    title = Column("name", 4, "text", "text", "string")
    home.columns = (key, title, price)
    home.baseline([item(1, "x"), item(3, "y")], after=16, number=2)
    home.layout(18, (key, title, price))
    home.store((18, "U", item(1, "new")))
    table = tailrace.open(home.file).table(ITEM)
    assert rows(table.current()) == [(1, "new"), (3, "y")]
    assert sorted(values(r)[:2] for r in table.diff(17).rows()) == [(1, "new"), (1, "x")]


def test_ranges_on_either_side_of_another_type_are_answered(home: TaskHome) -> None:
    """A range over both is answered for other columns."""
    key, _, price = COLUMNS
    bits = tailrace.open(home.file).table(ITEM).arrays(15, 16).ordinals
    columns = (key, Column("name", 2, "integer", "int4", "int"), price)
    home.layout(17, columns)
    ensure(home.task.changes_path(ITEM), Relation(1, "shop", "item", "d", columns), 17)
    home.store((17, "U", {"id": 1, "name": 7, "price": Decimal(1)}))
    table = tailrace.open(home.file).table(ITEM)
    assert rows(table.as_of(16)) == [(1, "c"), (4, "a"), (5, "a")]
    assert [(r["id"], r["name"]) for r in table.changes(15, 16).rows()] == [(1, "c"), (5, "a")]
    assert table.arrays(15, 16).ordinals == bits  # a bit of a mask means what it did
    assert [r["name"] for r in table.net(17).rows()] == [None, 7]  # no image before it is of this type
    # Row 1 is there before and after with the same price.
    assert [r["id"] for r in table.net(columns=["id", "price"]).rows()] == [2, 4, 5]
    assert len(table.transactions().rows()) == 7
    for ask in (table.net, table.current, lambda: table.changes(16, 17)):
        with pytest.raises(
            UnsupportedError, match=f"the type of column name changed to int at change_seq {seq(17)}"
        ):
            ask()


def test_a_table_that_was_created_again_is_another_one(home: TaskHome) -> None:
    """Its new baseline has not come yet; rows of the old one are not its."""
    home.layout(17, COLUMNS, relid=2)
    home.store((17, "I", item(1, "new")))
    table = tailrace.open(home.file).table(ITEM)
    for ask in (table.current, lambda: table.diff(16)):
        with pytest.raises(UnsupportedError, match="item was dropped and created again"):
            ask()
    assert rows(table.as_of(16)) == [(1, "c"), (4, "a"), (5, "a")]


def test_a_version_with_a_new_layout_is_not_one_of_before(home: TaskHome) -> None:
    """The target gets another column under the same name and type, before the first changes that have it."""
    key, _, price = COLUMNS
    columns = (key, Column("name", 4, "text", "text", "string"), price)
    path = home.task.target_path(ITEM)
    empty = pa.Table.from_pylist([item(1, None), item(3, None)], schema_of(columns))
    part = lake.Part(path, empty.schema)
    part.write(empty)
    files = [added] if (added := part.close()) else []
    info = mark(Relation(1, "shop", "item", "d", columns))
    lake.overwrite(path, files, schema=empty.schema, progress={}, only_after=lake.version(path), info=info)
    assert rows(tailrace.open(home.file).table(ITEM).as_of(13)) == [(1, "b"), (3, "a")]


def test_a_range_without_changes_has_the_layout_at_its_end(home: TaskHome) -> None:
    """Whatever came later: the rows of before, as of the same place, have that layout, too."""
    home.store((21, "U", item(1, "z")))
    key, _, price = COLUMNS
    number = Column("name", 4, "integer", "int4", "int")
    for later, columns in (
        (22, (key, Column("title", 2, "text", "text", "string"), price)),
        (24, (key, number)),
    ):
        home.layout(later, columns)
        ensure(home.task.changes_path(ITEM), Relation(1, "shop", "item", "d", columns), later)
    home.store((24, "I", {"id": 9, "name": 7}))
    table = tailrace.open(home.file).table(ITEM)
    base = table.as_of(16).table()
    for low, high in ((17, 20), (seq(17), seq(20)), (position(17), position(20)), (at(17), at(20))):
        found = table.history(low, high, base=base, names="then")
        assert rows(found) == [(1, "c"), (4, "a"), (5, "a")]
        assert table.net(low, high, base=base, names="then").schema.names[:3] == ["id", "name", "price"]
        # The last name of a column that is gone.
        assert table.net(low, high, base=base).schema.names[:3] == ["id", "title", "price"]
        assert table.chain({"id": 1}, low, high, base=base).rows() == []
    assert table.pairs(17, 20, base=base).rows() == table.net_changes(17, 20, base=base).rows() == []
    assert table.changes(22, 23).schema.names[-3:] == ["id", "price", "title"]
    assert table.changes(25).schema.names[-2:] == ["id", "name"]
    assert table.changes(25).schema.field("name").type == pa.int32()


def test_the_difference_of_places_without_changes_in_between_has_the_columns_of_their_rows(
    home: TaskHome,
) -> None:
    """Columns that are gone by then are in the change table still."""
    columns = (COLUMNS[0], Column("name", 4, "integer", "int4", "int"))
    home.layout(17, columns)
    ensure(home.task.changes_path(ITEM), Relation(1, "shop", "item", "d", columns), 17)
    home.store((17, "I", {"id": 9, "name": 7}))
    home.applied([{"id": 9, "name": 7}], 17)
    home.store((21, "U", {"id": 9, "name": 8}))
    table = tailrace.open(home.file).table(ITEM)
    assert table.diff(17, 20).schema.names[:3] == ["id", "name", "_absent"]
    assert table.diff(17, 20).schema == table.diff(17).schema
    assert table.diff(15, 15).schema.names[:4] == ["id", "name", "price", "_absent"]


def test_a_column_that_became_a_wider_one_is_answered_on_both_sides_and_over_them(home: TaskHome) -> None:
    """The target's newest version is of before."""
    wide = (COLUMNS[0], COLUMNS[1], Column("price", 3, "numeric(12,3)", "numeric", "decimal(12,3)"))
    home.layout(17, wide)
    ensure(home.task.changes_path(ITEM), Relation(1, "shop", "item", "d", wide), 17)
    home.store((17, "U", item(1, "c", "123456789.125")), (18, "D", item(4)))
    table = tailrace.open(home.file).table(ITEM)
    old = [(1, "c", Decimal("1.00")), (4, "a", Decimal("1.00")), (5, "a", Decimal("1.00"))]
    new = [(1, "c", Decimal("123456789.125")), *old[2:]]
    assert sorted(map(values, table.as_of(16).rows())) == old
    assert table.as_of(16).schema.field("price").type == pa.decimal128(8, 2)
    for found in (table.as_of(18), table.current()):
        assert found.schema.field("price").type == pa.decimal128(12, 3)
        assert sorted(map(values, found.rows())) == new
    told = [(r["_change_type"], values(r)) for r in table.diff(16, 18).rows()]
    assert told == [("update_preimage", old[0]), ("update_postimage", new[0]), ("delete", old[1])]
    home.applied([dict(zip(("id", "name", "price"), row, strict=True)) for row in new], 18)
    table = tailrace.open(home.file).table(ITEM)
    assert table.as_of(16).table().num_rows == 3
    assert [(r["_change_type"], values(r)) for r in table.diff(16).rows()] == told


def _altered(home: TaskHome, number: int, *columns: Column) -> None:
    """DDL, and the first change after it: a delete of row 1."""
    home.layout(number, columns)
    path = home.task.changes_path(ITEM)
    ensure(path, Relation(1, "shop", "item", "d", columns), number)
    home.store((number, "D", {"id": 1}))


def _texts(tmp_path: Path) -> tuple[TaskHome, tuple[Column, ...]]:
    """A table with two columns of text, two rows, and a change."""
    key = COLUMNS[0]
    columns = (key, Column("p", 2, "text", "text", "string"), Column("q", 3, "text", "text", "string"))
    home = TaskHome(tmp_path, columns=columns)
    home.baseline([{"id": 1, "p": "P1", "q": "Q1"}, {"id": 2, "p": "P2", "q": "Q2"}], after=10)
    home.store((11, "I", {"id": 3, "p": "P3", "q": "Q3"}))
    return home, columns


def test_rows_of_before_tell_which_columns_theirs_are(tmp_path: Path) -> None:
    """Two columns got each other's name, between the rows of before and the range."""
    home, (key, p, q) = _texts(tmp_path)
    base = tailrace.open(home.file).table(ITEM).as_of(11).table()
    _altered(home, 12, key, replace(p, name="q"), replace(q, name="p"))
    table = tailrace.open(home.file).table(ITEM)
    gone = {"id": 1, "p": "Q1", "q": "P1"}
    assert [{n: r[n] for n in gone} for r in table.net(12, base=base).rows()] == [gone]
    versions = sorted((r["id"], r["p"], r["is_current"]) for r in table.history(12, base=base).rows())
    assert versions == [(1, "Q1", False), (2, "Q2", True), (3, "Q3", True)]
    kept = table.keep_history(str(tmp_path / "kept"), base=base, start=12)
    assert sorted((r["id"], r["p"]) for r in kept.versions().rows()) == [(1, "Q1"), (2, "Q2"), (3, "Q3")]
    # They tell it when columns are chosen, renamed by somebody, or written and read.
    pq.write_table(base.select(["q", "id", "p"]).rename_columns(["a", "id", "b"]), tmp_path / "base.parquet")
    again = pq.read_table(tmp_path / "base.parquet")
    assert [{n: r[n] for n in gone} for r in table.net(12, base=again).rows()] == [gone]
    # Without it names are all there is.
    plain = pa.table({n: base[n] for n in base.column_names})
    assert table.net(12, base=plain).rows()[0]["p"] == "P1"


def test_rows_of_before_lack_a_column_that_was_added_later(tmp_path: Path) -> None:
    """It has a name of theirs, or a default: as within a range, that is refused."""
    home, (key, p, q) = _texts(tmp_path)
    base = tailrace.open(home.file).table(ITEM).current().table()
    _altered(home, 12, key, q)
    _altered(home, 13, key, q, replace(p, attnum=4))
    table = tailrace.open(home.file).table(ITEM)
    for ask in (table.net, table.history, table.pairs):
        with pytest.raises(
            UnsupportedError, match="the column p was replaced by another column of that name"
        ):
            ask(13, base=base)
    assert [r["q"] for r in table.net(13, base=base, columns=["q"]).rows()] == ["Q1"]
    _altered(home, 14, key, replace(q, name="title"))
    table = tailrace.open(home.file).table(ITEM)
    assert [r["title"] for r in table.net(14, base=base).rows()] == ["Q1"]
    _altered(home, 15, key, replace(q, name="title"), Column("n", 5, "int", "int4", "int"))
    table = tailrace.open(home.file).table(ITEM)
    assert [(r["title"], r["n"]) for r in table.net(15, base=base).rows()] == [("Q1", None)]
    _altered(
        home, 16, key, Column("n", 5, "int", "int4", "int"), Column("m", 6, "int", "int4", "int", missing="7")
    )
    _altered(home, 17, key, Column("m", 6, "int", "int4", "int", missing="7"))
    table = tailrace.open(home.file).table(ITEM)
    with pytest.raises(UnsupportedError, match=f"m was added with a default at change_seq {seq(16)}"):
        table.net(17, base=base)


def test_rows_of_before_another_type_or_another_table_are_refused(tmp_path: Path) -> None:
    home, (key, p, q) = _texts(tmp_path)
    base = tailrace.open(home.file).table(ITEM).as_of(11).table()
    _altered(home, 12, key, Column("p", 2, "integer", "int4", "int"), q)
    table = tailrace.open(home.file).table(ITEM)
    with pytest.raises(
        UnsupportedError, match="the type of column p changed to int between the base and the changes"
    ):
        table.net(12, base=base)
    assert [r["q"] for r in table.net(12, base=base, columns=["q"]).rows()] == ["Q1"]
    home.layout(13, (key, p, q), relid=2)
    home.store((13, "D", {"id": 1}))
    with pytest.raises(UnsupportedError, match="dropped and created again between the base and the changes"):
        tailrace.open(home.file).table(ITEM).net(13, base=base, columns=["q"])


def test_rows_of_before_may_lack_no_column_of_a_kept_history(home: TaskHome, tmp_path: Path) -> None:
    table = tailrace.open(home.file).table(ITEM)
    base = table.as_of(10).table()
    assert base.schema.field("price").metadata
    with pytest.raises(ConfigError, match="base has no column price"):
        table.keep_history(str(tmp_path / "kept"), base=base.select(["id", "name"]))
    on_top = table.as_of(11, base=base).table()
    assert on_top.schema.field("price").metadata


def test_a_table_without_a_change_has_the_layout_of_its_baseline(tmp_path: Path) -> None:
    home = TaskHome(tmp_path, met=False)
    home.baseline([item(1), item(2)], after=10)
    table = tailrace.open(home.file).table(ITEM)
    assert (table.columns, table.key) == (["id", "name", "price"], ("id",))
    base = pa.Table.from_pylist([item(1), item(2)], schema_of(COLUMNS))
    assert rows(table.as_of(None, base=base)) == rows(table.current()) == [(1, "a"), (2, "a")]
    for found in (
        table.history(base=base),
        table.chain({"id": 1}),
        table.rebuild(),
        table.net(),
        table.pairs(),
    ):
        assert [r for r in found.rows() if r.get("__END_AT")] == []
    assert table.history(base=base).table().num_rows == 2
    assert rows(table.keep_history(str(tmp_path / "kept"), base=base).current()) == [(1, "a"), (2, "a")]
    home.layout(11, COLUMNS)
    home.store((11, "U", item(2, "b")))
    again = tailrace.open(home.file).table(ITEM)
    assert rows(again.keep_history(str(tmp_path / "kept")).current()) == [(1, "a"), (2, "b")]
    assert rows(again.as_of(None, base=base)) == rows(again.current()) == [(1, "a"), (2, "b")]
