"""Old changes go by age and by position, and never what somebody still needs, whatever comes in between."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tailrace.apply.mapped_snapshots import record_load
from tailrace.apply.required_changes import Needs
from tailrace.cli.main import app
from tailrace.errors import ConfigError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model.sequence import number_of
from tailrace.operate import consumers, retention
from tailrace.operate.consumers import consumers_of, failing_in
from tailrace.operate.retention import PurgeOrder, number_at, purge_task
from tailrace.operate.status import status
from tailrace.state import ddl
from tailrace.state.declarations import APPLIED
from tailrace.state.open_warnings import open_warnings
from tailrace.store.kept import files_between, kept
from tailrace.store.tables import SEQ

from .retention_home import ITEM, KEEP, NOTE, Home, first, seq

pytestmark = pytest.mark.unit


def test_nothing_goes_unless_the_task_file_says_how_long_it_is_kept(tmp_path: Path) -> None:
    home = Home(tmp_path, "", both=False)
    assert (purge_task(home.task), first(home), lake.exists(consumers_of(home.task).path)) == ([], 1, False)


def test_changes_older_than_what_is_kept_go_and_the_tables_say_so(tmp_path: Path) -> None:
    home = Home(tmp_path)
    # kept: 10 days, that is from change 30 on; 29-32 stand in one file, not a quarter too old
    done = {one.table: one.as_dict() for one in purge_task(home.task)}
    assert done == {
        t: {"table": t, "files": 7, "rewritten": 0, "rows": 28, "kept_after": 28, "held": []}
        for t in (ITEM, NOTE, "TRACKING")
    }
    assert home.ids() == home.ids(NOTE) == [*range(29, 37)]
    assert lake.read(home.task.tracking_path)["_Change-Sequence"].to_pylist()[0] >= 29
    assert [kept(p) for p in (home.task.changes_path(ITEM), home.task.tracking_path)] == [28, 28]
    assert [one.goes.files for one in purge_task(home.task)] == [0, 0, 0]


def test_a_dry_run_says_the_same_and_takes_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path, both=False)
    said = [one.as_dict() for one in purge_task(home.task, dry_run=True)]
    assert home.ids()[0] == 1 and not lake.exists(consumers_of(home.task).path)
    assert said == [one.as_dict() for one in purge_task(home.task)]


def test_a_dry_run_tells_the_rows_of_files_that_would_be_rewritten_and_what_follows_them(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path, "store: {openedge: true}", both=False)
    path = str(Path(home.task.openedge_path) / "shop.CDC_item")
    for numbers in ([1, 2], [3, 4], [5, 6]):
        lake.append(path, pa.table({"_Change-Sequence": pa.array(numbers, pa.int64())}))
    order, run = PurgeOrder(upto=6), CliRunner()
    tracking = str(Path(home.task.openedge_path) / "PUB._Cdc-Change-Tracking")
    lake.create(tracking, pa.schema([("_Change-Sequence", pa.int64())]))
    lake.commit(tracking, [], progress={"tailrace/openedge": 36})
    dry = run.invoke(app, ["purge", str(home.file), "--end", "6", "--dry-run"]).output
    assert " ".join(dry.split()) == (
        "6 rows in 1 files would be removed from shop.item, 1 files to be rewritten; complete after change number 6 "
        "6 rows in 1 files would be removed from TRACKING, 1 files to be rewritten; complete after change number 6 "
        "6 rows in 3 files would be removed from shop.CDC_item; complete after change number 6"
    )
    said = [one.as_dict() for one in purge_task(home.task, order, dry_run=True)]
    assert (home.ids()[0], lake.exists(consumers_of(home.task).path)) == (1, False)
    assert said == [one.as_dict() for one in purge_task(home.task, order)]
    assert (home.ids()[0], lake.read(path).num_rows) == (7, 0)


def test_a_table_may_differ_and_tracking_too(tmp_path: Path) -> None:
    home = Home(tmp_path, "retention: {keep: 10d, tables: {shop.note: 20d}, tracking: forever}")
    assert (first(home), home.ids(NOTE)[0]) == (29, 17)
    assert kept(home.task.tracking_path) is None


def test_a_joined_file_is_rewritten_once_its_oldest_change_is_a_quarter_too_old(tmp_path: Path) -> None:
    home = Home(tmp_path, upto=36, both=False)
    DeltaTable(home.task.changes_path(ITEM)).optimize.compact()
    assert first(home) == 30
    for days, expected in ((1, 30), (2, 30), (3, 33)):
        assert first(home, days=days) == expected


def test_what_a_paused_table_has_not_got_stays_and_the_others_go(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.order("pause")
    home.applied(ITEM, 12)
    assert home.held() == [("its target (paused)", 12)]
    assert (first(home), home.ids(NOTE)[0]) == (13, 29)
    home.order("resume")
    home.applied(ITEM, 20)
    assert first(home) == 21


def test_a_removed_table_holds_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path, both=False)
    home.applied(ITEM, 12)
    home.order("remove")
    assert (home.held(), first(home)) == ([], 29)


def test_a_table_that_is_tracked_alone_has_no_target_to_wait_for(tmp_path: Path) -> None:
    home = Home(tmp_path, KEEP + "\npolicies: {shop.item: 0}", both=False)
    home.applied(ITEM, 2)
    assert (home.held(), first(home)) == ([], 29)


Prepare = Callable[[Home], object]
WAITING: dict[str, tuple[Prepare, str]] = {
    "asked": (lambda h: h.order("resync"), "its new baseline"),
    "landing": (lambda h: h.land(2), "its new baseline"),
    "open": (lambda h: h.baseline(ITEM, 2, after=20, window="open"), "its baseline, whose window is open"),
}


@pytest.mark.parametrize("name", WAITING)
def test_nothing_of_a_table_goes_while_a_baseline_is_on_its_way(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path)
    prepare, who = WAITING[name]
    prepare(home)
    assert (home.held(), first(home), home.ids(NOTE)[0]) == ([(who, None)], 1, 29)
    # It has landed: the target is back at where LOG was when it began.
    home.baseline(ITEM, 2, after=20, order=9, **({"window": "open", "closes": 24} if name == "open" else {}))
    home.applied(ITEM, 20)
    assert (home.held(), first(home)) == ([("its target", 20)], 21)
    home.applied(ITEM, 36)
    assert first(home) == 29


def test_a_table_without_its_first_baseline_keeps_everything(tmp_path: Path) -> None:
    home = Home(tmp_path, both=False)
    DeltaTable(home.task.control_path("baselines")).delete(f"\"table\" = '{ITEM}'")
    assert home.held()[0] == ("its first baseline", None)
    assert first(home) == 1


def test_a_table_that_was_gone_before_its_first_baseline_keeps_nothing(tmp_path: Path) -> None:
    """None can come any more; made again, it gets one that needs no older changes."""
    home = Home(tmp_path)
    home.baseline(NOTE, 2, after=20)
    DeltaTable(home.task.control_path("baselines")).delete(f"\"table\" = '{ITEM}'")
    known = log.history(home.task.relations_path)
    assert Needs(home.task).passed(known) is None
    ddl.record_events(
        home.task.control_path("ddl_events"), [ddl.CatalogEvent(ITEM, 1, "drop_table", seq(30, 10))]
    )
    assert (home.held(), Needs(home.task).passed(known)) == ([], 20)
    ddl.record_events(
        home.task.control_path("ddl_events"), [ddl.CatalogEvent(ITEM, 1, "recreate_table", seq(31, 9))]
    )
    assert (home.held()[0], Needs(home.task).passed(known)) == (("its first baseline", None), None)


def test_a_dropped_table_that_gets_no_first_baseline_keeps_what_its_target_lacks(tmp_path: Path) -> None:
    """Where baselines are off, its changes alone make its target: it reads them like those of any table."""
    home = Home(tmp_path, f"{KEEP}\nbaseline: {{enabled: false}}", both=False)
    DeltaTable(home.task.control_path("baselines")).delete(f"\"table\" = '{ITEM}'")
    home.applied(ITEM, 8)
    ddl.record_events(
        home.task.control_path("ddl_events"), [ddl.CatalogEvent(ITEM, 1, "drop_table", seq(30, 10))]
    )
    assert home.held() == [("its target", 8)]
    assert first(home) == 9
    home.applied(ITEM, 36)
    assert home.held() == [] and first(home) > 9


def test_the_store_may_pass_what_older_baselines_have_while_newer_ones_are_on_their_way(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    home.baseline(ITEM, 2, after=16)
    home.baseline(NOTE, 2, after=20)
    known = log.history(home.task.relations_path)
    assert Needs(home.task).passed(known) == 16
    home.order("resync")
    assert (home.held()[0], Needs(home.task).passed(known)) == (("its new baseline", None), 16)


def test_a_baseline_that_waits_to_be_mapped_keeps_what_comes_behind_it(tmp_path: Path) -> None:
    home = Home(tmp_path, both=False)
    home.baseline(ITEM, 2, after=20, version=None)
    assert (home.held(), first(home)) == ([("its baseline, which waits to be mapped", 20)], 21)
    record_load(home.task.control_path("mapped"), ITEM, (2, "x", 1))
    assert first(home) == 29


def test_what_the_key_log_has_not_logged_stays(tmp_path: Path) -> None:
    home = Home(tmp_path, KEEP + "\nkeylog: {mode: all}", both=False)
    path = home.task.keylog_path
    lake.create(path, pa.schema([("keylog_sort", pa.int64())]))
    lake.commit(path, [], progress={f"t/keylog/{ITEM}": 12})
    assert (home.held(), first(home)) == ([("the key log", 12)], 13)


def test_what_the_tables_in_openedges_layout_lack_stays_and_they_follow(tmp_path: Path) -> None:
    home = Home(tmp_path, KEEP + "\nstore: {openedge: true}", both=False)
    root = Path(home.task.openedge_path)
    assert (home.held(), first(home)) == ([("its tables in OpenEdge's layout", None)], 1)
    for name in ("shop.CDC_item", "PUB._Cdc-Change-Tracking"):
        for start in range(1, 36, 4):
            rows = pa.table({"_Change-Sequence": pa.array([*range(start, start + 4)], pa.int64())})
            lake.append(str(root / name), rows)
        lake.commit(str(root / name), [], progress={"tailrace/openedge": 36})
    done = {one.table: one.goes.rows for one in purge_task(home.task)}
    assert done == {ITEM: 28, "TRACKING": 28, "shop.CDC_item": 28, "PUB._Cdc-Change-Tracking": 28}
    assert lake.read(str(root / "shop.CDC_item"))["_Change-Sequence"].to_pylist()[0] >= 29


def test_a_validation_keeps_everything_until_it_ends_or_died_long_ago(tmp_path: Path) -> None:
    home = Home(tmp_path, both=False)
    with consumers_of(home.task).held("validate", lambda _: None, most_s=3600):
        assert first(home) == 1
    assert consumers_of(home.task).all() == []
    consumers_of(home.task)._hold("validate (gone)", -1)
    assert first(home) == 29


def test_a_validation_that_lasts_longer_than_its_hold_says_again_that_it_is_there(tmp_path: Path) -> None:
    readers = consumers_of(Home(tmp_path, upto=4, both=False).task)
    with readers.held("validate", lambda _: None, most_s=2):
        until = readers.all()[0].until
        time.sleep(2.5)
        (one,) = readers.all()
        assert until is not None and one.until is not None and one.until > until
    assert readers.all() == []


def test_validation_that_cannot_be_registered_again_is_an_open_warning_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Home(tmp_path, upto=4, both=False).task
    readers, hold = consumers_of(task), consumers.Consumers._hold
    with readers.held("validate", failing_in(task), most_s=0.8):
        monkeypatch.setattr(consumers.Consumers, "_hold", _full)
        assert soon(lambda: [w.split(", process")[0] for w in status(task).warnings]) == [
            f"validate ({platform.node()}"
        ]
        (one,) = open_warnings(task, {})
        assert one.what.endswith("cannot be registered again: no space") and one.cure == "it is tried again"
        monkeypatch.setattr(consumers.Consumers, "_hold", hold)
        assert soon(lambda: not open_warnings(task, {}))
    assert status(task).warnings == []


def _full(*_: object) -> None:
    raise OSError("no space")


def soon(found: Callable[[], Any]) -> Any:
    """What is found within ten seconds."""
    until = time.monotonic() + 10
    while not (now := found()) and time.monotonic() < until:
        time.sleep(0.05)
    return now


def test_a_consumer_that_registers_while_a_purge_begins_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path, both=False)
    readers, promise = consumers_of(home.task), consumers.Consumers.promise
    readers.add("other")
    readers.remove("other")

    def late(
        self: consumers.Consumers, upto: int | None, version: int | None, *, log: int | None = None
    ) -> bool:
        if not readers.all():
            readers.add("lake")
            readers.acknowledge("lake", 8)
        return promise(self, upto, version, log=log)

    monkeypatch.setattr(consumers.Consumers, "promise", late)
    assert first(home) == 9
    assert readers.promised == 8


def test_a_resync_that_is_asked_for_once_a_purge_has_looked_needs_nothing_of_what_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, promise = Home(tmp_path, both=False), consumers.Consumers.promise

    def asked(
        self: consumers.Consumers, upto: int | None, version: int | None, *, log: int | None = None
    ) -> bool:
        done = promise(self, upto, version, log=log)
        if done:
            home.order("resync")
        return done

    monkeypatch.setattr(consumers.Consumers, "promise", asked)
    assert (first(home), home.held()) == (29, [("its new baseline", None)])
    # Its baseline began behind all that LOG had then, and so behind what went.
    home.baseline(ITEM, 2, after=36, order=1)
    home.applied(ITEM, 36)
    path = home.task.changes_path(ITEM)
    assert files_between(path, DeltaTable(path), SEQ, 36, 40) == []


def test_a_purge_that_dies_between_two_tables_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    with monkeypatch.context() as broken:
        trim, done = retention.trim, []

        def dies(path: str, *rest: object, **more: object) -> object:
            if done:
                raise OSError("gone")
            done.append(path)
            return trim(path, *rest, **more)  # type: ignore[arg-type]

        broken.setattr(retention, "trim", dies)
        with pytest.raises(OSError, match="gone"):
            purge_task(home.task)
    assert (home.ids()[0], home.ids(NOTE)[0]) == (29, 1)
    assert first(home, NOTE) == 29


def test_what_is_ordered_goes_by_age_or_position_but_not_what_somebody_needs(tmp_path: Path) -> None:
    home = Home(tmp_path, "")
    purge_task(home.task, PurgeOrder(upto=6, tables=("*.item",)))
    assert (home.ids()[0], home.ids(NOTE)[0], kept(home.task.tracking_path)) == (7, 1, None)
    purge_task(home.task, PurgeOrder(older_than=20 * 86_400))
    assert (home.ids()[0], home.ids(NOTE)[0], kept(home.task.tracking_path)) == (20, 20, 19)
    home.applied(ITEM, 22)
    assert home.held(order=PurgeOrder(upto=30)) == [("its target", 22)]
    purge_task(home.task, PurgeOrder(upto=30))
    assert (home.ids()[0], home.ids(NOTE)[0]) == (23, 31)


def test_positions_are_sequences_numbers_and_places_in_the_stream(tmp_path: Path) -> None:
    task = Home(tmp_path, both=False).task
    assert [number_at(task, text) for text in (seq(7, 33), "7", f"{8:040x}", f"{11:040X}", f"{3:040X}")] == [
        7, 7, 8, 8, 0,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="37 is beyond what is stored: change number 36"):
        number_at(task, "37")
    with pytest.raises(ConfigError, match="is beyond what is stored: change number 36"):
        number_at(task, f"{1000:040X}")
    with pytest.raises(ConfigError, match="'soon' is not a position"):
        number_at(task, "soon")
    with pytest.raises(ConfigError, match="'2026-11-22' is a time, not a position"):
        number_at(task, "2026-11-22")


def test_log_goes_once_it_is_stored_applied_and_read_by_who_reads_it(tmp_path: Path) -> None:
    home = Home(tmp_path, "maintenance: {keep_log: 1h}", both=False)
    task = home.task
    for numbers in ([1, 2], [3, 4], [40, 41], [42, 43]):
        lake.append(task.log_path, pa.table({"CHANGE_SEQ": [seq(n, 40 - n) for n in numbers]}))
    lake.create(task.control_path("applied"), APPLIED.schema)
    lake.commit(task.control_path("applied"), [], progress={"tailrace/applied": 36})
    assert purge_task(task) == []  # the files are young
    later = time.time() + 7200
    consumers_of(task).add("export", log=True)
    consumers_of(task).acknowledge("export", 2)
    (line,) = purge_task(task, now=later)
    assert (line.goes.files, [(n.who, n.after) for n in line.held]) == (
        1, [("the store", 36), ("apply", 36), ("the consumer export", 2)],
    )  # fmt: skip
    consumers_of(task).remove("export")
    purge_task(task, now=later)
    left = sorted(map(number_of, lake.read(task.log_path)["CHANGE_SEQ"].to_pylist()))
    assert (left, kept(task.log_path)) == ([40, 41, 42, 43], 4)


def test_the_newest_file_of_log_stays(tmp_path: Path) -> None:
    """Capture compares with it what the source sends again."""
    home = Home(tmp_path, "maintenance: {keep_log: 0s}", both=False)
    for numbers in ([1, 2], [3, 4]):
        lake.append(home.task.log_path, pa.table({"CHANGE_SEQ": [seq(n, n) for n in numbers]}))
    lake.create(home.task.control_path("applied"), APPLIED.schema)
    lake.commit(home.task.control_path("applied"), [], progress={"tailrace/applied": 36})
    for _ in range(2):
        purge_task(home.task, now=time.time() + 10)
        assert lake.read(home.task.log_path)["CHANGE_SEQ"].to_pylist() == [seq(3, 3), seq(4, 4)]


def test_the_commands_say_what_went_and_who_holds_the_rest(tmp_path: Path) -> None:
    home, run = Home(tmp_path), CliRunner()
    home.applied(NOTE, 12)
    file = str(home.file)
    first = run.invoke(app, ["consumer", "add", file, "lake", ITEM])
    assert first.exit_code == 0 and "removed" not in first.output
    assert run.invoke(app, ["consumer", "ack", file, "lake", seq(20, 20)]).exit_code == 0
    (one,) = json.loads(run.invoke(app, ["consumer", "list", file, "--json"]).output)
    assert (one["name"], one["acknowledged"], one["tables"]) == ("lake", 20, [ITEM])
    said = run.invoke(app, ["purge", file, "--dry-run"]).output.splitlines()
    assert [line.strip() for line in said if "kept" in line] == [
        "kept after 20 for the consumer lake", "kept after 12 for its target",
        "kept after 20 for the consumer lake",
    ]  # fmt: skip
    lines = json.loads(run.invoke(app, ["purge", file, "--json"]).output)
    assert [(one["table"], one["rows"], one["kept_after"]) for one in lines] == [
        (ITEM, 20, 20), (NOTE, 12, 12), ("TRACKING", 20, 20),
    ]  # fmt: skip
    assert run.invoke(app, ["consumer", "remove", file, "lake"]).exit_code == 0
    for words in (["purge", file, f"{ITEM}s"], ["consumer", "add", file, "x", f"{ITEM}s"]):
        assert f"did you mean {ITEM}" in str(run.invoke(app, words).exception)
    late = run.invoke(app, ["consumer", "add", file, "x", "later.*"])
    assert late.exit_code == 0
    assert (
        "x: changes up to number 20 have been removed, or are about to be: it can read those after"
        in late.output
    )
    assert run.invoke(app, ["consumer", "add", file, "y", ITEM, "later.*"]).exit_code == 0
    assert f"reads {ITEM}, later.*" in " ".join(run.invoke(app, ["consumer", "list", file]).output.split())
    said = str(run.invoke(app, ["consumer", "add", file, "z", f"{ITEM},later.*"]).exception)
    assert f"no table of the task matches '{ITEM},later.*'" in said


def test_a_purge_of_several_tables(tmp_path: Path) -> None:
    home, run = Home(tmp_path, ""), CliRunner()
    words = ["purge", str(home.file), "--end", "6", "--json"]
    lines = json.loads(run.invoke(app, [*words, ITEM, NOTE, "--dry-run"]).output)
    assert [one["table"] for one in lines] == [ITEM, NOTE]
    said = str(run.invoke(app, [*words, f"{ITEM}s", NOTE]).exception)
    assert f"did you mean {ITEM}" in said
    assert run.invoke(app, [*words, ITEM, NOTE]).exit_code == 0
    assert (home.ids()[0], home.ids(NOTE)[0]) == (7, 7)
