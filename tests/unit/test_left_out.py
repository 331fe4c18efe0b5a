"""Columns that `drop` leaves out stay out when the source renames them: layouts in, rows of the target out."""

from __future__ import annotations

import datetime as dt
import functools
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.apply.checks.mapping import fitted_to
from tailrace.apply.layout_batches import layout_batches
from tailrace.apply.mapping.prepare import projection_of
from tailrace.apply.mapping.table_map import TableMap
from tailrace.apply.route import Routes
from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeNumber, ChangeRange, Position
from tailrace.model.sequence import make
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.state.layouts import layouts_seen
from tailrace.targets.change_batch import ChangeBatch

pytestmark = pytest.mark.unit

AT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
DROP = TableMap("s.t", "s.t", drop=("s",))


def layout(*names: str, **numbers: int) -> Relation:
    """A table with `id`, its key, and texts; the first of these is number 2."""
    given = {name: 2 + k for k, name in enumerate(names)} | numbers
    texts = [Column(name, number, "text", "text", "string") for name, number in given.items()]
    return Relation(7, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True), *texts))


def history(*layouts: Relation) -> list[log.Layout]:
    """One after the other, at change numbers and positions 1, 11, 21, ..."""
    return [
        log.Layout(one, (10 * k + 1).to_bytes(20, "big"), make(0, 10 * k + 1))
        for k, one in enumerate(layouts)
    ]


def taken(relation: Relation, position: int, *, number: int = 1) -> Baseline:
    text = Position(position.to_bytes(20, "big").hex().upper())
    return Baseline("s.t", relation, text, 3, None, AT, 0.1, number=number, after=ChangeNumber(position))


def routes(
    at: Path, wanted: TableMap = DROP, seen: list[log.Layout] | None = None, *, record: bool = True
) -> Routes:
    paths = str(at / "ddl_decisions"), str(at / "orders")
    had = {"s.t": [(one.from_position.hex().upper(), one.relation) for one in seen or []]}
    return Routes(None, lambda _: wanted, lambda _: {}, *paths, seen=lambda: had, record=record)


def targets(
    mine: Routes, seen: list[log.Layout], baseline: Baseline | None = None
) -> list[tuple[list[str], list[str]]]:
    """The target's columns before and with the changes of each layout, as rows of the source become its."""
    numbers = ChangeRange(baseline.after if baseline else 1, 99)
    batches = layout_batches("s.t", seen, baseline, numbers, "changes")
    found, halt = mine.follow("s.t", batches, seen, baseline, numbers)
    assert halt is None
    return [(names(route.before), rows(one, route)) for one, route in found]


def names(relation: Relation) -> list[str]:
    return [c.name for c in relation.columns]


def rows(one: ChangeBatch, route: Any) -> list[str]:
    made = projection_of(route.steps)
    assert made is not None
    batch = pa.RecordBatch.from_pydict({c.name: [f"of {c.name}"] for c in one.relation.columns})
    values = {c.name: made.column(batch, pa.field(c.name, pa.string()))[0] for c in route.relation.columns}
    return [f"{name}: {value}" if str(value) != f"of {name}" else name for name, value in values.items()]


@pytest.mark.parametrize(
    ("layouts", "columns"),
    [
        pytest.param([layout("a", "s"), layout("a", "s9")], [["id", "a"], ["id", "a"]], id="renamed"),
        pytest.param(
            [layout("a", "s"), layout("a", "s9"), layout("a", "s"), layout("a", "x")],
            [["id", "a"]] * 4,
            id="there, back, and to a third name",
        ),
        pytest.param(
            [layout("a", "s"), layout("a", "s9"), layout("a", "s9", "s"), layout("a", "s9", "s8")],
            [["id", "a"]] * 4,
            id="a new column takes the name, and leaves it",
        ),
        pytest.param(
            [layout("new", "s"), layout("new"), layout("s"), layout("again")],
            [["id", "new"], ["id", "new"], ["id"], ["id"]],
            id="a column that was there takes the name",
        ),
        pytest.param(
            [layout("a", "s"), layout(a=2, s9=-1), layout(a=2, s9=3), layout(a=2, s9=3, b=-1)],
            [["id", "a"], ["id", "a"], ["id", "a"], ["id", "a", "b"]],
            id="a rename that is proved by a later change only",
        ),
        pytest.param(
            [layout("a", "s"), layout(a=2, s9=-1), layout(a=2, s9=4)],
            [["id", "a"], ["id", "a"], ["id", "a", "s9"]],
            id="a new column, proved by a later change only",
        ),
        pytest.param(
            [layout("a", "s"), layout("a"), layout(a=2, b=4)],
            [["id", "a"], ["id", "a"], ["id", "a", "b"]],
            id="dropped, then a new one",
        ),
    ],
)
def test_what_is_to_be_left_out_stays_out(
    tmp_path: Path, layouts: list[Relation], columns: list[list[str]]
) -> None:
    seen = history(*layouts)
    assert targets(routes(tmp_path), seen) == list(zip([columns[0], *columns], columns, strict=False))
    # Whoever begins later sees the same target: it goes by what was known then.
    later = [targets(routes(tmp_path / f"{k}"), seen[: k + 1])[-1] for k in range(len(layouts))]
    assert [have for _, have in later] == columns


