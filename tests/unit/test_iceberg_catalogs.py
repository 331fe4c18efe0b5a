"""Iceberg tables in other catalogs: REST, with faults, and Glue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.apply.checks.target import target_findings
from tailrace.config.task import Task, load
from tailrace.errors import ConfigError, TailraceError, TargetLostError
from tailrace.lake.iceberg import commit as commits
from tailrace.lake.iceberg.tables import IcebergTables
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.model.types import schema_of
from tailrace.targets.iceberg.target import IcebergTarget
from tailrace.targets.merge_result import MergeResult
from tailrace.targets.task_tables import iceberg_tables
from tailrace.testing.images import Image, batch_of, change_rows, count

from ..ending import ends
from ..iceberg_rest import Server, rest_catalog

pytestmark = pytest.mark.unit
RELATION = Relation(
    1, "shop", "item", "d",
    (Column("id", 1, "integer", "int4", "int", key=True), Column("v", 2, "text", "text", "string")),
)  # fmt: skip
TABLE = RELATION.table


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    said = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    with rest_catalog(IcebergTables("own", tuple(sorted(said.items()))).catalog) as found:
        yield found


@pytest.fixture
def target(server: Server) -> IcebergTarget:
    tables = IcebergTables("rest", (("type", "rest"), ("uri", server.uri)))
    return IcebergTarget(None, tables, app_id="t")  # type: ignore[arg-type]


def merge(target: IcebergTarget, start: int | None, *images: Image) -> MergeResult | TailraceError:
    rows = change_rows(RELATION, list(images))
    end = max(number for number, _, _ in images)
    one = batch_of(RELATION, list(images))
    given = {
        "rows": rows,
        "columns": rows.schema,
        "target": target.path(TABLE),
        "counts": count(RELATION, images),
    }
    for name, value in (given | {"range": ChangeRange(start, end)}).items():
        object.__setattr__(one, name, value)
    (done,) = target.merge([one])
    return done


def rows(target: IcebergTarget) -> list[tuple[int, str]]:
    found = target._tables.open(target.path(TABLE)).dataset().to_table().to_pylist()
    return sorted((row["id"], row["v"]) for row in found)


def image(key: int, value: str) -> dict[str, object]:
    return {"id": key, "v": value}


@pytest.mark.parametrize("fault", ["", "before", "after", "lost", "twice"])
def test_a_batch_is_applied_once_whatever_the_catalog_answers(
    server: Server, target: IcebergTarget, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_READ_BACK_S", (0.0, 0.1))
    target.alter(TABLE, RELATION, RELATION)
    assert isinstance(merge(target, None, (1, "I", image(1, "a")), (2, "I", image(2, "b"))), MergeResult)
    server.faults.append(fault)
    changes: list[Image] = [(3, "U", image(1, "A")), (4, "D", {"id": 2}), (5, "I", image(3, "c"))]
    done = merge(target, 2, *changes)
    if fault == "before":  # nothing was committed, which the catalog does not say
        assert isinstance(done, TailraceError) and "does not answer" in done.what
        assert target.progress(TABLE) == 2
        done = merge(target, 2, *changes)
    assert isinstance(done, MergeResult), done
    assert (rows(target), target.progress(TABLE)) == ([(1, "A"), (3, "c")], 5)
    again = merge(target, 5, (6, "U", image(3, "C")))
    assert isinstance(again, MergeResult) and again.outcome.updated == 1
    assert rows(target) == [(1, "A"), (3, "C")]


@pytest.mark.parametrize("point", ["delta.local", "delta.merged"])
def test_a_batch_is_applied_once_if_the_process_ends_beside_its_commit(
    target: IcebergTarget, point: str
) -> None:
    target.alter(TABLE, RELATION, RELATION)
    merge(target, None, (1, "I", image(1, "a")), (2, "I", image(2, "b")))
    changes: list[Image] = [(3, "U", image(1, "A")), (4, "D", {"id": 2})]
    with ends(point):
        merge(target, 2, *changes)
    assert target.progress(TABLE) == (2 if point == "delta.local" else 4)
    assert isinstance(merge(target, 2, *changes), MergeResult)
    assert (rows(target), target.progress(TABLE)) == ([(1, "A")], 4)


def test_layouts_and_names_change_in_a_rest_catalog(target: IcebergTarget) -> None:
    target.alter(TABLE, RELATION, RELATION)
    merge(target, None, (1, "I", image(1, "a")))
    wider = RELATION.with_columns(
        [
            Column("id", 1, "bigint", "int8", "bigint", key=True),
            Column("word", 2, "text", "text", "string"),
            Column("n", 3, "smallint", "int2", "smallint"),
        ]
    )
    target.alter(TABLE, RELATION, wider)
    assert target.columns(TABLE) == {"id": "bigint", "word": "string", "n": "smallint"}
    found = target._tables.open(TABLE)
    (fragment,) = found.dataset().get_fragments()
    assert fragment.to_table(schema=found.schema, columns=found.schema.names).to_pylist() == [
        {"id": 1, "word": "a", "n": None}
    ]
    target.alter(TABLE, wider, RELATION.with_columns(wider.columns[:1]))
    target._tables.rename(TABLE, "shop.thing")
    assert target._tables.open("shop.thing").schema == schema_of(wider.columns[:1])
    target._tables.drop("shop.thing")
    assert not target._tables.exists("shop.thing")


def test_tables_in_glue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In moto, with the files in a folder."""
    moto = pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with moto.mock_aws():
        said = {"type": "glue", "glue.region": "eu-central-1", "warehouse": str(tmp_path)}
        tables = IcebergTables("glue", tuple(sorted(said.items())))
        target = IcebergTarget(None, tables, app_id="t")  # type: ignore[arg-type]
        target.alter(TABLE, RELATION, RELATION)
        assert isinstance(merge(target, None, (1, "I", image(1, "a")), (2, "I", image(2, "b"))), MergeResult)
        stale = tables.open(TABLE)
        assert isinstance(merge(target, 2, (3, "D", {"id": 1})), MergeResult)
        part = stale.files.part(schema_of(RELATION.columns))
        part.write(pa.table([[9], ["late"]], schema=schema_of(RELATION.columns)))
        with pytest.raises(TailraceError):
            stale.exchange([], part.close_all(), "t", 9, {})
        assert (rows(target), target.progress(TABLE)) == ([(2, "b")], 3)


