"""Column numbers and layouts, without a server."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.change import Column, Relation
from tailrace.sources import pg_slot
from tailrace.sources.pg_layout import LiveColumn, LiveTable, TypeInfo, column_numbers, layout
from tailrace.wire.pgmessages import RelationColumn, RelationMessage

pytestmark = pytest.mark.unit

INT, TEXT, NUM = 23, 25, 1700
TYPES = {
    (INT, -1): TypeInfo("integer", "int4", -1),
    (TEXT, -1): TypeInfo("text", "text", -1),
    (NUM, 786438): TypeInfo("numeric(12,2)", "numeric", 786438),
}


def message(
    *columns: tuple[str, int], identity: str = "d", key: tuple[str, ...] = ("id",)
) -> RelationMessage:
    typmod = {NUM: 786438}
    cols = tuple(RelationColumn(int(n in key), n, t, typmod.get(t, -1)) for n, t in columns)
    return RelationMessage(7, "s", "t", identity, cols)


def live(*columns: tuple[int, str, int], pk: tuple[int, ...] = (1,)) -> LiveTable:
    cols = tuple(LiveColumn(a, n, t, -1, dropped=not n) for a, n, t in columns)
    return LiveTable(7, "s", "t", "d", cols, frozenset(pk))


def before(*columns: tuple[int, str, str]) -> Relation:
    cols = tuple(Column(n, a, t, t, "string", key=a == 1) for a, n, t in columns)
    return Relation(7, "s", "t", "d", cols)


CASES = [
    ("nothing changed", [("id", INT), ("a", TEXT)], [(1, "id", INT), (2, "a", TEXT)], None, [1, 2]),
    ("a column was dropped before", [("id", INT), ("b", TEXT)], [(1, "id", INT), (2, "", 0), (3, "b", TEXT)], None, [1, 3]),
    ("renamed, catalog in step", [("id", INT), ("b", TEXT)], [(1, "id", INT), (2, "b", TEXT)], [(1, "id", "integer"), (2, "a", "text")], [1, 2]),
    ("renamed since: the layout before knows", [("id", INT), ("a", TEXT)], [(1, "id", INT), (2, "b", TEXT)], [(1, "id", "integer"), (2, "a", "text")], [1, 2]),
    ("renamed twice since", [("id", INT), ("b", TEXT), ("z", INT)], [(1, "id", INT), (2, "c", TEXT), (3, "z", INT)], [(1, "id", "integer"), (2, "a", "text"), (3, "z", "integer")], [1, 2, 3]),
    ("added and renamed since, no layout knows", [("id", INT), ("x", TEXT)], [(1, "id", INT), (2, "y", TEXT)], [(1, "id", "integer")], [1, 2]),
    ("added and dropped since", [("id", INT), ("x", TEXT)], [(1, "id", INT), (2, "", 0)], [(1, "id", "integer")], [1, 2]),
    ("dropped and made anew under its name", [("id", INT), ("a", TEXT), ("b", INT)], [(1, "id", INT), (2, "", 0), (3, "b", INT), (4, "a", INT)], [(1, "id", "integer"), (2, "a", "text"), (3, "b", "integer")], [1, 2, 3]),
    ("names swapped since", [("id", INT), ("a", TEXT), ("b", TEXT)], [(1, "id", INT), (2, "b", TEXT), (3, "a", TEXT)], [(1, "id", "integer"), (2, "a", "text"), (3, "b", "text")], [1, 2, 3]),
    ("the type tells two unknown names apart", [("id", INT), ("x", TEXT), ("y", INT)], [(1, "id", INT), (2, "p", TEXT), (3, "q", INT)], None, [1, 2, 3]),
    ("the table is gone", [("id", INT), ("a", TEXT)], [], None, [1, 2]),
    ("the table is gone, the layout before knows", [("id", INT), ("a", TEXT)], [], [(1, "id", "integer"), (5, "a", "text")], [1, 5]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "now", "earlier", "want"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_column_numbers(
    columns: list[tuple[str, int]],
    now: list[tuple[int, str, int]],
    earlier: list[tuple[int, str, str]] | None,
    want: list[int],
) -> None:
    previous = before(*earlier) if earlier else None
    assert column_numbers(message(*columns).columns, live(*now).columns, TYPES, previous) == want


@given(st.data())
@settings(max_examples=200)
def test_numbers_rise_and_are_right_when_one_step_lies_between(data: st.DataObject) -> None:
    """A table, one rename, drop or add the stream does not know of yet: the numbers are those of before."""
    count = data.draw(st.integers(1, 6))
    numbers = sorted(data.draw(st.sets(st.integers(1, 12), min_size=count, max_size=count)))
    kinds = [data.draw(st.sampled_from([INT, TEXT])) for _ in numbers]
    table = [(n, f"c{n}", t) for n, t in zip(numbers, kinds, strict=True)]
    previous = before(*((n, name, TYPES[(t, -1)].source_type) for n, name, t in table))
    now, at = list(table), data.draw(st.integers(0, count - 1))
    step = data.draw(st.sampled_from(["rename", "drop", "add"]))
    if step == "rename":
        now[at] = (now[at][0], "new", now[at][2])
    elif step == "drop":
        now[at] = (now[at][0], "", 0)
    else:
        now.append((13, "new", INT))
    columns = message(*((name, t) for _, name, t in table)).columns
    assert column_numbers(columns, live(*now).columns, TYPES, previous) == numbers
    assert column_numbers(columns, live(*now).columns, TYPES, None) == sorted(
        column_numbers(columns, live(*now).columns, TYPES, None)
    )


def test_layout_takes_types_key_and_override() -> None:
    said = message(("id", INT), ("amount", NUM), ("note", TEXT))
    now = live((1, "id", INT), (2, "amount", NUM), (4, "note", TEXT))
    made = layout(said, now, TYPES, overrides={"s.t.amount": "string"})
    assert made.columns == (
        Column("id", 1, "integer", "int4", "int", key=True),
        Column("amount", 2, "numeric(12,2)", "numeric", "string"),
        Column("note", 4, "text", "text", "string"),
    )
    assert layout(said, now, TYPES).columns[1].type == "decimal(12,2)"


@pytest.mark.parametrize(
    ("identity", "flagged", "pk", "key"),
    [
        ("d", ("id",), (1,), ["id"]),
        ("d", (), (), []),
        ("i", ("a",), (1,), ["a"]),
        ("f", ("id", "a"), (1,), ["id"]),
        ("f", ("id", "a"), (), []),
        ("n", (), (1,), ["id"]),
        ("f", ("id", "a"), (1, 3), []),  # a key column that is not published: no key
    ],
)
def test_row_key(identity: str, flagged: tuple[str, ...], pk: tuple[int, ...], key: list[str]) -> None:
    said = message(("id", INT), ("a", TEXT), identity=identity, key=flagged)
    now = live((1, "id", INT), (2, "a", TEXT), (3, "hidden", INT), pk=pk)
    assert layout(said, now, TYPES).key == key


def test_missing_value_stays_when_the_table_was_rewritten() -> None:
    said = message(("id", INT), ("a", TEXT))
    fast = LiveTable(7, "s", "t", "d", (LiveColumn(1, "id", INT, -1), LiveColumn(2, "a", TEXT, -1, "x")))
    first = layout(said, fast, TYPES)
    assert first.column("a").missing == "x"
    rewritten = live((1, "id", INT), (2, "a", TEXT))
    assert layout(said, rewritten, TYPES, first) == first
    assert layout(said, rewritten, TYPES).column("a").missing is None


def test_a_type_that_is_gone_is_remembered() -> None:
    mood = {**TYPES, (9999, -1): TypeInfo("s.mood", "enum", -1)}
    said = message(("id", INT), ("m", 9999))
    now = live((1, "id", INT), (2, "m", 9999))
    first = layout(said, now, mood)
    assert layout(said, now, TYPES, first) == first
    assert layout(said, now, TYPES).column("m").source_type == "unknown"


@pytest.mark.parametrize(
    ("task", "name"),
    [("shop", "tailrace_shop"), ("Shop-EU 1", "tailrace_shop_eu_1"), ("x" * 80, "tailrace_" + "x" * 54)],
)
def test_names_of_slot_and_publication(task: str, name: str) -> None:
    assert pg_slot.name_of(task) == name
