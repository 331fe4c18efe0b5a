"""A Delta target that several sources feed, merged by tasks that read the changes themselves, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailrace.errors import ApplyError, BaselineNeededError, ConcurrentCommitError
from tailrace.lake import delta as lake
from tailrace.model import sequence
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.model.types import schema_of
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.tables import DeltaLakeTable
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.merge_result import MergeResult
from tailrace.targets.multi_source import TargetLocation
from tailrace.targets.parts import Parts
from tailrace.targets.projection import Projection

pytestmark = pytest.mark.unit
SITE = Column("site", 1 << 20, "@SCHEMA", "constant", "string", key=True)
ID, V = Column("id", 1, "integer", "int4", "int", key=True), Column("v", 2, "text", "text", "string")
LAYOUT = (SITE, ID, V)
COUNTS = {"I": 9, "U": 9, "D": 9, "T": 0, "key_changes": 0, "absent": 0}
TEXTS = pa.schema([(f"header__{n}", pa.string()) for n in ("change_seq", "change_oper", "stream_position")])
CHANGES = pa.schema([*TEXTS, ("id", pa.int32()), ("v", pa.string())])
Change = tuple[int, str, int, str | None]


def place(table: str) -> TargetLocation:
    return TargetLocation("all.item", {"site": table.partition(".")[0]})


class Shared:
    """`eu.item` and `us.item` in `all.item`, which has the rows eu 1 a, us 1 x, us 2 y."""

    def __init__(self, root: Path, kind: str = "int32", **limits: Any) -> None:
        self.root = root
        self.target = DeltaTarget(None, f"{root}/lake", app_id="x", locations=place, **limits)  # type: ignore[arg-type]
        rows = pa.table(
            [["eu", "us", "us"], pa.array([1, 1, 2], kind), ["a", "x", "y"]], names=["site", "id", "v"]
        )
        lake.append(self.target.path("eu.item"), rows)

    def batch(
        self, site: str, *changes: Change, start: int | None = None, counts: Mapping[str, int] = COUNTS
    ) -> ChangeBatch:
        table, path = f"{site}.item", f"{self.root}/{site}"
        rows = [
            (sequence.make(1_700_000_000_000_000, n), oper, f"{n:040X}", key, v)
            for n, oper, key, v in changes
        ]
        lake.append(path, pa.table(list(map(list, zip(*rows, strict=True))), schema=CHANGES))
        relation = Relation(1, site, "item", "f", LAYOUT)
        projection = Projection({"id": "id", "v": "v"}, {"site": site})
        numbers = ChangeRange(start, max(n for n, *_ in changes))
        return ChangeBatch(
            table,
            relation,
            numbers,
            path,
            counts=counts,
            projection=projection,
            target=self.target.path(table),
        )

    def merged(self, *batches: ChangeBatch) -> list[str | None]:
        """The plans; None: it needs a job of its own."""
        found = self.target.merge(batches)
        return [one.outcome.plan if isinstance(one, MergeResult) else one for one in found]  # type: ignore[misc]

    def rows(self) -> list[tuple[Any, ...]]:
        found = lake.read(self.target.path("eu.item")).to_pylist()
        return sorted((r["site"], r["id"], r["v"]) for r in found)

    def progress(self) -> list[int | None]:
        return [self.target.progress(t) for t in ("eu.item", "us.item")]


@pytest.mark.parametrize("limits", [{}, {"local_limit_bytes": 0}])
def test_batches_of_both_sources_are_merged_one_after_the_other(
    tmp_path: Path, limits: Mapping[str, Any]
) -> None:
    shared = Shared(tmp_path, **limits)
    eu = shared.batch("eu", (1, "U", 1, "A"), (2, "I", 2, "b"))
    us = shared.batch("us", (7, "D", 1, None), (8, "U", 2, "Y"), (9, "I", 3, "z"))
    plan = "task_local" if not limits else "rewrite"
    assert shared.merged(eu, us) == [plan, plan]
    assert shared.rows() == [("eu", 1, "A"), ("eu", 2, "b"), ("us", 2, "Y"), ("us", 3, "z")]
    assert shared.progress() == [2, 9]
    # Once more, and then behind it.
    shared.merged(us, eu)
    assert shared.merged(shared.batch("eu", (3, "D", 2, None), start=2)) == [plan]
    assert shared.rows() == [("eu", 1, "A"), ("us", 2, "Y"), ("us", 3, "z")]
    assert shared.progress() == [3, 9]


@pytest.mark.parametrize("limits", [{}, {"local_limit_bytes": 0}])
def test_a_truncate_of_one_source_leaves_the_rows_of_others(
    tmp_path: Path, limits: Mapping[str, Any]
) -> None:
    shared = Shared(tmp_path, **limits)
    changes = (1, "T", 0, None), (2, "I", 1, "again"), (3, "I", 5, "new")
    shared.merged(shared.batch("eu", *changes, counts={**COUNTS, "T": 1}))
    assert shared.rows() == [("eu", 1, "again"), ("eu", 5, "new"), ("us", 1, "x"), ("us", 2, "y")]
    assert shared.progress() == [3, None]


@pytest.mark.parametrize("limits", [{}, {"local_limit_bytes": 0}])
def test_a_column_that_another_source_made_wider_stays_so(tmp_path: Path, limits: Mapping[str, Any]) -> None:
    shared = Shared(tmp_path, "int64", **limits)
    shared.merged(shared.batch("us", (7, "D", 1, None), (8, "I", 3, "z")))
    assert shared.rows() == [("eu", 1, "a"), ("us", 2, "y"), ("us", 3, "z")]
    assert lake.arrow_schema(shared.target.path("us.item")).field("id").type == pa.int64()
    assert shared.progress() == [None, 8]


def with_marks(shared: Shared) -> str:
    """Gives the target the mark of another source's rules, in one file with all rows; us 2 is deleted."""
    path = shared.target.path("eu.item")
    rows = lake.read(path).append_column("gone", pa.array([None, None, "20261127"]))
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    return path


