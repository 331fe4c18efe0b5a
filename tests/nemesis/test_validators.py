"""Chaos's validators find what is planted, and count what they had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailrace.config.task import Task, load
from tailrace.lake import log

from .chaos.tasks import plan, written
from .chaos.validators import OPER, POSITION, SEQ, _changes, _keylog, _log

pytestmark = pytest.mark.unit
TABLE = "m.keyed"
KEYLOG = ["subscription_id", "change_row_counter", "change_row_type", "result_error", "result_row_count"]


def _task(folder: Path) -> Task:
    source, database = (
        "postgresql://postgres@127.0.0.1:1/postgres",
        "postgresql://postgres@127.0.0.1:2/postgres",
    )
    (folder / "chaos.yaml").write_text(written(Random(1), plan(0, whole=True), source, database))
    return load(folder / "chaos.yaml")


def _seq(number: int) -> str:
    return f"{20261122}{0:08d}{number:019d}"


def _write(path: str, names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
    columns = list(zip(*rows, strict=True))
    arrays = [
        pa.array(c, {"result_error": pa.string(), "result_row_count": pa.int64()}.get(n))
        for n, c in zip(names, columns, strict=True)
    ]
    write_deltalake(path, pa.table(dict(zip(names, arrays, strict=True))), mode="overwrite")


def _made(
    task: Task,
    changes: Sequence[tuple[int, str]],
    tracked: Sequence[int],
    logged: Sequence[tuple[int, str | None] | tuple[int, str | None, str, int | None]] = (),
) -> None:
    _write(task.changes_path(TABLE), [SEQ, OPER, POSITION], [(_seq(n), o, f"{n:04d}") for n, o in changes])
    _write(task.tracking_path, ["_Policy-Id", "change_seq"], [(TABLE, _seq(n)) for n in tracked])
    if logged:
        full = [(*one, "U", 1)[:4] for one in logged]
        _write(task.keylog_path, KEYLOG, [(TABLE, n, kind, error, count) for n, error, kind, count in full])


def _found(task: Task) -> tuple[list[str], Counter[str]]:
    judged: Counter[str] = Counter()
    return list(_changes(task, [TABLE], judged)), judged


def _of_keylog(task: Task, window: str = "exact", closes: int = 0) -> tuple[list[str], Counter[str]]:
    judged: Counter[str] = Counter()
    taken: Any = {TABLE: SimpleNamespace(position="0002", window=window, closes=closes)}
    return list(_keylog(task, taken, judged)), judged


def test_what_is_right_is_counted(tmp_path: Path) -> None:
    task = _task(tmp_path)
    _made(task, [(1, "I"), (2, "B"), (2, "U"), (3, "D")], [1, 2, 3], [(2, None), (3, None)])
    assert _found(task) == ([], Counter({"changes": 4, "TRACKING": 3}))
    assert _of_keylog(task) == ([], Counter({"key log": 2, "row counts": 2}))  # change 1 is in the baseline


def test_a_truncate_has_no_row_count(tmp_path: Path) -> None:
    task = _task(tmp_path)
    _made(task, [(2, "T")], [2], [(2, None, "T", None)])
    assert _of_keylog(task) == ([], Counter({"key log": 1, "row counts": 1}))


def test_what_changes_met_in_an_open_window_is_not_judged_and_what_they_met_behind_it_is(
    tmp_path: Path,
) -> None:
    task, odd = _task(tmp_path), "insert_exists: x"
    _made(task, [(n, "I") for n in (2, 3, 4)], [2, 3, 4], [(2, odd), (3, odd), (4, None)])
    assert _of_keylog(task, "open", 3) == ([], Counter({"key log": 3, "row counts": 1}))
    [find] = _of_keylog(task, "open", 2)[0]
    assert "1 changes met something else than they expected" in find


def test_planted_in_change_tables_and_tracking(tmp_path: Path) -> None:
    task = _task(tmp_path)
    for changes, tracked, word in [
        ([(1, "I"), (1, "I")], [1], "1 change rows twice"),
        ([(1, "I"), (2, "B")], [1, 2], "1 old images without an update"),
        ([(1, "I"), (2, "U")], [1], "differ in 1 changes"),
        ([(1, "I")], [1, 2], "differ in 1 changes"),
        ([(1, "I")], [1, 1], "stand there twice"),
    ]:
        _made(task, changes, tracked)
        [find] = _found(task)[0]
        assert word in find


def test_planted_in_the_key_log(tmp_path: Path) -> None:
    task, changes = _task(tmp_path), [(1, "I"), (2, "I"), (3, "I")]
    for logged, word in [
        ([(2, None)], "1 changes are not in the key log"),
        ([(2, None), (3, None), (3, None)], "1 changes are in the key log more than once"),
        ([(2, None), (3, None), (4, None)], "1 changes of the key log are not in TRACKING"),
        ([(2, None), (3, "insert_exists: x")], "1 changes met something else than they expected"),
        ([(2, None), (3, None, "U", 0)], "1 changes met something else than they expected"),
        ([(2, None), (3, None, "I", None)], "1 changes met something else than they expected"),
    ]:
        _made(task, changes, [1, 2, 3], logged)
        [find] = _of_keylog(task)[0]
        assert word in find


def test_planted_in_log(tmp_path: Path) -> None:
    task, row = _task(tmp_path), log.INSERT
    whole = [(log.BEGIN, 1), (row, 1), (log.COMMIT, 1), (log.BEGIN, 2), (row, 2), (log.COMMIT, 2)]
    for records, finds in [
        (whole, []),
        (whole[:2] + whole[3:], ["LOG: transaction 2 begins within 1"]),
        (whole[:3] + whole[4:], ["LOG: a record of 2 outside of it", "LOG: transaction 2 is not whole"]),
    ]:
        rows = [(kind, _seq(n), bytes([n]), trx) for n, (kind, trx) in enumerate(records)]
        _write(task.log_path, ["RECID", "CHANGE_SEQ", "LOGADDR", "TRXID"], rows)
        judged: Counter[str] = Counter()
        assert list(_log(task, judged)) == finds
        assert judged == {"LOG": len(records)}
