"""DDL: layouts in, kinds of change and the target's layout out."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.apply.baseline_staging import Staging
from tailrace.apply.ddl import Ddl, between, decide, followed, projection
from tailrace.apply.mapping.table_map import TableMap
from tailrace.apply.route import Layouts, Route, Routes
from tailrace.capture.snapshot_sink import DeltaLanding, StagedLanding
from tailrace.errors import ApplyError, BaselineNeededError
from tailrace.lake import delta as lake
from tailrace.lake.log import Layout
from tailrace.model.change import ChangeTable, Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.model.sequence import make
from tailrace.sources.postgresql.layout import UNKNOWN_VALUE
from tailrace.state import ddl as kept
from tailrace.state.ddl import Key, decisions, record_decisions
from tailrace.validate.target_shape import TargetShape

pytestmark = pytest.mark.unit

ID = Column("id", 1, "integer", "int4", "int", key=True)
V = Column("v", 2, "text", "text", "string")
N = Column("n", 3, "integer", "int4", "int")
BIG = replace(N, source_type="bigint", kind="int8", type="bigint")
TEXT = replace(N, source_type="text", kind="text", type="string")
BEFORE = Relation(7, "s", "t", "d", (ID, V, N))


def after(*columns: Column) -> Relation:
    return BEFORE.with_columns(columns)


def shape(relation: Relation) -> list[tuple[str, str]]:
    return [(c.name, c.type) for c in relation.columns]


def follow(new: Relation, target: Relation = BEFORE, old: Relation = BEFORE, **policies: str) -> Relation:
    return followed(target, new, decide(between(old, new), policies))


@pytest.mark.parametrize(
    ("new", "kinds"),
    [
        (after(ID, V, N, Column("x", 4, "text", "text", "string")), ["add"]),
        (after(ID, N), ["drop"]),
        (after(ID, replace(V, name="w"), N), ["rename"]),
        (after(ID, V, BIG), ["widen"]),
        (after(ID, V, TEXT), ["retype"]),
        (after(ID, V, replace(BIG, name="m")), ["rename", "widen"]),
        (after(ID, replace(V, key=True), N), ["rekey"]),
        (after(ID, replace(V, source_type="varchar(9)"), N), ["widen"]),
        (after(ID, replace(V, attnum=9), N), ["drop", "add"]),
        (after(V, N), ["drop", "rekey"]),
        (BEFORE, []),
    ],
)
def test_kinds_of_change(new: Relation, kinds: list[str]) -> None:
    assert [d.kind for d in between(BEFORE, new)] == kinds


def test_a_key_column_that_is_kept_when_it_is_dropped_is_no_key_any_more() -> None:
    """No new row has a value of it."""
    assert follow(after(V, N), drop="ignore").key == []
    assert [c.name for c in follow(after(V, N), drop="ignore").columns] == ["v", "n", "id"]


def test_the_last_column_is_not_dropped() -> None:
    free = after(replace(N, key=False))
    with pytest.raises(BaselineNeededError, match="the source dropped the last one") as said:
        follow(after(), free, free)
    assert said.value.where == "s.t"
    assert said.value.hint == (
        "once the source's table has a column, `tailrace resync` it, or leave the table out "
        "(`source: {exclude: [s.t]}`)"
    )
    assert shape(follow(after(), free, free, drop="ignore")) == [("n", "int")]
    with pytest.raises(BaselineNeededError, match="the target has had no columns"):
        follow(free, after(), after())  # made by an earlier release: rows of before are not there


def test_without_a_key_no_row_is_found_that_has_a_column_which_its_changes_lack() -> None:
    free = [replace(c, key=False) for c in (ID, V, N)]
    target = follow(after(*free[:2]), after(*free), after(*free), drop="ignore")
    step = projection(after(*free[:2]), target)
    assert step is not None
    changes = ChangeTable(None, [], [])  # type: ignore[arg-type]
    with pytest.raises(BaselineNeededError, match="'n' stayed when a DDL was ignored") as said:
        Route(target, target, (step,)).through(changes, {"I": 1, "D": 1})
    assert said.value.where == "s.t"


def test_what_is_applied_and_what_is_ignored() -> None:
    new = after(ID, replace(BIG, name="m"), Column("x", 4, "text", "text", "string"))
    assert shape(follow(new)) == [("id", "int"), ("m", "bigint"), ("x", "string")]
    ignored = follow(new, add="ignore", drop="ignore", rename="ignore", widen="ignore")
    assert shape(ignored) == [("id", "int"), ("n", "int"), ("v", "string")]
    assert shape(follow(new, rename="ignore")) == [("id", "int"), ("n", "bigint"), ("x", "string")]


def test_what_was_ignored_stays_ignored() -> None:
    renamed = after(ID, replace(V, name="w"), N, Column("x", 4, "text", "text", "string"))
    kept = follow(renamed, rename="ignore", add="ignore")
    later = renamed.with_columns([*renamed.columns, Column("y", 5, "text", "text", "string")])
    assert shape(follow(later, kept, renamed)) == [
        ("id", "int"),
        ("v", "string"),
        ("n", "int"),
        ("y", "string"),
    ]
    without = follow(after(ID, V), drop="ignore")
    assert shape(follow(after(ID, V), without, after(ID, V))) == [
        ("id", "int"),
        ("v", "string"),
        ("n", "int"),
    ]


def test_a_kept_column_and_a_new_one_of_its_name_are_refused() -> None:
    with pytest.raises(ApplyError, match="two columns 'n'"):
        follow(after(ID, V, replace(N, attnum=9)), drop="ignore")


X = Column("x", 4, "integer", "int4", "int")


@pytest.mark.parametrize("key", [(ID, X), (X,)], ids=["wider", "another"])
def test_a_key_with_a_column_that_was_ignored_needs_a_new_baseline(key: tuple[Column, ...]) -> None:
    """By what is left of the key, rows that differ in the column would be one row."""
    added = after(ID, V, N, X)
    target = follow(added, add="ignore")
    rekeyed = added.with_columns([replace(c, key=c in key) for c in added.columns])
    with pytest.raises(
        BaselineNeededError, match="the row key now has 'x', which the target does not have"
    ) as said:
        follow(rekeyed, target, added)
    assert said.value.where == "s.t"
    with pytest.raises(BaselineNeededError, match="the row key now has 'x'"):
        follow(rekeyed, add="ignore")  # both in one statement
    assert follow(rekeyed, target, added, rekey="ignore").key == ["id"]


def test_a_key_column_that_stays_when_it_is_dropped_is_in_no_new_key() -> None:
    both = after(ID, replace(V, key=True), N)
    assert follow(after(ID, N), both, both, drop="ignore").key == ["id", "v"]
    other = after(replace(ID, key=False), replace(N, key=True))
    assert follow(other, both, both, drop="ignore").key == ["n"]


def test_projections_are_by_number() -> None:
    assert projection(BEFORE, BEFORE) is None
    target = follow(after(ID, replace(V, name="w")), rename="ignore", drop="ignore")
    made = projection(after(ID, replace(V, name="w")), target)
    assert made is not None
    assert [(p.column.name, p.source, p.absent) for p in made.parts] == [
        ("id", "id", False), ("v", "w", False), ("n", None, True),
    ]  # fmt: skip


W = replace(V, name="w")


RENAMED = after(ID, W, N)


def test_a_change_says_what_it_is() -> None:
    assert str(Ddl("add", 3, None, N)) == "column 'n' was added"
    assert str(Ddl("retype", 3, N, TEXT)) == "column 'n' changed from integer to text"
    renamed = replace(N, name="m", type="string")
    assert str(Ddl("retype", 3, N, renamed)) == (
        "column 'm' (integer at the source) changed from int to string here: it was called 'n' before, and `types` "
        "goes by names"
    )


def test_the_target_of_several_sources_loses_the_rows_of_one(tmp_path: Path) -> None:
    shared, other = f"{tmp_path}/all.t", f"{tmp_path}/eu.own"
    rows = pa.table({"id": [1, 2, 1], "site": ["e'u", "us", "us"]})
    lake.append(shared, rows)
    lake.append(other, rows)
    staging = Staging(f"{tmp_path}/staging")
    StagedLanding(staging, "x", DeltaLanding(shared, own={"site": "us"})).drop("us.t")
    assert lake.read(shared).to_pylist() == [{"id": 1, "site": "e'u"}]
    StagedLanding(staging, "x", DeltaLanding(shared, own={"site": "e'u"})).drop("eu.t")
    assert lake.read(shared).num_rows == 0
    StagedLanding(staging, "x", DeltaLanding(other)).drop("eu.own")
    assert not lake.exists(other)


@pytest.mark.parametrize(
    ("new", "policies", "whole"),
    [
        (after(ID, V, N, replace(N, name="x", attnum=4)), {"add": "ignore"}, True),
        (after(ID, replace(V, name="w"), N), {"rename": "ignore"}, True),
        (after(ID, N), {"drop": "apply"}, True),
        (after(ID, N), {"drop": "ignore"}, False),
        (after(ID, V, BIG), {"widen": "ignore"}, False),
        (after(ID, replace(V, key=True), N), {"rekey": "ignore"}, False),
    ],
)
def test_a_repair_needs_a_source_that_tells_all_the_target_has(
    new: Relation, policies: dict[str, str], whole: bool
) -> None:
    assert TargetShape(new, follow(new, **policies), None).complete is whole


@pytest.mark.parametrize(
    ("policy", "halts"), [("apply", "suspend"), ("suspend", "suspend"), ("stop", "stop"), ("ignore", None)]
)
def test_columns_of_a_target_that_others_may_feed_stay(
    tmp_path: Path, policy: str, halts: str | None
) -> None:
    def found(said: str, progress: int = 3) -> Layouts:
        own = Routes(
            None,
            lambda _: TableMap("s.t", "s.all", constants={"site": "eu"}),
            lambda _: {"add": said},
            str(tmp_path / "ddl_decisions"),
            str(tmp_path / "orders"),
        )
        return own.layouts(
            "s.t",
            [Layout(BEFORE, bytes(20), make(0, 1)), Layout(new, bytes(20), make(0, 5))],
            None,
            ChangeRange(progress, 9),
        )

    new = after(ID, V, N, Column("x", 4, "text", "text", "string"))
    halt = found(policy).stop
    assert (halt and halt.policy) == halts
    if halt is not None:
        assert halt.number == 5
        changes = ": that would change the columns of s.all, which other sources" if policy == "apply" else ""
        assert halt.why.startswith(f"column 'x' was added{changes}")
        # It was applied, or accepted, as far as earlier releases, or whoever resumed the table, could tell.
        record_decisions(str(tmp_path / "ddl_decisions"), [(("s.t", make(0, 5), "add", 4), policy)])
        again = found("apply").stop
        assert again is not None and again.policy == "suspend" and "which other sources" in again.why
    assert found("ignore").stop is None  # and that is final
    assert shape(found("apply", progress=9).at(9).relation) == shape(BEFORE)


def _routes(tmp_path: Path, **policies: str) -> Routes:
    paths = (str(tmp_path / "ddl_decisions"), str(tmp_path / "orders"))
    return Routes(None, lambda name: TableMap(name, name), lambda _: policies, *paths)


def test_what_one_thread_decides_another_does_not_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is still reading earlier decisions when the other keeps its own."""
    routes, new = _routes(tmp_path, add="ignore"), after(ID, V, N, Column("x", 4, "text", "text", "string"))
    history = [Layout(BEFORE, bytes(20), make(0, 1)), Layout(new, bytes(20), make(0, 5))]
    other = threading.Thread(target=routes.layouts, args=("s.a", history, None, ChangeRange(3, 9)))

    def reads(path: str) -> dict[Key, str]:
        found = decisions(path)
        if not other.ident:
            other.start()
            other.join(0.5)
        return found

    monkeypatch.setattr(kept, "decisions", reads)
    routes.layouts("s.b", history, None, ChangeRange(3, 9))
    other.join()
    for table in ("s.a", "s.b"):
        assert shape(routes.layouts(table, history, None, ChangeRange(9, 9)).at(9).relation) == shape(
            BEFORE
        ), table
    assert {key[0]: policy for key, policy in decisions(str(tmp_path / "ddl_decisions")).items()} == {
        "s.a": "ignore", "s.b": "ignore",
    }  # fmt: skip


def test_what_a_table_died_of_is_told_while_other_mappings_are_prepared(tmp_path: Path) -> None:
    routes = _routes(tmp_path)
    made: Any = None

    class Name(str):
        """One that is looked at while another thread prepares a mapping."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            routes._prepared["s.new", made] = made
            return str.__eq__(self, other)

    routes._prepared[Name("s.a"), made] = made
    assert routes.value_error("s.b", ValueError("x"), where="apply s.b") is None


@pytest.mark.parametrize(
    ("policies", "stays", "want"),
    [
        ({}, True, "suspend"),
        ({"retype": "stop"}, True, "stop"),
        ({"retype": "ignore"}, True, "apply"),
        ({"add": "ignore"}, True, "ignore"),
        ({}, False, "apply"),  # it is dropped again
    ],
)
def test_column_whose_older_values_are_not_proved_has_the_policy_for_retype(
    policies: dict[str, str], stays: bool, want: str
) -> None:
    added = Column("x", 4, "text", "text", "string", note=UNKNOWN_VALUE)
    found = between(BEFORE, BEFORE.with_columns([*BEFORE.columns, added]))
    assert [p for _, p in decide(found, policies, {4} if stays else ())] == [want]
    assert UNKNOWN_VALUE in str(found[0])