def with_their_marks(path: str) -> list[tuple[Any, ...]]:
    return sorted((r["site"], r["id"], r["v"], r["gone"]) for r in lake.read(path).to_pylist())


@pytest.mark.parametrize("limits", [{}, {"local_limit_bytes": 0}])
def test_a_column_of_another_source_stays_in_files_that_are_written_anew(
    tmp_path: Path, limits: Mapping[str, Any]
) -> None:
    shared = Shared(tmp_path, **limits)
    path = with_marks(shared)
    assert shared.merged(shared.batch("eu", (1, "U", 1, "A"), (2, "I", 2, "b"))) != [None]
    assert with_their_marks(path) == [
        ("eu", 1, "A", None), ("eu", 2, "b", None), ("us", 1, "x", None), ("us", 2, "y", "20261127"),
    ]  # fmt: skip
    shared.merged(shared.batch("us", (7, "U", 1, "X"), (8, "U", 2, "Y")))
    assert with_their_marks(path)[2:] == [("us", 1, "X", None), ("us", 2, "Y", "20261127")]


def test_a_new_layout_of_one_source_leaves_what_another_has_made_of_the_target(tmp_path: Path) -> None:
    """Its columns, and those that it made wider."""
    shared = Shared(tmp_path, "int64")
    path = with_marks(shared)
    before = Relation(1, "eu", "item", "f", LAYOUT)
    more = Column("more", 3, "integer", "int4", "int", missing="5")
    for _ in range(2):  # the same call again does nothing
        shared.target.alter("eu.item", before, before.with_columns([*LAYOUT, more]))
    assert lake.read(path).sort_by([("site", "ascending"), ("id", "ascending")]).to_pylist() == [
        {"site": "eu", "id": 1, "v": "a", "more": 5, "gone": None},
        {"site": "us", "id": 1, "v": "x", "more": 5, "gone": None},
        {"site": "us", "id": 2, "v": "y", "more": 5, "gone": "20261127"},
    ]
    assert shared.target.columns("eu.item") == {
        "site": "string", "id": "bigint", "v": "string", "more": "int", "gone": "string",
    }  # fmt: skip
    assert lake.version(path) == 3


