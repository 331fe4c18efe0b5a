"""The key log's texts of a batch, rendered while its images come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.engine.columns import AT, MASK, OPER, SEQ
from tailrace.engine.log_rows import ChangeTexts
from tailrace.engine.source import order
from tailrace.execution import InlineExecutor
from tailrace.targets import auditor, text_renderer
from tailrace.targets.auditor import source_of
from tailrace.targets.change_batch import audit_of
from tailrace.targets.merge_result import ApplyOutcome
from tailrace.targets.text_renderer import TextRenderer

from ..spark.rules_model import Change, history
from .test_audit import COLUMNS, KEY, STORED, Place, change, images

pytestmark = pytest.mark.unit
WANTED = pa.schema([*zip((SEQ, OPER, MASK, AT), STORED.types, strict=False), *COLUMNS])


def engine_images(one: Change) -> list[dict[str, Any]]:
    """The rows of a change under the names that the engine has."""
    return [dict(zip(WANTED.names, row.values(), strict=True)) for row in images(one)]


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_renderer, "_ROWS", 3)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("begun", [500, 1 << 30], ids=["while they come", "at the end"])
def test_texts_are_those_of_the_changes_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, shuffled: bool, begun: int
) -> None:
    monkeypatch.setattr(text_renderer, "_MIN_BYTES", begun)
    audit = audit_of(Place(tmp_path, "strict", {}).batch([change(1, "I", "p")]))
    rows = [row for one in history(random.randrange(10**9), 5, 40) for row in engine_images(one)]
    came = random.sample(rows, len(rows)) if shuffled else rows
    batches = [pa.RecordBatch.from_pylist(came[n : n + 7], WANTED) for n in range(0, len(came), 7)]
    with TextRenderer(audit, threads) as texts:
        whole = pa.Table.from_batches(list(texts.pass_through(batches)))
        texts.finish(whole, order(whole.combine_chunks()))
        found = ChangeTexts.joined([part.result() for part in texts.parts])
    wanted = ChangeTexts.of_changes(pa.Table.from_pylist(rows, WANTED), audit.header, images=True)
    assert found.keys.equals(wanted.keys)
    assert found.images is not None
    assert found.images.equals(wanted.images)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_log_that_is_made_in_parts_has_the_rows_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """One thread does all in the order in which it is given."""
    monkeypatch.setattr(text_renderer, "_MIN_BYTES", 500)
    monkeypatch.setattr(auditor, "_now", lambda: datetime(2026, 1, 1, tzinfo=timezone.utc))
    audit = audit_of(Place(tmp_path, "strict", {}).batch([change(1, "I", "p")]))
    whole = pa.Table.from_pylist([r for c in history(3, 5, 40) for r in engine_images(c)], WANTED)

    def made(texts: Sequence[Future[ChangeTexts]], pool: Executor) -> list[dict[str, Any]]:
        one = auditor.BatchAuditor(audit, 200, source_of(whole, KEY, COLUMNS, audit.rules), texts)
        one.decide(np.zeros(whole.num_rows, np.int64))
        one.start_log(pool)
        one.finish()
        done = one.result(ApplyOutcome())
        assert done is not None
        (part,) = done.parts
        return pq.read_table(f"{tmp_path}/keylog/{part.path}").to_pylist()

    with TextRenderer(audit, threads) as texts:
        list(texts.pass_through(whole.to_batches(max_chunksize=7)))
        texts.finish(whole, None)
        assert len(texts.parts) > 3
        assert made(texts.parts, texts.pool) == made([], InlineExecutor())
