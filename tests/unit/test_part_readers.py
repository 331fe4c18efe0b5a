"""Who reads the parts of tables: threads the first few rows, then processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.capture import part_readers
from tailrace.capture.part_readers import PartLoad, PartReaders
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.types import schema_of
from tailrace.sources.base import BaselineBatch, BaselinePart, Snapshot

pytestmark = pytest.mark.unit
RELATION = Relation(7, "s", "t", "d", (Column("pid", 1, "integer", "int4", "int", key=True),))


def own_pid(_: Snapshot, relation: Relation, __: BaselinePart) -> Iterator[BaselineBatch]:
    yield BaselineBatch(pa.record_batch([[os.getpid()]], schema=schema_of(relation.columns)), [])


def test_processes_read_what_comes_after_a_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even an empty part is counted: it costs a connection."""
    monkeypatch.setattr(part_readers, "FEW_ROWS", 3 * part_readers.PART_ROWS)
    path, here = str(tmp_path), os.getpid()
    lake.create(path, schema_of(RELATION.columns))
    load = PartLoad(own_pid, Snapshot("s", b"1"), RELATION, path, keep_bad=False)
    parts = [BaselinePart("t", 0, None, rows) for rows in (0, part_readers.PART_ROWS, 1, 1, 0)]
    with PartReaders(2) as readers:
        loaded = [readers.load(load, part) for part in parts]
    lake.commit(path, [one.added for one in (each.result() for each in loaded) if one.added], progress={})
    pids = lake.read(path)["pid"].to_pylist()
    assert (len(pids), pids.count(here)) == (5, 3)
