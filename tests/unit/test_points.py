"""A process ends at a fail point that needs neither Spark nor a server. It is started again, and what is there
then is what is there without that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.capture import baseline_reader, table_selection
from tailrace.capture.ddl_watch import DdlWatch
from tailrace.capture.part_readers import PartReaders
from tailrace.capture.snapshot_sink import DeltaLanding
from tailrace.capture.stream import Streams
from tailrace.capture.target_rename import TargetRenames
from tailrace.keylog.control_tables import EXCEPTIONS
from tailrace.lake import delta as lake
from tailrace.lake import log, log_retention
from tailrace.model.types import schema_of
from tailrace.operate import control_tables
from tailrace.operate.consumers import Consumers
from tailrace.operate.drop import drop
from tailrace.sources.base import BadValue, BaselineBatch, BaselinePart, Snapshot
from tailrace.state import commands, ddl, ledger, lifecycle, rolling, streams
from tailrace.state.baselines import read_baselines, write_baseline
from tailrace.state.declarations import STORED
from tailrace.state.notes import Notes
from tailrace.state.totals import Totals
from tailrace.store import tables as change_tables
from tailrace.store.kept import kept
from tailrace.store.trimming import Bound, everything, trim
from tailrace.store.writer import Store, StorePaths

from ..ending import ends
from .messages import insert
from .test_audit import Place, change
from .test_ledger import batch, store
from .test_log_and_store import ITEM, chunk, writer
from .test_log_gaps import home, ids, parts, records
from .test_log_gaps import store as store_of
from .test_renaming import known, renamed, target, task, there
from .test_trimming import SEQ
from .test_trimming import table as change_table

pytestmark = pytest.mark.unit

Life = Callable[[], object]
"""What a process does from its start on."""
State = Callable[[], object]
"""What is there, without names of files and times of clocks."""


def rows(path: str, *without: str) -> list[dict[str, Any]]:
    """A table's rows, in some order."""
    if not lake.exists(path):
        return []
    found = [{k: v for k, v in r.items() if k not in without} for r in lake.read(path).to_pylist()]
    return sorted(found, key=repr)


# the task's own records


def stream(at: Path) -> tuple[Life, State]:
    """Capture makes its stream; what is recorded before the source is asked is recorded once more."""
    one = task(at)
    source: Any = SimpleNamespace(renew=lambda: None, identity=lambda: {"slot": "s"})
    source.prepare, source.published = lambda _: True, lambda tables: dict.fromkeys(tables, "1")
    source.partitions = lambda *_: {}
    source.column_states = lambda *_: {}

    def life() -> None:
        mine = Streams(one)
        if mine.now.state != streams.MADE:
            mine.clear(source)
            mine.prepare(source, ["s.a"])

    return life, lambda: replace(streams.newest(one), number=0)


def catalog(at: Path) -> tuple[Life, State]:
    """A table gets another name while capture does not look."""
    one = task(at)
    mine = writer(Path(one.home))
    mine.add(chunk(100, b"B", insert(7, [1, "1"]), b"C"))
    mine.commit()
    names = {7: "shop.thing"}
    source: Any = SimpleNamespace(names=lambda _: names, tables=lambda _: ["shop.thing"])
    source.end_position = source.reached = lambda: b"1"

    def life() -> None:
        DdlWatch(one).check(source, log.state(one.log_path))
        DdlWatch(one).check(source, log.state(one.log_path))

    def state() -> object:
        path = one.control_path("ddl_events")
        history = rows(one.control_path("ddl_history"), "TIMESTAMP")
        return [replace(e, noticed_at=None) for e in ddl.events(path)], history

    return life, state


def renaming(at: Path) -> tuple[Life, State]:
    one = task(at)
    known(one, "s.a", "s.b")
    renamed(one, ("s.a", "s.b"), ("s.b", "s.a"))

    def state() -> object:
        return there(one), lifecycle.of_task(one.commands_path, {}).target_names

    return lambda: TargetRenames(one).continue_all(one), state


def removal(at: Path) -> tuple[Life, State]:
    """A table is removed, and its target with it."""
    one = task(at)
    lake.append(one.target_path("s.a"), pa.table({"id": [1]}))
    target(one, "s.b")
    for action in (commands.REMOVE, commands.DROP):
        commands.give(one.commands_path, action, ["s.a"], why="", who="test")

    def life() -> None:
        table_selection.drop_targets(one, lifecycle.of_task(one.commands_path, {}))

    return life, lambda: (there(one), rows(one.commands_path, "at"))


def dropped(at: Path) -> tuple[Life, State]:
    """A task is dropped, and its targets with it."""
    one = task(at)
    known(one, "s.a")
    lake.append(one.target_path("s.a"), pa.table({"id": [1]}))

    def life() -> None:
        drop(one, dry_run=False, targets=True, source=False)

    return life, lambda: sorted(p.name for p in at.iterdir())


