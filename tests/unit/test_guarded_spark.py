"""What Spark commits by itself to a Delta target, by a process that another one has taken over from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from tailrace.errors import LeaseLostError
from tailrace.lake import delta as lake
from tailrace.lake import guards
from tailrace.model.change import Column, Relation
from tailrace.targets.delta import layout, spark_io
from tailrace.targets.plans import FoldedChanges

pytestmark = pytest.mark.unit
RELATION = Relation(1, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
WRITES: dict[str, Callable[[MagicMock, str], Any]] = {
    "overwrite": lambda it, path: spark_io.write(it, path, 0, "overwrite", replaceWhere="site = 'eu'"),
    "add": lambda it, path: spark_io.write(it, path, 0, "append"),
    "deletion vectors": lambda it, path: spark_io.enable_vectors(it, path, 0),
    "merge": lambda it, path: spark_io.merge(
        it, FoldedChanges(it, ()), path, 0, RELATION, "x", 1, pruned=False
    ),
    "maintenance": lambda it, path: layout.maintain_distributed(it, path, 2, 60),
    "columns": lambda it, path: lake.add_columns(path, [pa.field("more", pa.int32())]),
}


def lost() -> None:
    raise LeaseLostError("taken over")


@pytest.mark.parametrize("write", WRITES)
def test_nothing_is_written_without_the_lease(
    tmp_path: Path, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_io, "col", MagicMock())
    path, it = str(tmp_path / "t"), MagicMock()
    lake.append(path, pa.table({"id": [1]}))
    before = lake.version(path)
    with guards.under(lost), pytest.raises(LeaseLostError):
        WRITES[write](it, path)
    assert lake.version(path) == before
    assert not any(name.startswith(("sql", "write")) for name, *_ in it.mock_calls)
