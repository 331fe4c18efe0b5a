"""Column numbers and layouts, without a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.errors import ConfigError
from tailrace.model.change import Column, Relation
from tailrace.sources.postgresql import layout as pg_layout
from tailrace.sources.postgresql import slot
from tailrace.sources.postgresql.catalog import tables
from tailrace.sources.postgresql.column_identity import (
    Bracket,
    Evidence,
    LiveColumn,
    LiveTable,
    Moment,
    identify,
)
from tailrace.sources.postgresql.layout import TypeInfo, Types
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
    there = {a: LiveColumn(a, n, t, -1, dropped=not n) for a, n, t in columns}
    cols = tuple(there.get(a, LiveColumn(a, "", 0, -1, dropped=True)) for a in range(1, max(there) + 1))
    return LiveTable(7, "s", "t", "d", cols, frozenset(pk))


def layout(
    said: RelationMessage, now: LiveTable, types: Types, previous: Relation | None = None, **more: Any
) -> Relation:
    """The layout of a message while nothing changes."""
    return pg_layout.layout(said, Moment(0, 7), Bracket(now.look, now), types, previous, **more)


# What the stream says, the catalog before (empty: nobody looked), the catalog after, the numbers.
# i is integer, t is text, - is dropped; * the row was written anew though it says the same, ! the table was.
CASES = {
    "nothing changed": ("id i, a t", "1 id i, 2 a t", "1 id i, 2 a t", [1, 2]),
    "nobody looked before": ("id i, a t", "", "1 id i, 2 a t", [1, 2]),
    "a column was dropped before": ("id i, b t", "1 id i, 2 -, 3 b t", "1 id i, 2 -, 3 b t", [1, 3]),
    "added": ("id i, a t", "1 id i", "1 id i, 2 a t", [1, 2]),
    "renamed": ("id i, b t", "1 id i, 2 a t", "1 id i, 2 b t", [1, 2]),
    "renamed later": ("id i, a t", "1 id i, 2 a t", "1 id i, 2 b t", [1, 2]),
    "renamed twice": ("id i, b t, z i", "1 id i, 2 a t, 3 z i", "1 id i, 2 c t, 3 z i", [1, 2, 3]),
    "renamed later, its name given away": ("id i, a t", "1 id i, 2 a t", "1 id i, 2 b t, 3 a t", [1, 2]),
    "names swapped later": ("id i, a t, b t", "1 id i, 2 a t, 3 b t", "1 id i, 2 b t, 3 a t", [1, 2, 3]),
    "dropped later": ("id i, a i, b t", "1 id i, 2 a i, 3 b t", "1 id i, 2 -i, 3 b t", [1, 2, 3]),
    "added and dropped later": ("id i, x t", "1 id i", "1 id i, 2 -t", [1, 2]),
    "made again, or not yet": ("id i, a t", "1 id i, 2 a t", "1 id i, 2 -t, 3 a t", [1, None]),
    "made again with another type": ("id i, a i", "1 id i, 2 a t", "1 id i, 2 -t, 3 a i", [1, 3]),
    "made again later, with another type": ("id i, a t", "1 id i, 2 a t", "1 id i, 2 -t, 3 a i", [1, 2]),
    "a rewrite may have changed types": ("id i, a i", "1 id i, 2 a t", "! 1 id i, 2 -t, 3 a i", [1, None]),
    "one of two was dropped by then": (
        "id i, b t, z t",
        "1 id i, 2 a t, 3 b t, 4 z t",
        "1 id i, 2 -t, 3 -t, 4 z t",
        [1, None, 4],
    ),
    "the same name all the time, it seems": ("id i, a t", "1 id i, 2 a t", "1 id i, 2 a t *, 3 -t", [1, 2]),
}


def words(text: str) -> list[list[str]]:
    return [each.split() for each in text.removeprefix("! ").split(", ") if each]


def catalog(text: str) -> LiveTable:
    oid, form = {"i": INT, "t": TEXT}, {"i": "4vi", "t": "-1i", "": "-1i"}
    made = []
    for n, name, *kind in words(text):
        if name.startswith("-"):
            made.append(LiveColumn(int(n), "", 0, -1, dropped=True, stamp=9, physical=form[name[1:]]))
        else:
            said = "".join([name, *kind])
            stamp = int.from_bytes(said.encode(), "big")
            made.append(LiveColumn(int(n), name, oid[kind[0]], -1, stamp=stamp, physical=form[kind[0]]))
    return LiveTable(7, "s", "t", "d", tuple(made), file=2 if text.startswith("!") else 1)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_which_column_it_is(case: tuple[str, str, str, list[int | None]]) -> None:
    said, earlier, now, want = case
    oid = {"i": INT, "t": TEXT}
    columns = message(*((name, oid[kind]) for name, kind in words(said))).columns
    before = catalog(earlier).look if earlier else None
    found = identify(columns, {INT: "4vi", TEXT: "-1i"}, before, catalog(now))
    assert list(found.numbers) == want


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


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        (10, 10, ["id"]),  # the same constraint all the time
        (0, 10, []),  # added before the change, or after it
        (9, 10, []),  # moved
        (0, 0, []),
    ],
)
def test_row_key_under_full_is_the_one_that_looks_prove(before: int, after: int, key: list[str]) -> None:
    said = message(("id", INT), ("a", TEXT), identity="f", key=("id", "a"))
    now = replace(live((1, "id", INT), (2, "a", TEXT), pk=(1,) if after else ()), key_id=after)
    previous = layout(said, now, TYPES)
    looks = Bracket(replace(now.look, key=before), now)
    made = pg_layout.layout(said, Moment(0, 7), looks, TYPES, previous)
    assert made.key == key
    assert Evidence.parse(made.evidence).key_open == (not key and after > 0)


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
    [
        ("shop", "tailrace_shop"),
        ("Shop-EU 1", "tailrace_shop_eu_1_80116751"),
        ("x" * 80, "tailrace_" + "x" * 45 + "_d929cdee"),
    ],
)
def test_names_of_slot_and_publication(task: str, name: str) -> None:
    assert slot.name_of(task) == name


def test_a_name_that_is_not_there_is_answered_with_tables_that_can_be_captured() -> None:
    class Session:
        """Tells of a table, its partition and a view over it."""

        def execute(self, sql: str, *_: object) -> Session:
            return self

        def fetchall(self) -> list[tuple[str, bool]]:
            return [("shop.orders", True), ("shop.orders_1", False), ("shop.orders_v", False)]

        def fetchone(self) -> None:
            return None

    with pytest.raises(ConfigError) as caught:
        tables(Session(), ["shop.order_1"])  # type: ignore[arg-type]
    assert caught.value.hint == "did you mean shop.orders?"