def ledger_of(at: Path) -> tuple[Life, State]:
    path = str(at / "stored")
    for upto in range(1, 6):
        store(path, batch(upto, a=upto, b=1))

    def state() -> object:
        seen = Totals(path, str(at / "applied"))
        return seen.stored_upto, {t: n.rows for t, n in seen.stored.items()}, ledger.read_stored(path)

    return lambda: rolling.fold(path, STORED), state


def control(at: Path) -> tuple[Life, State]:
    path = str(at / "ir_keylog")
    control_tables.put(path, "groups", [{"id": "g", "name": "one"}])

    def life() -> None:
        control_tables.put(path, "groups", [{"id": "g", "name": "two"}, {"id": "h", "name": "three"}])

    return life, lambda: control_tables.rows(path, "groups")


def consumers(at: Path) -> tuple[Life, State]:
    mine = Consumers(str(at / "consumers"))
    mine.add("lake")
    mine.acknowledge("lake", 3)
    return lambda: mine.acknowledge("lake", 7), lambda: [(c.name, c.acknowledged) for c in mine.all()]


def noted(at: Path) -> tuple[Life, State]:
    """Capture notes what it has seen of a table."""
    one = task(at)
    Notes(one, "partitions").write({"s.a": {"there": {}}})

    def life() -> None:
        Notes(one, "partitions").write({"s.a": {"there": {"1": "s.a1"}}})

    return life, lambda: Notes(one, "partitions").read()


def old_commits(at: Path) -> tuple[Life, State]:
    path = str(at / "t")
    for n in range(4):
        lake.append(path, pa.table({"n": [n]}))
    DeltaTable(path).create_checkpoint()
    lake.append(path, pa.table({"n": [4]}))

    def state() -> object:
        return log_retention.versions(path), rows(path)

    return lambda: log_retention.forget(path, older_than_s=-1.0), state


def many_files(at: Path) -> tuple[Life, State]:
    """Three small files, and one that belongs to nothing."""
    path = str(at / "t")
    for n in range(3):
        lake.append(path, pa.table({"n": [n]}), progress={"x": n})
    orphan = at / "t" / "part-orphan.parquet"
    orphan.write_bytes(b"")
    os.utime(orphan, (0, 0))

    def state() -> object:
        return len(DeltaTable(path).file_uris()), rows(path), lake.progress(path, "x"), orphan.exists()

    def maintain() -> None:
        lake.compact(path, 2)
        lake.vacuum(path, 3600.0)

    return maintain, state


# change tables


def retention(at: Path) -> tuple[Life, State]:
    path = change_table(at, [1, 2], [3, 4, 5])
    return lambda: trim(path, SEQ, Bound(4), everything), lambda: (rows(path), kept(path))


def retyped(at: Path) -> tuple[Life, State]:
    """A column becomes another type: its values stay under a name of their own."""
    path, (key, n) = str(at / "t__ct"), ITEM.columns
    change_tables.ensure(path, ITEM)
    have = lake.arrow_schema(path)
    lake.append(path, pa.Table.from_pylist([{"id": 1, "n": None}], have))
    text = ITEM.with_columns([key, replace(n, source_type="text", kind="text", type="string")])
    return lambda: change_tables.ensure(path, text, 9), lambda: (lake.arrow_schema(path).names, rows(path))


def behind_a_gap(at: Path) -> tuple[Life, State]:
    """Two transactions of LOG are lost, which no target needs any more."""
    home(at, 4)
    store_of(at).batch(records(at, 1, 2, 3))
    rest = records(at, 10, 11, 12)
    for file in parts(at)[1:3]:
        file.unlink()

    def life() -> None:
        mine = store_of(at, passed=9)
        mine.begin()
        mine.batch(rest)

    def state() -> object:
        return ids(at), [kept(str(at / n)) for n in ("item__ct", "tracking")]

    return life, state


def bad_values(at: Path) -> tuple[Life, State]:
    mine = writer(at)
    mine.add(chunk(100, b"B", insert(7, [1, "NaN"]), insert(7, [2, "1"]), b"C"))
    mine.commit()
    names = ("quarantine", "item__ct", "tracking")
    return lambda: storing(at).batch(records(at, 1, 2, 3, 4)), lambda: [
        rows(str(at / n), "noticed_at") for n in names
    ]


def storing(at: Path) -> Store:
    """One that keeps bad values aside."""
    path = {n: str(at / n) for n in ("relations", "tracking", "stored", "quarantine")}
    return Store(StorePaths(**path, changes=lambda _: str(at / "item__ct")))


# targets


