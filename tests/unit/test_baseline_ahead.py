"""Baselines of several tables: the next ones are read while one becomes its target."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.capture import baseline_reader
from tailrace.capture.part_readers import PartReaders
from tailrace.capture.snapshot_sink import DeltaLanding
from tailrace.errors import SourceError, TableMovedError
from tailrace.lake import delta as lake
from tailrace.model.types import schema_of
from tailrace.sources.base import BaselineBatch, BaselinePart, Snapshot

from .test_log_and_store import ITEM

pytestmark = pytest.mark.unit


class Tables:
    """A source whose tables have one part each; `reads` is called with a table's name when its part is read."""

    def __init__(self, reads: Callable[[str], None]) -> None:
        self._reads = reads

    def relation(self, table: str) -> Any:
        return replace(ITEM, name=table.partition(".")[2])

    def parts(self, relation: Any, _: int) -> Sequence[Any]:
        return [BaselinePart(relation.table, 0, None, 1)]

    def part_reader(self) -> Any:
        def read(_: Snapshot, __: object, part: BaselinePart) -> Iterator[BaselineBatch]:
            self._reads(part.leaf)
            yield BaselineBatch(
                pa.RecordBatch.from_pylist([{"id": 1, "n": Decimal("2.0")}], schema_of(ITEM.columns)), []
            )

        return read


def take(
    at: Path,
    names: Sequence[str],
    reads: Callable[[str], None],
    *,
    lands: Callable[[str], None] = lambda table: None,
    record: Callable[[list[str]], None],
) -> list[str]:
    """Takes the baselines of tables `shop.NAME`; gives those that have to be read again."""

    def landing(relation: Any, _: object) -> bool:
        lands(relation.table)
        return True

    reading = baseline_reader.BaselineOptions(
        lambda table: DeltaLanding(str(at / table), "t"), str(at / "quarantine"), 10, landing=landing
    )
    with PartReaders(2) as readers:
        moved = baseline_reader.take_baselines(
            Tables(reads),  # type: ignore[arg-type]
            Snapshot("s", b"1"),
            {f"shop.{n}": baseline_reader.BaselineAttempt() for n in names},
            reading,
            lambda done: record([one.table for one in done]),
            readers,
        )
    return list(moved)


def test_tables_that_are_read_are_recorded_together(tmp_path: Path) -> None:
    read = {f"shop.{n}": threading.Event() for n in "abc"}
    told: list[list[str]] = []

    def lands(table: str) -> None:
        """The first one becomes its target when the others have been read."""
        assert all(one.wait(20) for one in read.values())

    take(tmp_path, "abc", lambda table: read[table].set(), lands=lands, record=told.append)
    assert [t for one in told for t in one] == ["shop.a", "shop.b", "shop.c"]
    assert [lake.read(str(tmp_path / f"shop.{n}")).to_pylist() for n in "abc"] == [
        [{"id": 1, "n": Decimal("2.0")}]
    ] * 3


def test_a_table_is_recorded_before_a_slow_one_is_waited_for(tmp_path: Path) -> None:
    recorded, told = threading.Event(), list[list[str]]()

    def reads(table: str) -> None:
        assert table == "shop.a" or recorded.wait(20), "the first table was not recorded in time"

    def record(tables: list[str]) -> None:
        told.append(tables)
        recorded.set()

    take(tmp_path, "ab", reads, record=record)
    assert told == [["shop.a"], ["shop.b"]]


def test_a_table_that_moved_is_read_again_and_the_others_are_taken(tmp_path: Path) -> None:
    told: list[str] = []

    def reads(table: str) -> None:
        if table == "shop.b":
            raise TableMovedError("shop.b was truncated", hint="it is read again")

    assert take(tmp_path, "abc", reads, record=told.extend) == ["shop.b"]
    assert told == ["shop.a", "shop.c"]


def test_an_error_leaves_what_was_taken_before_recorded(tmp_path: Path) -> None:
    told: list[str] = []

    def reads(table: str) -> None:
        if table == "shop.b":
            raise SourceError("the disk is full")

    with pytest.raises(SourceError, match="the disk is full"):
        take(tmp_path, "abc", reads, record=told.extend)
    assert told == ["shop.a"]
