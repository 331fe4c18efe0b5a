"""Registered consumers: nothing that they need goes; who they are, and which of them do not move."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.cli.screen import reasons
from tailrace.errors import ConfigError
from tailrace.lake import delta as lake
from tailrace.operate import consumers, retention
from tailrace.operate.consumers import consumers_of, log_removed
from tailrace.operate.retention import purge_task
from tailrace.operate.status import status
from tailrace.state.declarations import APPLIED
from tailrace.store.kept import kept

from .retention_home import NOTE, NOW, Home, first, seq

pytestmark = pytest.mark.unit


def test_what_a_consumer_has_not_acknowledged_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    readers = consumers_of(home.task)
    readers.add("lake", tables=["shop.i*"])
    assert home.held() == [("the consumer lake", None)]
    assert (first(home), home.ids(NOTE)[0], kept(home.task.tracking_path)) == (1, 29, None)
    readers.acknowledge("lake", 8)
    assert (first(home), kept(home.task.tracking_path)) == (9, 8)
    readers.remove("lake")
    assert first(home) == 29


@pytest.mark.parametrize("names", [
    ["s.x,y"], ["s.x,y", "log.*"], ["s.a", "log.*"], [" s.a "], ["[a"], ['["s.a"]'], ['s."q"'], ["s.ü"], ["s.a[1]"],
])  # fmt: skip
def test_a_consumer_of_tables_with_any_name(tmp_path: Path, names: list[str]) -> None:
    readers = consumers.Consumers(str(tmp_path / "consumers"))
    readers.add("lake", tables=names)
    readers.acknowledge("lake", 7)
    (one,) = readers.all()
    assert one.tables == tuple(names)
    assert all(map(one.reads, names)) and not one.reads("s.y")


def test_who_is_not_registered_cannot_be_removed_also_if_nobody_is(tmp_path: Path) -> None:
    readers = consumers_of(Home(tmp_path, upto=4).task)
    with pytest.raises(ConfigError, match="no consumer 'lake' is registered") as error:
        readers.remove("lake")
    assert error.value.hint == "`tailrace consumer add TASK NAME` registers one"
    assert not lake.exists(readers.path)
    readers.add("search")
    with pytest.raises(ConfigError, match="no consumer 'lake' is registered") as error:
        readers.remove("lake")
    assert error.value.hint == "registered: search"


def test_a_consumer_that_has_not_moved_for_a_day_is_said(tmp_path: Path) -> None:
    home = Home(tmp_path)
    readers = consumers_of(home.task)
    readers.add("lake")
    assert status(home.task).consumers == {}
    day = dt.timedelta(days=1)
    readers._change(lambda have: [replace(c, at=c.at - 2 * day) for c in have])
    said = "it has acknowledged 0 of 36, and nothing for 2 days: old changes are kept for it"
    assert status(home.task).consumers == {"lake": said}
    assert reasons(status(home.task))[-1] == f"consumer lake: {said}"
    readers.acknowledge("lake", 36)
    assert status(home.task).consumers == {}


def applied_all(home: Home) -> None:
    lake.create(home.task.control_path("applied"), APPLIED.schema)
    lake.commit(home.task.control_path("applied"), [], progress={"tailrace/applied": 36})


def test_a_consumer_of_log_is_told_what_has_been_removed_from_it(tmp_path: Path) -> None:
    home = Home(tmp_path, "maintenance: {keep_log: 1h}", upto=8, both=False)
    path, readers = home.task.log_path, consumers_of(home.task)
    for numbers in ([1, 2], [3, 4], [5, 6]):
        lake.append(path, pa.table({"CHANGE_SEQ": [seq(n, 0) for n in numbers]}))
    applied_all(home)
    purge_task(home.task, now=NOW.timestamp() + 7200)
    assert (kept(path), log_removed(home.task)) == (4, 4)

    def tailrace(verb: str, *words: str) -> Result:
        return CliRunner().invoke(app, ["consumer", verb, str(home.file), *words])

    told = "records of LOG up to number 4 have been removed, or are about to be: it can read those after that"
    assert told in tailrace("add", "lake", "--log").stderr and told not in tailrace("add", "other").stderr
    missed = "'lake' has read up to 2, but records of LOG up to 4 have been removed"
    assert (
        missed in str(tailrace("ack", "lake", "2").exception) and tailrace("ack", "other", "2").exit_code == 0
    )
    assert tailrace("ack", "lake", "4").exit_code == 0 and status(home.task).consumers == {}
    readers._change(lambda have: [replace(c, acknowledged=2) for c in have])
    said = "it has acknowledged 2, but records of LOG up to 4 have been removed: it misses some"
    assert status(home.task).consumers == {"lake": said}


def test_a_consumer_that_registers_while_log_is_purged_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes too late to keep what goes, and before it has gone."""
    home = Home(tmp_path, "maintenance: {keep_log: 1h}", upto=8, both=False)
    for numbers in ([1, 2], [3, 4]):
        lake.append(home.task.log_path, pa.table({"CHANGE_SEQ": [seq(n, 0) for n in numbers]}))
    applied_all(home)
    seen: list[int] = []

    def looks(line: retention.Line, *, dry_run: bool) -> retention.Line:
        seen.append(log_removed(home.task))
        return line

    monkeypatch.setattr(retention.Line, "done", looks)
    purge_task(home.task, now=NOW.timestamp() + 7200)
    assert seen == [2] and kept(home.task.log_path) is None
