"""Iceberg tables: commits on exactly what was read, catalogs that fail, statistics, maintenance."""

from __future__ import annotations

import datetime as dt
import decimal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import GreaterThan
from pyiceberg.table import Table
from pyiceberg.transforms import TruncateTransform

from tailrace.errors import ApplyError, ConcurrentCommitError, ConfigError, PositionError, UnsupportedError
from tailrace.lake.iceberg import commit as commits
from tailrace.lake.iceberg import maintenance
from tailrace.lake.iceberg.commit import Commit
from tailrace.lake.iceberg.maintenance import compact, expire, sweep
from tailrace.lake.iceberg.partitions import PhysicalLayout
from tailrace.lake.iceberg.table import IcebergTable
from tailrace.lake.iceberg.tables import IcebergTables
from tailrace.lake.thinning import Past
from tailrace.model.types import arrow_type

pytestmark = pytest.mark.unit
NAME = "shop.item"
COLUMNS = pa.schema([("id", pa.int32()), ("v", pa.string())])


@pytest.fixture
def tables(tmp_path: Path) -> IcebergTables:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    made = IcebergTables("test", tuple(sorted(properties.items())), warehouse=str(tmp_path))
    made.create(NAME, COLUMNS)
    return made


def put(now: IcebergTable, end: int, *rows: tuple[int, str], removed: int = 0, app: str = "a") -> int:
    """Adds a file with rows, and removes the first files."""
    part = now.files.part(now.schema)
    part.write(pa.table([list(column) for column in zip(*rows, strict=True)], schema=now.schema))
    return now.exchange(now.data_files()[:removed], part.close_all(), app, end, {})


def ids(tables: IcebergTables, version: int | None = None) -> list[int]:
    return sorted(tables.open(NAME, version).dataset().to_table()["id"].to_pylist())


def test_a_commit_replaces_files_with_its_progress(tables: IcebergTables) -> None:
    assert (tables.open(NAME).version, tables.open(NAME).progress("a")) == (0, None)
    assert put(tables.open(NAME), 3, (1, "a")) == 1
    assert put(tables.open(NAME), 4, (2, "b"), app="b") == 2
    assert put(tables.open(NAME), 9, (3, "c"), removed=1) == 3
    now = tables.open(NAME)
    assert (now.progress("a"), now.progress("b"), now.version) == (9, 4, 3)
    assert (len(ids(tables)), ids(tables, 1), tables.versions(NAME)) == (2, [1], [1, 2, 3])
    until = tables.open_until(NAME, "a", 5)
    assert until is not None and until.version == 2
    assert tables.applications(NAME) == {"a", "b"}
    assert tables.applications(NAME, after=2) == {"a"}
    with pytest.raises(PositionError):
        tables.open(NAME, 7)


def test_the_progress_stays_after_commits_of_other_writers(tables: IcebergTables) -> None:
    put(tables.open(NAME), 3, (1, "a"))
    table = tables.catalog.load_table(NAME)
    table.append(pa.table([[7], ["theirs"]], schema=table.schema().as_arrow()))
    table.append(pa.table([[8], ["theirs"]], schema=table.schema().as_arrow()))
    assert tables.open(NAME).progress("a") == 3
    assert ids(tables) == [1, 7, 8]


def test_a_stale_commit_is_refused(tables: IcebergTables) -> None:
    stale = tables.open(NAME)
    put(tables.open(NAME), 3, (1, "a"))
    with pytest.raises(ConcurrentCommitError):
        put(stale, 4, (2, "b"))
    stale = tables.open(NAME)
    with tables.catalog.load_table(NAME).update_schema() as update:  # no snapshot
        update.add_column("more", stale.iceberg_schema.find_type("v"))
    with pytest.raises(ConcurrentCommitError):
        put(stale, 4, (2, "b"))
    assert ids(tables) == [1]


def test_parts_are_appended_behind_the_progress_that_they_follow(tables: IcebergTables) -> None:
    stale = tables.open(NAME)
    put(tables.open(NAME), 3, (1, "a"), app="other")
    part = stale.files.part(COLUMNS)
    part.write(pa.table([[2], ["b"]], schema=COLUMNS))
    added = part.close_all()
    assert stale.append(added, "a", 5, -1, {}) == 2
    with pytest.raises(ConcurrentCommitError, match="a is at 5, no longer at 0"):
        stale.append(added, "a", 6, -1, {})
    assert ids(tables) == [1, 2]


