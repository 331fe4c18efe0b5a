"""`tailrace apply --dry-run` into a database says what the call then does, with a new layout, too."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest

from tailrace.errors import TailraceError
from tailrace.model.change import Column, Relation
from tailrace.operate import vendor_apply
from tailrace.testing.images import ID, Image, V, change_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.db, pytest.mark.spark, pytest.mark.slow]
PLAIN = Relation(1, "shop", "item", "d", (ID, V))
WIDE = PLAIN.with_columns([ID, V, Column("n", 3, "integer", "int4", "int")])
BIG = PLAIN.with_columns([replace(ID, type="bigint", source_type="bigint", kind="int8"), V])


class Call:
    """Calls of `tailrace apply`, each target in a schema and under a name of its own."""

    def __init__(self, spark: SparkSession, root: Path, url: str) -> None:
        self._spark, self._root, self._url, self._files = spark, root, url, 0

    def put(self, relation: Relation, images: Sequence[Image]) -> None:
        """The newest file, in place of the one before."""
        self._files += 1
        shutil.rmtree(self._root / "in", ignore_errors=True)
        (self._root / "in" / "shop.item__ct").mkdir(parents=True)
        place = f"{self._root}/in/shop.item__ct/{self._files}.parquet"
        pq.write_table(change_rows(relation, images), place)

    def apply(
        self, schema: str, mode: str | None = None, on: Mapping[str, str] | None = None, *,
        key: str = "id", dry_run: bool = False, resume: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        ruling = vendor_apply.ruling(mode, on or {}, None, None, "all")
        (told,) = vendor_apply.run(
            self._spark, f"{self._root}/in", "tailrace", {"key": key} if key else {},
            f"{self._url}&schema={schema}", control=f"{self._root}/{schema}", ruling=ruling, app_id=schema,
            dry_run=dry_run, resume=resume,
        )["tables"]  # fmt: skip
        return dict(told)

    def both(self, *given: Any, **more: Any) -> dict[str, Any]:
        """What the call does, which the dry run has said."""
        would = self.apply(*given, **more, dry_run=True)
        does = self.apply(*given, **more)
        words = ("table", "I", "U", "D", "actions", "conflicts", "flagged", "up to")
        assert bool(would["suspended"]) == bool(does["suspended"])
        assert {k: would.get(k) for k in words} == {k: does.get(k) for k in words}
        return does


@pytest.fixture
def call(spark: SparkSession, tmp_path: Path, database: str) -> Call:
    return Call(spark, tmp_path, database)


def test_a_new_column(call: Call) -> None:
    """Of archives, of tables with and without a key."""
    log = {"data_error": "log"}
    ways: list[tuple[tuple[Any, ...], str]] = [
        (("archive", "archive", log), "id"),
        (("bag", "upsert", log), ""),
        (("keyed", "upsert", log), "id"),
    ]
    call.put(PLAIN, [(1, "I", {"id": 1, "v": "a"}), (2, "I", {"id": 2, "v": "b"})])
    for given, key in ways:
        assert call.apply(*given, key=key)["inserted"] == 2
    call.put(WIDE, [(3, "I", {"id": 3, "v": "c", "n": 7}), (4, "I", {"id": 4, "v": "d", "n": 8})])
    for given, key in ways:
        done = call.both(*given, key=key)
        assert (done["inserted"], done["conflicts"]) == (2, {})


def test_a_type_that_becomes_wider(call: Call) -> None:
    call.put(PLAIN, [(1, "I", {"id": 1, "v": "a"})])
    call.apply("wider", "upsert", {"data_error": "log"})
    call.put(BIG, [(2, "I", {"id": 1 << 40, "v": "b"})])
    assert call.both("wider", "upsert", {"data_error": "log"})["inserted"] == 1


@pytest.mark.parametrize("mode", [None, "upsert"])
def test_a_target_that_cannot_be_used(call: Call, database: str, mode: str | None) -> None:
    """Somebody made it, and it has rows; the changes have a type that its values cannot be turned into."""
    with psycopg.connect(database) as db:
        db.execute("create schema made")
        db.execute("create table made.item (id int primary key, v text)")
        db.execute("insert into made.item values (1, 'theirs')")
    call.put(PLAIN, [(1, "I", {"id": 1, "v": "a"})])
    call.apply("retyped", mode)
    for schema, why in (("made", "has rows"), ("retyped", "v' changed from string to int")):
        if schema == "retyped":
            call.put(replace(PLAIN, columns=(ID, replace(V, type="int"))), [(2, "I", {"id": 2, "v": 5})])
        said = []
        for dry_run in (True, False):
            with pytest.raises(TailraceError, match=why) as refused:
                call.apply(schema, mode, dry_run=dry_run)
            said.append(str(refused.value))
        assert said[0] == said[1]


def test_resumed_tables(call: Call) -> None:
    call.put(PLAIN, [(1, "U", {"id": 1, "v": "a"}), (2, "I", {"id": 2, "v": "b"})])
    assert "update_missing" in str(call.both("held", "strict", {"update_missing": "suspend"})["suspended"])
    assert "update_missing" in str(call.apply("held", "strict", {"update_missing": "log"})["suspended"])
    done = call.both("held", "strict", {"update_missing": "log"}, resume=True)
    assert (done["inserted"], done["conflicts"], done["suspended"]) == (1, {"update_missing": 1}, None)