def merged(at: Path) -> tuple[Life, State]:
    """A batch with a change that is passed over. The key log's part is committed by whoever ran the task."""
    place = Place(at, "strict", {"update_missing": "log"})
    place.apply([change(1, "I", "p")])

    def life() -> None:
        if (lake.progress(place.path, "t") or 0) < 4:
            place.apply([change(2, "U", "p"), change(3, "U", "gone"), change(4, "I", "q")])

    def state() -> object:
        return place.rows(), rows(str(at / EXCEPTIONS), "ERROR_TIME"), lake.progress(place.path, "t")

    return life, state


class OneTable:
    """A source with one table of two parts, one of which has a value that its lake type cannot hold."""

    def relation(self, _: str) -> Any:
        return ITEM

    def parts(self, *_: object) -> Sequence[BaselinePart]:
        return [BaselinePart("item", n, n + 1, 1) for n in (1, 2)]

    def part_reader(self) -> Any:
        def read(_: Snapshot, __: object, part: BaselinePart) -> Iterator[BaselineBatch]:
            made = pa.RecordBatch.from_pylist([{"id": part.first, "n": None}], schema_of(ITEM.columns))
            yield BaselineBatch(made, [BadValue(0, "n", "NaN")] if part.first == 1 else [])

        return read


def landing(at: Path) -> tuple[Life, State]:
    """A new baseline of a table that has a target."""
    path, quarantine = str(at / "target"), str(at / "quarantine")
    lake.append(path, pa.Table.from_pylist([{"id": 9, "n": None}], schema_of(ITEM.columns)))
    reading = baseline_reader.BaselineOptions(
        lambda _: DeltaLanding(path, "t"), quarantine, 10, keep_bad=True
    )
    attempt, record = {"shop.item": baseline_reader.BaselineAttempt(1, 0, 5)}, str(at / "baselines")

    def life() -> None:
        with PartReaders(1) as readers:
            baseline_reader.take_baselines(
                OneTable(), Snapshot("s", b"1"), attempt, reading,  # type: ignore[arg-type]
                lambda done: write_baseline(record, *done), readers,  # type: ignore[arg-type]
            )  # fmt: skip

    def state() -> object:
        (one,) = read_baselines(record).values()
        return (
            rows(path),
            rows(quarantine, "noticed_at"),
            lake.progress(path, "t"),
            (one.rows, one.after, one.number),
        )

    return life, state


Case = Callable[[Path], tuple[Life, State]]
CASES: dict[str, Case] = {
    "streams.record:2": stream,
    "ddl.history": catalog,
    "ddl.event": catalog,
    "rename.target": renaming,
    "rename.moved": renaming,
    "membership.dropped": removal,
    "drop.targets": dropped,
    "drop.source": dropped,
    "ledger.replace": ledger_of,
    "control.change": control,
    "control.consumers": consumers,
    "state.note": noted,
    "maintain.forget:2": old_commits,
    "maintain.compact": many_files,
    "maintain.vacuum": many_files,
    "maintain.trim": retention,
    "store.retype": retyped,
    "store.behind:2": behind_a_gap,
    "store.quarantine": bad_values,
    "apply.exceptions": merged,
    "delta.local": merged,
    "delta.merged": merged,
    "baseline.part": landing,
    "baseline.quarantine": landing,
    "baseline.land": landing,
    "baseline.landed": landing,
}
ENDS = tuple(one.partition(":")[0] for one in CASES)
"""The fail points at which tests of this file end."""


@cache
def whole(case: Case) -> object:
    """What is there when nothing ends a case."""
    with TemporaryDirectory() as folder:
        life, state = case(Path(folder))
        life()
        return state()


@pytest.mark.parametrize("point", list(CASES))
def test_ended_at_a_fail_point_it_does_all_of_it_at_the_next_start(tmp_path: Path, point: str) -> None:
    life, state = CASES[point](tmp_path)
    name, _, nth = point.partition(":")
    with ends(name, int(nth or 1)):
        life()
    life()
    assert state() == whole(CASES[point])


def test_bad_values_are_kept_aside_once_however_batches_are_cut(tmp_path: Path) -> None:
    """Ended behind them; then the next batch has more, as when Spark's checkpoint is gone."""
    mine = writer(tmp_path)
    for lsn in (100, 200):
        mine.add(chunk(lsn, b"B", insert(7, [lsn, "NaN"]), insert(7, [lsn + 1, "1"]), b"C"))
    mine.commit()
    first, both = (records(tmp_path, *range(1, n)) for n in (5, 9))
    with ends("store.change_table"):
        storing(tmp_path).batch(first)
    storing(tmp_path).batch(both)
    found = lake.read(str(tmp_path / "quarantine")).sort_by("change_seq")
    assert [(int(r["change_seq"][16:]), r["value"]) for r in found.to_pylist()] == [(2, "NaN"), (6, "NaN")]
    assert ids(tmp_path) == [100, 101, 200, 201]