def test_a_baseline_after_the_rename_leaves_it_out(tmp_path: Path) -> None:
    seen = history(layout("a", "s"), layout("a", "s9"), layout("a", "s9", "b"))
    for position, had in ((5, seen[:1]), (15, seen[:2])):  # it came before a row had the new name, and after
        second = taken(layout("a", "s9"), position, number=2)
        mine = routes(tmp_path, seen=had)
        made = mine.prepared("s.t", mine.landed(second))
        assert made is not None and names(made.relation) == ["id", "a"]
        found = targets(mine, seen, second)
        assert [have for _, have in found][-2:] == [["id", "a"], ["id", "a", "b"]]
        assert all("s9" not in before for before, _ in found)


def test_a_baseline_tells_of_a_name_that_no_change_ever_had(tmp_path: Path) -> None:
    again = replace(layout("a", "s"), relid=8)  # made again; renamed before its first change; read once more
    log.record_layouts(f"{tmp_path}/relations", history(layout("a")))
    write_baseline(f"{tmp_path}/baselines", taken(again, 5))
    new = taken(replace(layout("a", "s9"), relid=8), 15, number=2)
    paths = f"{tmp_path}/ddl_decisions", f"{tmp_path}/orders"
    seen = functools.partial(layouts_seen, f"{tmp_path}/relations", f"{tmp_path}/baselines")
    made = Routes(None, lambda _: DROP, lambda _: {}, *paths, seen=seen)
    assert made.landed(new).left_out == (("s9", "s"),)


def test_who_names_it_has_it(tmp_path: Path) -> None:
    wanted = TableMap("s.t", "s.t", drop=("s",), columns={"s9": "s9"})
    seen = history(layout("a", "s"), layout("a", "s9"))
    found = targets(routes(tmp_path, wanted, seen), seen, taken(layout("a", "s9"), 15, number=2))
    assert found == [(["id", "a", "s9"], ["id", "a", "s9"])]


def test_it_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = history(layout("a", "s"), layout("a", "s9"), layout("a", "s9", "b"))
    with caplog.at_level(logging.WARNING):
        targets(routes(tmp_path, record=False), seen)
        assert caplog.messages == []
        mine = routes(tmp_path)
        targets(mine, seen)
        targets(mine, seen)
    assert caplog.messages == [
        "s.t: column 's9' stays out of the target: it was called 's' before, which `drop` names; to have it, "
        "name it under `columns` (`s9: s9`), and `tailrace resync` the table"
    ]


def test_check_warns(tmp_path: Path) -> None:
    task: Any = SimpleNamespace(
        relations_path=f"{tmp_path}/relations", control_path=lambda of: f"{tmp_path}/{of}"
    )
    log.record_layouts(task.relations_path, history(layout("a", "s")))
    fitted, found = fitted_to(task, {"s.t": DROP}, {"s.t": layout("a", "s9")})
    assert fitted["s.t"].drop == ("s", "s9")
    assert [(one.level, one.where, one.what) for one in found] == [
        (
            "warning",
            "s.t",
            "column 's9' stays out of the target: it was called 's' before, which `drop` names",
        )
    ]
    _, found = fitted_to(task, {"s.t": TableMap("s.t", "s.t", drop=("z",))}, {"s.t": layout("a", "s9")})
    assert [(one.level, one.what) for one in found] == [("error", "drop: s.t has no column 'z'")]