def failing(monkeypatch: pytest.MonkeyPatch, act: Callable[[Callable[..., None], Any], None]) -> None:
    """Lets the next commit fail as `act` says, which gets what commits."""
    real, calls = Table._do_commit, iter([act])

    def once(self: Table, **given: Any) -> None:
        act = next(calls, None)
        if act is None:
            real(self, **given)
        else:
            act(lambda: real(self, **given), self)

    monkeypatch.setattr(Table, "_do_commit", once)


@pytest.mark.parametrize("error", [OSError("502"), CommitFailedException("repeated")])
def test_an_error_after_a_commit_that_succeeded_is_resolved_by_reading_back(
    tables: IcebergTables, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def act(commit: Callable[..., None], _: Table) -> None:
        commit()
        raise error

    failing(monkeypatch, act)
    assert put(tables.open(NAME), 3, (1, "a")) == 1
    assert (ids(tables), tables.open(NAME).progress("a")) == ([1], 3)


def test_a_catalog_that_does_not_answer_leaves_the_files(
    tables: IcebergTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have committed, or may do so later."""
    late = list[Callable[..., None]]()

    def act(commit: Callable[..., None], _: Table) -> None:
        late.append(commit)
        raise TimeoutError

    monkeypatch.setattr(commits, "_READ_BACK_S", (0.0, 0.0))
    failing(monkeypatch, act)
    with pytest.raises(ApplyError, match="does not answer"):
        put(tables.open(NAME), 3, (1, "a"))
    late[0]()
    assert (ids(tables), tables.open(NAME).progress("a")) == ([1], 3)


def test_a_late_commit_after_another_one_is_refused_by_the_catalog(
    tables: IcebergTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = list[Callable[..., None]]()

    def act(commit: Callable[..., None], _: Table) -> None:
        late.append(commit)
        raise TimeoutError

    monkeypatch.setattr(commits, "_READ_BACK_S", (0.0,))
    failing(monkeypatch, act)
    with pytest.raises(ApplyError):
        put(tables.open(NAME), 3, (1, "a"))
    put(tables.open(NAME), 3, (1, "a"))
    with pytest.raises(CommitFailedException):
        late[0]()
    assert ids(tables) == [1]


VALUES: dict[str, list[Any]] = {
    "boolean": [True, None, False],
    "smallint": [-3, 5, None],
    "bigint": [1 << 40, -(1 << 40), None],
    "float": [1.5, float("nan"), -2.0],
    "double": [None, float("inf"), 0.1],
    "decimal(9,2)": [decimal.Decimal("-1.25"), decimal.Decimal("1234567.89"), None],
    "decimal(38,4)": [
        decimal.Decimal("123456789012345678901234567890.1234"),
        None,
        decimal.Decimal("0.0000"),
    ],
    "string": ["a" * 5000, "é" * 20, None],
    "binary": [b"\xff" * 40, b"", None],
    "date": [dt.date(2026, 1, 1), None, dt.date(1960, 2, 29)],
    "timestamp": [dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), None, None],
    "timestamp_ntz": [dt.datetime(1960, 1, 1, 1, 2, 3, 4), None, None],
    "array<int>": [[1, None, 3], None, []],
    "array<string>": [["x"], None, ["y", None]],
}


def test_values_of_all_types_are_stored_and_found_by_statistics(tables: IcebergTables) -> None:
    schema = pa.schema([(f"c{n}", arrow_type(kind)) for n, kind in enumerate(VALUES)])
    rows = pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(VALUES.values(), schema, strict=True)], schema=schema)  # fmt: skip
    tables.create("shop.types", schema)
    now = tables.open("shop.types")
    assert now.schema == schema
    part = now.files.part(schema)
    part.write(rows)
    now.exchange([], part.close_all(), "a", 1, {})
    table = tables.catalog.load_table("shop.types")
    for n, kind in enumerate(VALUES):
        assert repr(table.scan().to_arrow()[f"c{n}"].to_pylist()) == repr(rows[f"c{n}"].to_pylist()), kind
        if kind.startswith(("array", "boolean")):
            continue
        found = table.scan(row_filter=f"c{n} IS NOT NULL").to_arrow()[f"c{n}"].to_pylist()
        assert repr(found) == repr([v for v in rows[f"c{n}"].to_pylist() if v is not None])
    assert table.scan(row_filter=GreaterThan("c5", decimal.Decimal("1234567.00"))).to_arrow().num_rows == 1
    assert table.scan(row_filter="c7 > 'zz'").to_arrow().num_rows == 1  # é
    assert table.scan(row_filter="c7 > 'a' and c7 < 'b'").to_arrow().num_rows == 1


def test_rows_marked_in_delete_files_are_refused(
    tables: IcebergTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.manifest import ManifestContent, ManifestFile

    put(tables.open(NAME), 3, (1, "a"))
    monkeypatch.setattr(ManifestFile, "content", property(lambda _: ManifestContent.DELETES))
    with pytest.raises(UnsupportedError, match="delete files"):
        tables.open(NAME).data_files()


def on_disk(tables: IcebergTables, kind: str) -> set[str]:
    return {str(path) for path in Path(tables.warehouse, "shop/item").rglob(f"*.{kind}")}


def test_small_files_are_joined(tables: IcebergTables) -> None:
    for n in range(4):
        put(tables.open(NAME), n + 1, (n, "a"))
    assert not compact(tables.open(NAME), 5)
    assert compact(tables.open(NAME), 4)
    assert (len(tables.open(NAME).entries), ids(tables)) == (1, [0, 1, 2, 3])
    assert tables.open(NAME).progress("a") == 4
    stale = tables.open(NAME)
    for n in range(4, 8):
        put(tables.open(NAME), n + 1, (n, "a"))
    with pytest.raises(ConcurrentCommitError):
        Commit(NAME, stale.table, list(stale.entries.values())).run()
    with pytest.raises(ConcurrentCommitError):
        tables.open(NAME, 1).exchange([], [], "a", 9, {})


def test_manifests_of_removed_files_do_not_pile_up(tables: IcebergTables) -> None:
    for n in range(40):
        put(tables.open(NAME), n + 1, (n, "a"), removed=1)
    now = tables.open(NAME)
    assert now.snapshot is not None
    assert len(now.snapshot.manifests(now.table.io)) < 5


def test_snapshots_expire_with_the_files_that_only_they_have(tables: IcebergTables) -> None:
    for n in range(10):
        put(tables.open(NAME), n + 1, (n, "a"), removed=1 if n % 2 else 0)
    hour, now = 3600.0, time.time()
    past = Past(7 * 24 * hour, times=100.0, pinned=frozenset([5]))
    assert expire(tables.open(NAME), past) == 0
    tag = tables.open(NAME, 3).snapshot
    assert tag is not None
    tables.catalog.load_table(NAME).manage_snapshots().create_tag(tag.snapshot_id, "audit").commit()
    gone = expire(tables.open(NAME), past, at=now + 2 * hour)
    kept = tables.versions(NAME)
    assert gone == 10 - len(kept) > 3
    assert {1, 3, 5, 10} <= set(kept)
    for version in kept:
        assert ids(tables, version)
    named = {path for v in kept for path in tables.open(NAME, v).entries}
    assert on_disk(tables, "parquet") > named  # readers may have opened them
    assert sweep(tables.open(NAME), at=now + 4 * 24 * hour) == 0
    for at in (2.5, 4.0):
        assert expire(tables.open(NAME), past, at=now + at * hour) == 0
    assert on_disk(tables, "parquet") == named
    assert tables.open(NAME).progress("a") == 10
    assert put(tables.open(NAME), 11, (11, "a")) == 11
    until = tables.open_until(NAME, "a", 4)  # past snapshots that were expired in between
    assert until is not None and until.version in kept


def test_many_snapshots_of_a_minute_are_one(tables: IcebergTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "NEWEST", 3)
    for n in range(8):
        put(tables.open(NAME), n + 1, (n, "a"), removed=1)
    assert expire(tables.open(NAME), Past(7 * 86_400.0)) >= 4
    assert set(tables.versions(NAME)) >= {6, 7, 8}
    assert ids(tables) == [7]


def test_orphans_are_deleted_once_they_are_old(tables: IcebergTables) -> None:
    put(tables.open(NAME), 1, (1, "a"))
    stale = tables.open(NAME)
    put(tables.open(NAME), 2, (2, "b"), removed=1)
    with pytest.raises(ConcurrentCommitError):
        put(stale, 3, (3, "c"))
    before = len(on_disk(tables, "parquet")), len(on_disk(tables, "avro"))
    assert sweep(tables.open(NAME)) == 0
    assert sweep(tables.open(NAME), at=time.time() + 4 * 86_400) >= 1
    assert len(on_disk(tables, "parquet")) == before[0] - 1 == 2
    assert ids(tables, 1) == [1] and ids(tables) == [2]


def test_a_dropped_table_leaves_nothing(tables: IcebergTables) -> None:
    put(tables.open(NAME), 1, (1, "a"))
    tables.rename(NAME, "other.thing")
    assert not tables.exists(NAME) and tables.exists("other.thing")
    tables.drop("other.thing")
    tables.drop("other.thing")
    assert not tables.exists("other.thing") and not on_disk(tables, "*")


def test_a_commit_without_files_has_columns_and_progress(tables: IcebergTables) -> None:
    put(tables.open(NAME), 1, (1, "a"))
    now = tables.open(NAME)
    assert Commit(NAME, now.table, progress={"a": 7}).run() == 2
    assert (tables.open(NAME).progress("a"), ids(tables)) == (7, [1])


PARTITIONED = pa.schema(
    [("id", pa.int64()), ("made", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("region", pa.string())]
)


def partitioned(tables: IcebergTables, *partition: str, sort: tuple[str, ...] = ()) -> IcebergTable:
    tables.create("shop.parts", PARTITIONED, physical=PhysicalLayout(partition, sort))
    return tables.open("shop.parts")


def some_rows(count: int) -> pa.Table:
    day = dt.date(1968, 12, 30)
    return pa.table(
        [
            [None if n == 3 else n * 7 - 20 for n in range(count)],
            [None if n == 5 else dt.datetime(1969, 12, 31, 20, tzinfo=dt.timezone.utc) + dt.timedelta(hours=n) for n in range(count)],
            [None if n == 7 else day + dt.timedelta(days=40 * n) for n in range(count)],
            [None if n == 9 else "ab"[n % 2] for n in range(count)],
        ],
        schema=PARTITIONED,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["bucket(4, id)", "bucket(3, day)", "year(day)", "month(made)", "day(made)", "hour(made)", "day(day)", "region", "day", "id"])  # fmt: skip
def test_rows_have_the_partitions_of_the_specification(tables: IcebergTables, text: str) -> None:
    now, rows = partitioned(tables, text), some_rows(24)
    part = now.files.part(PARTITIONED)
    for batch in rows.to_batches(max_chunksize=10):
        part.write(batch)
    now.exchange([], part.close_all(), "a", 1, {})
    found = tables.open("shop.parts")
    (field,) = found.table.spec().fields
    name, kind = (
        found.iceberg_schema.find_column_name(field.source_id),
        found.iceberg_schema.find_type(field.source_id),
    )
    expect = field.transform.transform(kind)  # pyiceberg's, row by row
    total = 0
    for path, entry in found.entries.items():
        with found.files.open(path) as file:
            values = file.read().column(name).to_pylist()
        total += len(values)
        assert {expect(plain(value)) for value in values} == {entry.partition[0]}
    assert total == 24
    assert (
        found.table.scan().to_arrow().sort_by("id")["id"].to_pylist() == rows.sort_by("id")["id"].to_pylist()
    )
    assert found.table.scan(row_filter="id = 8").to_arrow()["id"].to_pylist() == [8]


def plain(value: Any) -> Any:
    """A value as Iceberg has it."""
    if isinstance(value, dt.datetime):
        return int((value - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) / dt.timedelta(microseconds=1))
    return (value - dt.date(1970, 1, 1)).days if isinstance(value, dt.date) else value


def test_files_of_a_partition_are_joined_and_sorted(tables: IcebergTables) -> None:
    partitioned(tables, "region", "bucket(2, id)", sort=("made", "id"))
    for n in range(3):
        now = tables.open("shop.parts")
        part = now.files.part(PARTITIONED)
        part.write(some_rows(24).slice(16 - 8 * n, 8))
        now.exchange([], part.close_all(), "a", n + 1, {})
    assert compact(tables.open("shop.parts"), 3)
    found = tables.open("shop.parts")
    joined = [entry for entry in found.entries.values() if entry.sort_order_id]
    assert joined and len(joined) == len({tuple(str(one.partition[n]) for n in range(2)) for one in joined})
    for entry in joined:
        with found.files.open(entry.file_path) as file:
            made = [one for one in file.read()["made"].to_pylist() if one is not None]
        assert made == sorted(made)
    assert found.table.scan().to_arrow().num_rows == 24


def test_partitions_that_do_not_fit_are_refused(tables: IcebergTables) -> None:
    for text, why in (
        ("bucket(4, region)", "cannot be partitioned"),
        ("day(id)", "cannot"),
        ("no", "no column"),
    ):
        with pytest.raises(ConfigError, match=why):
            partitioned(tables, text)
    put(tables.open(NAME), 1, (1, "a"))
    with tables.catalog.load_table(NAME).update_spec() as update:
        update.add_field("v", TruncateTransform(3), "v3")
    with pytest.raises(UnsupportedError, match="partitioned by truncate"):
        put(tables.open(NAME), 2, (2, "b"))
