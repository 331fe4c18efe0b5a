"""Who slept for a whole lease and goes on after somebody else has applied: nothing is there twice."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.engine.rules import Rules
from tailrace.errors import ConcurrentCommitError, OvertakenError
from tailrace.keylog.control_tables import EXCEPTIONS
from tailrace.lake import delta as lake
from tailrace.model.sequence import make
from tailrace.state import ledger
from tailrace.store import writer
from tailrace.targets.audit import RESULT_LOST
from tailrace.targets.lake.task_local_merge import TaskLocalMerge
from tailrace.targets.merge_result import MergeResult

from ..ending import ends
from .test_audit import TABLES, Place, change
from .test_log_gaps import home, ids, records, store

pytestmark = pytest.mark.unit
CHANGES = [change(1, "I", "p"), change(2, "I", "q"), change(3, "I", "r")]


@pytest.mark.parametrize("rules", [Rules.of("archive", {}), Rules.of("strict", {"insert_exists": "log"})])
def test_changes_follow_the_progress_that_they_were_chosen_by(tmp_path: Path, rules: Rules) -> None:
    """One has chosen all three, sleeps, and another applies the first two."""
    place = Place(tmp_path, "strict", {})
    place.rules, table = rules, TABLES.open(place.path)
    late, early = (TaskLocalMerge(place.batch(CHANGES[:many]), TABLES, table, -1, None) for many in (3, 2))
    early.run()
    with pytest.raises(ConcurrentCommitError, match="t is at 2, no longer at 0"):
        late.run()
    assert [r[1] for r in place.rows()] == ["p", "q"]
    assert not lake.exists(str(tmp_path / EXCEPTIONS))
    assert lake.progress(place.path, "t") == 2


def test_an_attempt_after_the_commit_does_not_know_what_it_found(tmp_path: Path) -> None:
    place = Place(tmp_path, "strict", {})
    place.rules = Rules.of("archive", {})
    one = place.batch(CHANGES)
    assert isinstance(place.merge(one), MergeResult)
    assert place.merge(one) == RESULT_LOST
    assert lake.version(place.path) == 1


def test_parts_are_added_behind_the_progress_that_they_follow(tmp_path: Path) -> None:
    path, rows = str(tmp_path / "t"), pa.table({"n": [1]})
    lake.append(path, rows, progress={"x": 4})
    part = lake.Part(path, rows.schema)
    part.write(rows)
    added = part.close()
    assert added is not None
    lake.append(path, rows, progress={"others": 9})
    assert TABLES.open(path).append([added], "x", 7, 4, {}) == 3
    with pytest.raises(ConcurrentCommitError, match="x is at 7, no longer at 4"):
        TABLES.open(path).append([added], "x", 9, 4, {})
    assert lake.read(path).num_rows == 3


def test_a_batch_is_recorded_behind_those_that_it_was_counted_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has the first transaction in its change table and sleeps; it wakes up when the next one has counted
    both."""
    at = home(tmp_path, 2)
    first, both = records(at, 1, 2, 3), records(at, *range(1, 7))

    def wakes(name: str) -> None:
        if name == "store.stored":
            monkeypatch.setattr(writer, "reach", lambda _: None)
            late = ledger.Stored(
                3, make(0, 3), "", dt.datetime.now(dt.timezone.utc), {"shop.item": {"rows": 1}}
            )
            ledger.write_stored(str(at / "stored"), late, {"shop.item": 7}, {ledger.STORE_APP: None})

    with ends("store.stored"):
        store(at).batch(first)
    monkeypatch.setattr(writer, "reach", wakes)
    with pytest.raises(OvertakenError, match="tailrace/store is at 3, no longer at 0") as caught:
        store(at).batch(both)
    assert str(caught.value.hint).startswith("another process of the task is running")
    store(at).batch(both)
    assert [(b.upto, b.rows) for b in ledger.read_stored(str(at / "stored"))] == [(3, 1), (6, 1)]
    assert ids(at) == [0, 1]