def task(folder: Path, target: str) -> Task:
    file = folder / "shop.yaml"
    file.write_text(f"name: shop\nsource: {{url: 'postgresql://me@localhost/shop'}}\ntarget: {target}\n")
    return load(file)


def test_a_catalog_that_does_not_answer_is_waited_for(server: Server, target: IcebergTarget) -> None:
    target.alter(TABLE, RELATION, RELATION)
    server.shutdown()
    server.server_close()
    with pytest.raises(TargetLostError, match="the catalog does not answer"):
        target.progress(TABLE)
    done = merge(target, None, (1, "I", image(1, "a")))
    assert isinstance(done, TargetLostError)


def test_a_check_finds_a_catalog_that_does_not_answer(tmp_path: Path) -> None:
    asked = task(tmp_path, "{type: iceberg, catalog: {type: rest, uri: 'http://127.0.0.1:9'}}")
    (found,) = target_findings(asked, [TABLE])
    assert (found.level, found.what.partition(":")[0]) == ("error", "the catalog does not answer")
    assert target_findings(task(tmp_path, "{type: iceberg, path: lake}"), [TABLE]) == []


def test_pyiceberg_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tailrace.lake.iceberg.tables", None)
    asked = task(tmp_path, "{type: iceberg, path: lake}")
    with pytest.raises(ConfigError, match="need pyiceberg") as caught:
        iceberg_tables(asked)
    assert caught.value.hint == "pip install 'tailrace[iceberg]'"
    (found,) = target_findings(asked, [TABLE])
    assert found.cure == "pip install 'tailrace[iceberg]'"


def test_the_catalog_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    found = task(
        tmp_path,
        "{type: iceberg, catalog: {name: prod, type: rest, uri: 'http://c', token: '${TOKEN}'}, "
        "table_name: 'l.{schema}_{table}'}",
    )
    tables = iceberg_tables(found)
    assert (tables.catalog_name, tables.warehouse, tables.name("shop.item")) == ("prod", "", "l.shop_item")
    assert dict(tables.properties) == {"type": "rest", "uri": "http://c", "token": "secret"}
    assert "secret" not in repr(found.target)
    for wrong in ("{path: lake, catalog: {type: rest}}", "{type: iceberg, table_name: x}"):
        with pytest.raises(ConfigError, match=r"catalog|table_name"):
            task(tmp_path, wrong)
    plain = iceberg_tables(task(tmp_path, "{type: iceberg, path: lake}"))
    assert plain.warehouse == str(tmp_path / "lake")
