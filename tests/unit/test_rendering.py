"""The key log's texts of a batch, rendered while its images come."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.apply.targets import rendering
from tailrace.apply.targets.rendering import Rendering
from tailrace.engine.log_rows import ChangeTexts
from tailrace.engine.source import order

from ..spark.rules_model import history
from .test_audit import Place, images

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_ROWS", 3)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("begun", [500, 1 << 30], ids=["while they come", "at the end"])
def test_texts_are_those_of_the_changes_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, shuffled: bool, begun: int
) -> None:
    monkeypatch.setattr(rendering, "_BEGUN", begun)
    task = Place(tmp_path, "strict", {}).task(200, 0)
    rows = [row for change in history(random.randrange(10**9), 5, 40) for row in images(change)]
    came = random.sample(rows, len(rows)) if shuffled else rows
    batches = [pa.RecordBatch.from_pylist(came[n : n + 7], task.wanted) for n in range(0, len(came), 7)]
    with Rendering(task.audit, threads) as texts:
        whole = pa.Table.from_batches(list(texts.seen(batches)))
        texts.finish(whole, order(whole.combine_chunks()))
        found = ChangeTexts.joined([part.result() for part in texts.parts])
    wanted = ChangeTexts.of_changes(pa.Table.from_pylist(rows, task.wanted), task.audit.header, images=True)
    assert found.keys.equals(wanted.keys)
    assert found.images is not None
    assert found.images.equals(wanted.images)
