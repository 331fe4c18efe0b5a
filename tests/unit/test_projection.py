"""Mappings without expressions: a task reads the changes through them, and no JVM is there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailrace.apply import ddl
from tailrace.apply.mapped_snapshots import StagedRows
from tailrace.apply.mapping.prepare import Prepared, prepare, projection_of
from tailrace.apply.mapping.table_map import TableMap
from tailrace.apply.merger import Merger
from tailrace.apply.route import Route
from tailrace.model import mask
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.model.sequence import make
from tailrace.model.types import schema_of
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.multi_source import TargetLocation
from tailrace.targets.projection import Projection
from tailrace.validate.target_shape import TargetShape

pytestmark = pytest.mark.unit

SOURCE = Relation(
    1,
    "s",
    "t",
    "f",
    (
        Column("id", 1, "integer", "int4", "int", key=True),
        Column("v", 2, "text", "text", "string"),
        Column("w", 3, "text", "text", "string"),
        Column("secret", 4, "text", "text", "string"),
    ),
)
HEADERS = ["change_seq", "change_oper", "column_mask", "stream_position", "timestamp"]
NAMES = [*(f"header__{h}" for h in HEADERS), *(c.name for c in SOURCE.columns)]
MAP = TableMap(
    "s.t",
    "s.made",
    columns={"no": "id", "word": "v", "again": "v"},
    drop=("secret",),
    constants={"site": "eu"},
    key=("no",),
)


def no_spark() -> NoReturn:
    pytest.fail("it was asked for Spark")


def made(wanted: TableMap = MAP, source: Relation = SOURCE) -> Prepared:
    return prepare(no_spark, wanted, source)


def image(number: int, oper: str, **values: Any) -> dict[str, Any]:
    """A change row; it carries the columns of `values`."""
    carried = mask.encode([NAMES.index(n) for n in values]) if len(values) < len(SOURCE.columns) else None
    at = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    head = (make(0, number), oper, carried, f"{number:040X}", at)
    return dict(zip(NAMES, [*head, *(values.get(c.name) for c in SOURCE.columns)], strict=True))


def full(number: int, oper: str, key: int, word: str) -> dict[str, Any]:
    return image(number, oper, id=key, v=word, w=f"w{word}", secret="s")


class Place:
    """A change table and a target that is made of it."""

    def __init__(self, folder: Path, step: Prepared) -> None:
        self.folder, self.step, self.relation = folder, step, step.relation
        self.target = DeltaTarget(
            None,  # type: ignore[arg-type]
            str(folder / "lake"),
            app_id="t",
            locations=lambda _: TargetLocation(step.map.target),
        )
        self.target.alter("s.t", self.relation, self.relation)

    def apply(self, rows: list[dict[str, Any]], counts: Mapping[str, int], start: int) -> None:
        kinds = pa.schema([(n, pa.string()) for n in NAMES])
        for name, kind in (("header__column_mask", pa.binary()), ("id", pa.int32())):
            kinds = kinds.set(kinds.get_field_index(name), pa.field(name, kind))
        kinds = kinds.set(4, pa.field("header__timestamp", pa.timestamp("us", "UTC")))
        path, end = str(self.folder / "changes"), max(int(r["header__change_seq"][16:]) for r in rows)
        write_deltalake(path, pa.Table.from_pylist(rows, kinds), mode="append")
        merger = Merger(no_spark, self.target, None, no_spark)  # type: ignore[arg-type]
        batch = ChangeBatch("s.t", SOURCE, numbers := ChangeRange(start, end), path, counts=counts)
        ((merged, done),) = merger.each(batch, Route(self.relation, self.relation, (self.step,)), None)
        assert (merged, done.end) == (numbers, end)

    def rows(self) -> list[tuple[Any, ...]]:
        found = DeltaTable(self.target.path("s.t")).to_pyarrow_table().to_pylist()
        return sorted(tuple(r[c.name] for c in self.relation.columns) for r in found)


def test_columns_have_other_names_and_constants_are_in_every_row(tmp_path: Path) -> None:
    place = Place(tmp_path, made())
    assert [c.name for c in place.relation.columns] == ["no", "word", "again", "w", "site"]
    place.apply([full(1, "I", 1, "a"), full(2, "I", 2, "b"), full(3, "I", 3, "c")], {"I": 3}, 0)
    assert place.rows() == [(n, v, v, f"w{v}", "eu") for n, v in ((1, "a"), (2, "b"), (3, "c"))]
    # An update that does not carry `v`, one that does not carry `w`, a changed key, a delete.
    place.apply(
        [
            image(4, "U", id=1, w="new", secret="s"),
            image(5, "U", id=2, v="B", secret="s"),
            full(6, "B", 2, "B"),
            full(6, "U", 9, "C"),
            full(7, "D", 3, "c"),
        ],
        {"U": 3, "D": 1, "absent": 2, "key_changes": 1},
        3,
    )
    assert place.rows() == [(1, "a", "a", "new", "eu"), (9, "C", "C", "wC", "eu")]
    place.apply([image(8, "T"), full(9, "I", 5, "e")], {"T": 1, "I": 1}, 7)
    assert place.rows() == [(5, "e", "e", "we", "eu")]


def test_steps_come_one_after_the_other() -> None:
    renamed = SOURCE.with_columns([replace(c, name=f"{c.name}2") for c in SOURCE.columns])
    first = ddl.projection(SOURCE, renamed)
    assert first is not None
    both = projection_of(
        [first, made(TableMap("s.t", "s.u", columns={"no": "id2"}, constants={"k": "x"}), renamed)]
    )
    assert both == Projection({"no": "id", "v2": "v", "w2": "w", "secret2": "secret"}, {"k": "x"})


def test_what_needs_spark_is_none() -> None:
    lacking = ddl.projection(SOURCE.with_columns(SOURCE.columns[:2]), SOURCE)
    assert lacking is not None and projection_of([lacking]) is None
    wider = SOURCE.with_columns([Column("id", 1, "bigint", "int8", "bigint", key=True), *SOURCE.columns[1:]])
    kept = ddl.projection(wider, SOURCE)
    assert kept is not None and projection_of([kept]) is None


def test_a_baseline_goes_from_its_staging_table_to_the_target(tmp_path: Path) -> None:
    staging, place = str(tmp_path / "staging"), Place(tmp_path, made())
    for key in (1, 2):
        row = {"id": [key], "v": [f"v{key}"], "w": [None], "secret": ["s"]}
        kinds = pa.schema([("id", pa.int32()), *((n, pa.string()) for n in ("v", "w", "secret"))])
        write_deltalake(staging, pa.table(row, kinds), mode="append")
    projection = projection_of([place.step])
    assert projection is not None
    rows = StagedRows(staging, projection, schema_of(place.relation.columns))
    place.target.load(place.relation, rows.parts(), 7)
    assert place.rows() == [(1, "v1", "v1", None, "eu"), (2, "v2", "v2", None, "eu")]
    assert place.target.progress("s.t") == 7


def test_what_the_source_dropped_is_not_compared() -> None:
    now = SOURCE.with_columns([c for c in SOURCE.columns if c.name != "v"])  # the drop was ignored
    both = TargetShape(now, SOURCE, made())
    assert both.kept == ["word", "again"]
    assert {n: str(e) for n, e in both.source_expressions(now).items()} == {
        "no": "id",
        "w": "w",
        "site": '"eu"',
    }
    renamed = SOURCE.with_columns([replace(c, name="x") if c.name == "w" else c for c in SOURCE.columns])
    assert list(TargetShape(SOURCE, SOURCE, made()).source_expressions(renamed)) == [
        "no",
        "word",
        "again",
        "site",
    ]