def with_n(shared: Shared) -> str:
    """Gives the target a column that another source has brought, with values in its rows."""
    path = shared.target.path("us.item")
    rows = lake.read(path).append_column("n", pa.array([None, 8, 9], pa.int32()))
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    return path


N = Column("n", 3, "integer", "int4", "int")
WIDE_N = replace(N, source_type="bigint", kind="int8", type="bigint")


@pytest.mark.parametrize(
    ("new", "n"),
    [
        pytest.param([N], "int", id="as it is there"),
        pytest.param([WIDE_N], "bigint", id="wider"),
        pytest.param([replace(WIDE_N, type="smallint")], "int", id="narrower"),
        pytest.param([N, Column("more", 4, "text", "text", "string")], "int", id="beside another one"),
        pytest.param([WIDE_N, replace(N, name="more", attnum=4, missing="5")], "bigint", id="both"),
    ],
)
def test_a_column_that_another_source_brought_first_keeps_its_values(
    tmp_path: Path, new: Sequence[Column], n: str
) -> None:
    shared = Shared(tmp_path)
    path, before = with_n(shared), Relation(1, "eu", "item", "f", LAYOUT)
    versions = []
    for _ in range(2):  # the same call again does nothing
        shared.target.alter("eu.item", before, before.with_columns([*LAYOUT, *new]))
        versions.append(lake.version(path))
    found = lake.read(path).sort_by([("site", "ascending"), ("id", "ascending")])
    assert found["n"].to_pylist() == [None, 8, 9] and versions[0] == versions[1]
    assert shared.target.columns("eu.item")["n"] == n
    if len(new) > 1:
        assert found["more"].to_pylist() == [new[1].missing and int(new[1].missing)] * 3


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_column_that_is_another_one_at_another_source_is_refused(tmp_path: Path, dry_run: bool) -> None:
    shared = Shared(tmp_path)
    path, before = with_n(shared), Relation(1, "eu", "item", "f", LAYOUT)
    version, text = lake.version(path), replace(N, source_type="text", kind="text", type="string")
    with pytest.raises(ApplyError, match=r"n would be removed from .*all\.item or replaced") as error:
        shared.target.alter("eu.item", before, before.with_columns([*LAYOUT, text]), dry_run=dry_run)
    assert error.value.where == "eu.item" and "as its other sources have them" in (error.value.hint or "")
    assert lake.version(path) == version


def test_what_another_source_made_wider_is_not_made_narrower(tmp_path: Path) -> None:
    """By a type that is wider than the source's own one before."""
    shared = Shared(tmp_path, "int64")
    before = Relation(1, "eu", "item", "f", LAYOUT)
    digits = replace(ID, source_type="numeric(10,0)", kind="numeric", type="decimal(10,0)")
    with pytest.raises(ApplyError, match="id would be removed"):
        shared.target.alter("eu.item", before, before.with_columns([SITE, digits, V]))
    assert shared.target.columns("eu.item")["id"] == "bigint"


def parts(site: str, *files: Sequence[tuple[int, str | None]]) -> Parts:
    def read(name: str) -> list[pa.RecordBatch]:
        rows = [{"site": site, "id": key, "v": v} for key, v in files[int(name)]]
        return [pa.RecordBatch.from_pylist(rows, schema_of(LAYOUT))]

    return Parts(tuple(map(str, range(len(files)))), read)


def test_a_load_takes_the_place_of_a_sources_own_rows(tmp_path: Path) -> None:
    """In one commit with its progress, which may go back."""
    shared = Shared(tmp_path)
    shared.merged(shared.batch("us", (7, "U", 2, "Y")), shared.batch("eu", (5, "I", 2, "b")))
    before = lake.version(shared.target.path("us.item"))
    assert shared.target.loads_parts("us.item")
    us = Relation(1, "us", "item", "f", LAYOUT)
    assert shared.target.load(us, parts("us", [(3, "new")], [], [(1, None)]), 4) == before + 1
    assert shared.rows() == [("eu", 1, "a"), ("eu", 2, "b"), ("us", 1, None), ("us", 3, "new")]
    assert shared.progress() == [5, 4]
    # None is left, and then some come again.
    shared.target.load(us, parts("us"), 8)
    assert shared.rows() == [("eu", 1, "a"), ("eu", 2, "b")]
    shared.target.load(us, parts("us", [(1, "x")]), 9)
    assert shared.rows() == [("eu", 1, "a"), ("eu", 2, "b"), ("us", 1, "x")]
    assert shared.progress() == [5, 9]


