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


# What the stream says, what the catalog says now, what the layout before said, the numbers.
# i is integer, t is text, - is dropped.
CASES = {
    "nothing changed": ("id i, a t", "1 id i, 2 a t", "", [1, 2]),
    "a column was dropped before": ("id i, b t", "1 id i, 2 -, 3 b t", "", [1, 3]),
    "renamed, catalog in step": ("id i, b t", "1 id i, 2 b t", "1 id i, 2 a t", [1, 2]),
    "renamed since: the layout before knows": ("id i, a t", "1 id i, 2 b t", "1 id i, 2 a t", [1, 2]),
    "renamed twice since": ("id i, b t, z i", "1 id i, 2 c t, 3 z i", "1 id i, 2 a t, 3 z i", [1, 2, 3]),
    "renamed, its name given away": ("id i, a t", "1 id i, 2 b t, 3 a t", "1 id i, 2 a t", [1, 2]),
    "added and renamed since": ("id i, x t", "1 id i, 2 y t", "1 id i", [1, 2]),
    "added and dropped since": ("id i, x t", "1 id i, 2 -", "1 id i", [1, 2]),
    "dropped and made anew since": (
        "id i, a t, b i",
        "1 id i, 2 -, 3 b i, 4 a i",
        "1 id i, 2 a t, 3 b i",
        [1, 2, 3],
    ),
    "dropped and made anew, in step": ("id i, a t", "1 id i, 2 -, 3 a t", "1 id i, 2 a t", [1, 3]),
    "names swapped since": ("id i, a t, b t", "1 id i, 2 b t, 3 a t", "1 id i, 2 a t, 3 b t", [1, 2, 3]),
    "the type tells unknown names apart": ("id i, x t, y i", "1 id i, 2 p t, 3 q i", "", [1, 2, 3]),
    "the table is gone": ("id i, a t", "", "", [1, 2]),
    "the table is gone, the layout before knows": ("id i, a t", "", "1 id i, 5 a t", [1, 5]),
}


def words(text: str) -> list[list[str]]:
    return [each.split() for each in text.split(", ") if each]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_column_numbers(case: tuple[str, str, str, list[int]]) -> None:
    said, now, earlier, want = case
    oid = {"i": INT, "t": TEXT}
    columns = message(*((name, oid[kind]) for name, kind in words(said))).columns
    catalog = live(*((int(n), *((x[0], oid[x[1]]) if len(x) == 2 else ("", 0))) for n, *x in words(now)))
    name_of = {"i": "integer", "t": "text"}
    previous = before(*((int(n), name, name_of[kind]) for n, name, kind in words(earlier)))
    assert column_numbers(columns, catalog.columns, TYPES, previous if earlier else None) == want


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
