"""Tables that are written anew, and somebody else who commits to them meanwhile."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.errors import ConcurrentCommitError
from tailrace.lake import delta as lake
from tailrace.lake import retrying

pytestmark = pytest.mark.unit
SCHEMA = pa.schema([("n", pa.int64())])


def made(path: str, *numbers: int) -> list[lake.AddedFile]:
    part = lake.Part(path, SCHEMA)
    part.write(pa.table({"n": list(numbers)}, schema=SCHEMA))
    added = part.close()
    return [added] if added else []


def held(path: str) -> list[int]:
    found: list[int] = sorted(lake.read(path)["n"].to_pylist())
    return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    lake.append(path, pa.table({"n": [1]}, schema=SCHEMA))
    return path


def test_nothing_is_written_over_without_the_version_it_was_made_from(path: str) -> None:
    with pytest.raises(TypeError):
        lake.overwrite(path, made(path, 2), schema=SCHEMA, progress={})  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        lake.commit(path, made(path, 2), progress={}, overwrite=True)  # type: ignore[call-arg]


def test_an_overwrite_leaves_what_came_after_that_version(path: str) -> None:
    before = lake.version(path)
    lake.append(path, pa.table({"n": [9]}, schema=SCHEMA))
    anew = made(path, 2)
    assert lake.overwrite(path, anew, schema=SCHEMA, progress={"x": 1}, only_after=before) is None
    assert (held(path), lake.progress(path, "x")) == ([1, 9], None)
    now = lake.version(path)
    assert lake.overwrite(path, anew, schema=SCHEMA, progress={"x": 1}, only_after=now) == now + 1
    assert (held(path), lake.progress(path, "x")) == ([2], 1)
    assert lake.overwrite(path, anew, schema=SCHEMA, progress={"x": 1}, only_after=now + 1) is None


def test_a_baseline_replaces_whatever_is_there_and_sets_its_progress_back(path: str) -> None:
    lake.commit(path, [], progress={"x": 7})
    assert lake.replace_all(path, made(path, 3), schema=SCHEMA, progress={"x": 2}) == lake.version(path)
    assert (held(path), lake.progress(path, "x")) == ([3], 2)


TIMES = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us"))])


def timed(path: str) -> list[lake.AddedFile]:
    """A part with a time without zone, which a table needs a feature for."""
    return lake.write_part(path, pa.table({"n": [3], "at": [datetime(2026, 1, 2)]}, schema=TIMES))


def test_the_version_of_a_baseline_has_its_rows_also_where_the_table_needs_a_feature_first(path: str) -> None:
    made = lake.replace_all(path, timed(path), schema=TIMES, progress={"x": 2})
    there = DeltaTable(path, version=made)
    assert there.to_pyarrow_table().to_pylist() == [{"n": 3, "at": datetime(2026, 1, 2)}]
    assert (made, there.transaction_version("x")) == (lake.version(path), 2)
    assert lake.replace_all(path, timed(path), schema=TIMES, progress={"x": 3}) == made + 1


def test_what_comes_before_a_feature_is_not_written_over(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    admits, before = lake.admits, lake.version(path)

    def slow(*args: Any, **words: Any) -> bool:
        monkeypatch.undo()
        allowed = admits(*args, **words)
        lake.append(path, pa.table({"n": [9]}, schema=SCHEMA))
        return allowed

    anew = timed(path)
    monkeypatch.setattr(lake, "admits", slow)
    assert lake.overwrite(path, anew, schema=TIMES, progress={"x": 1}, only_after=before) is None
    assert (held(path), lake.progress(path, "x")) == ([1, 9], None)


def test_who_is_too_slow_all_the_time_says_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying.time, "sleep", lambda _: None)
    seen: list[int] = []

    def once(now: DeltaTable) -> int | None:
        seen.append(now.version())
        lake.append(path, pa.table({"n": [9]}, schema=SCHEMA))
        return lake.overwrite(path, made(path, 2), schema=SCHEMA, progress={}, only_after=now.version())

    with pytest.raises(ConcurrentCommitError, match="faster than it can be rewritten"):
        lake.on_newest(path, once)
    assert seen == sorted(set(seen)) and held(path) == [1, *[9] * len(seen)]