def test_columns_that_rules_added_are_null_in_rows_that_are_loaded(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    path, us = shared.target.path("us.item"), Relation(1, "us", "item", "f", LAYOUT)
    row = {"site": ["us"], "id": pa.array([3], pa.int32()), "v": ["z"], "gone": ["yes"]}
    write_deltalake(path, pa.table(row), mode="append", schema_mode="merge")
    with pytest.raises(BaselineNeededError, match="has the columns"):
        shared.target.load(us, parts("us", [(1, "X")]), 4)
    shared.target.load(us, parts("us", [(1, "X")]), 4, {"gone": "string"})
    assert lake.read(path).sort_by("site").to_pylist() == [
        {"site": "eu", "id": 1, "v": "a", "gone": None}, {"site": "us", "id": 1, "v": "X", "gone": None},
    ]  # fmt: skip


def test_what_another_source_commits_while_rows_are_loaded_stays(tmp_path: Path) -> None:
    shared = Shared(tmp_path)
    eu, us = shared.batch("eu", (5, "U", 1, "A")), Relation(1, "us", "item", "f", LAYOUT)
    rows = parts("us", [(1, "X")])
    other = DeltaTarget(None, f"{tmp_path}/lake", app_id="x", locations=place)  # type: ignore[arg-type]

    def read(name: str) -> Iterable[pa.RecordBatch]:
        (done,) = other.merge([eu])
        assert isinstance(done, MergeResult)
        return rows.read(name)

    shared.target.load(us, Parts(rows.names, read), 4)
    assert shared.rows() == [("eu", 1, "A"), ("us", 1, "X")]
    assert shared.progress() == [5, 4]


def test_a_mark_that_another_source_brings_while_rows_are_loaded_stays(tmp_path: Path) -> None:
    shared, us = Shared(tmp_path), Relation(1, "us", "item", "f", LAYOUT)
    path, rows = shared.target.path("us.item"), parts("us", [(1, "X")])

    def read(name: str) -> Iterable[pa.RecordBatch]:
        marked = lake.read(path).sort_by([("site", "ascending"), ("id", "ascending")])
        marked = marked.append_column("gone", pa.array(["20261127", None, None]))
        write_deltalake(path, marked, mode="overwrite", schema_mode="overwrite")
        return rows.read(name)

    shared.target.load(us, Parts(rows.names, read), 4, {"gone": "string"})
    assert with_their_marks(path) == [("eu", 1, "a", "20261127"), ("us", 1, "X", None)]


def test_a_target_that_becomes_anothers_layout_while_rows_are_loaded_is_refused(tmp_path: Path) -> None:
    shared, us = Shared(tmp_path), Relation(1, "us", "item", "f", LAYOUT)
    rows = parts("us", [(1, "X")])

    def read(name: str) -> Iterable[pa.RecordBatch]:
        with_marks(shared)
        return rows.read(name)

    with pytest.raises(BaselineNeededError, match="has the columns"):
        shared.target.load(us, Parts(rows.names, read), 4)
    assert shared.rows() == [("eu", 1, "a"), ("us", 1, "x"), ("us", 2, "y")]


def test_files_whose_rows_others_have_hidden_meanwhile_are_not_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, us = Shared(tmp_path), Relation(1, "us", "item", "f", LAYOUT)
    plain = iter([True, True])
    monkeypatch.setattr(DeltaLakeTable, "replaces_files", property(lambda _: next(plain)))
    rows = parts("us", [(1, "X")])
    assert shared.target.load(us, rows, 4) == 2
    plain = iter([True, False])
    with pytest.raises(ConcurrentCommitError):
        shared.target.load(us, rows, 5)
    assert lake.version(shared.target.path("us.item")) == 2
