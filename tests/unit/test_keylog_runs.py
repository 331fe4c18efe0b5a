"""Runs in the control tables of a key log, and how long their rows are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.errors import ConfigError
from tailrace.formats.sqdr.control import TABLES, table_of
from tailrace.lake import delta as lake
from tailrace.operate import control_tables
from tailrace.operate.consumers import Consumers
from tailrace.operate.keylog_retention import add_consumer, of_keylog, prune
from tailrace.operate.keylog_runs import REPAIR, Group, Runs, Subscription, TaskRuns
from tailrace.state import commands
from tailrace.state.state_table import KeyedTable
from tailrace.wire.keylog_values import IGNORED

from .keylog_rows import SCHEMA, missed, row, write
from .task_home import ITEM, TaskHome

pytestmark = pytest.mark.unit
SHOP = Group("shop", "shop", "postgresql://db/shop", "lake")


def table(keylog: str, name: str) -> dict[str, dict[str, object]]:
    return {r[TABLES[name].columns[0].name]: r for r in control_tables.rows(keylog, name)}


def append(keylog: str, *rows: dict[str, object]) -> None:
    lake.append(keylog, pa.Table.from_pylist(list(rows), schema=SCHEMA))


def test_a_run_counts_what_is_logged_of_it(tmp_path: Path) -> None:
    log = write(tmp_path)
    runs = Runs(log, SHOP)
    of = runs.run_ids([Subscription("s.a", rules="strict"), Subscription("s.b")])
    a, b = of["s.a"], of["s.b"]
    append(log, row(1, a, "s.a"), row(2, a, "s.a", "U"), row(3, a, "s.a", "T"), missed(4, run=a, table="s.a"))
    runs.note()
    assert (table(log, "statistic")[a]["change_count"], table(log, "statistic")[a]["state"]) == (4, "running")
    append(log, row(5, b, "s.b", "D"), row(6, a, "s.a", action_taken=IGNORED, result_row_count=0))
    runs.end()
    found = table(log, "statistic")
    counts = ("change", "insert", "update", "delete", "truncate", "ignored", "flagged", "error")
    assert [found[a][f"{n}_count"] for n in counts] == [5, 1, 1, 0, 1, 1, 1, 1]
    assert [found[b][f"{n}_count"] for n in counts] == [1, 0, 0, 1, 0, 0, 0, 0]
    assert [found[a][n] for n in ("state", "first_sort", "last_sort", "latency_avg_ms", "latency_max_ms")] == [
        "ended", 1, 6, 500.0, 500.0,
    ]  # fmt: skip
    told = table(log, "ir_subscription")["s.a"]
    assert [told[n] for n in ("group_id", "apply_rules", "state", "flagged_count")] == [
        "shop",
        "strict",
        "active",
        1,
    ]
    assert table(log, "groups")["shop"]["name"] == "shop"
    where = table(log, "subscriptions")["s.b"]
    assert (where["source_dsn"], where["destination_dsn"]) == ("postgresql://db/shop", "lake")


def test_a_run_that_died_is_counted_by_the_next_one(tmp_path: Path) -> None:
    log = write(tmp_path)
    dead = Runs(log, SHOP).run_ids([Subscription("s.a")])["s.a"]
    append(log, row(1, dead, "s.a"), row(2, dead, "s.a"))
    failed = Runs(log, SHOP)
    failed.run_ids([Subscription("s.a")])
    failed.end({"s.a": "insert_exists at change_seq 7"}, error="no disk")
    first, second = table(log, "statistic").values()
    assert [first[n] for n in ("run_id", "state", "change_count", "insert_count")] == [
        dead,
        "interrupted",
        2,
        2,
    ]
    assert first["end_ts"] == row(2)["keylog_ts"]
    assert [second[n] for n in ("state", "error", "change_count")] == ["failed", "no disk", 0]
    told = table(log, "ir_subscription")["s.a"]
    assert (told["state"], told["state_reason"]) == ("suspended", "insert_exists at change_seq 7")


def test_a_run_that_is_old_makes_way_for_the_next(tmp_path: Path) -> None:
    log = write(tmp_path)
    runs = Runs(log, SHOP, every=0.0)
    one, two = (runs.run_ids([Subscription("s.a")])["s.a"] for _ in range(2))
    assert {r: v["state"] for r, v in table(log, "statistic").items()} == {one: "ended", two: "running"}


def test_a_table_that_was_removed_is_said_to_be_removed(tmp_path: Path) -> None:
    home = TaskHome(tmp_path, "keylog: {mode: all}")
    home.baseline([], after=1)
    log = home.task.keylog_path
    runs = TaskRuns(home.task)

    def told() -> tuple[object, object]:
        with runs.until_end():
            runs.begin([ITEM])
        (row,) = table(log, "ir_subscription").values()
        return row["state"], row["state_reason"]

    assert told() == ("active", None)
    commands.give(home.task.commands_path, commands.PAUSE, [ITEM], why="moving", who="me")
    assert told() == ("suspended", "moving")
    commands.give(home.task.commands_path, commands.REMOVE, [ITEM], why="no longer needed", who="me")
    assert told() == ("removed", "no longer needed")


def test_a_repair_leaves_the_subscription_as_it_is(tmp_path: Path) -> None:
    log = write(tmp_path)
    runs = Runs(log, SHOP)
    runs.run_ids([Subscription("s.a", rules="archive")])
    runs.end()
    repair = Runs(log, SHOP, kind=REPAIR).run_ids([Subscription("s.a", rules="strict")])["s.a"]
    assert repair.endswith("-repair") and table(log, "statistic")[repair]["kind"] == "repair"
    assert table(log, "ir_subscription")["s.a"]["apply_rules"] == "archive"


def test_a_repair_before_anything_else_makes_a_subscription(tmp_path: Path) -> None:
    log = write(tmp_path)
    repair = Runs(log, SHOP, kind=REPAIR)
    append(log, row(1, repair.run_ids([Subscription("s.a")])["s.a"], "s.a", flagged_count=3))
    repair.end()
    told = table(log, "ir_subscription")["s.a"]
    assert [told[k] for k in ("group_id", "apply_rules", "flagged_count")] == ["shop", "upsert", 3]
    assert Runs(log, SHOP).run_ids([Subscription("s.a")])


def test_a_table_is_one_groups(tmp_path: Path) -> None:
    log = write(tmp_path)
    Runs(log, SHOP).run_ids([Subscription("s.a")])
    with pytest.raises(ConfigError, match=r"shop already logs changes of s\.a here"):
        Runs(log, Group("other", "other")).run_ids([Subscription("s.a")])


@pytest.fixture
def three_runs(tmp_path: Path, written: tuple[Path, list[str]]) -> tuple[str, list[str]]:
    """Three ended runs of one table with two rows each, and one that is at work."""
    shutil.copytree(written[0], tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "ir_keylog"), written[1]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The files of those, to be copied."""
    folder = tmp_path_factory.mktemp("runs")
    log, made = write(folder), list[str]()
    for k in range(3):
        runs = Runs(log, SHOP)
        made.append(runs.run_ids([Subscription("s.a")])["s.a"])
        append(log, row(2 * k + 1, made[-1], "s.a"), row(2 * k + 2, made[-1], "s.a"))
        runs.end()
    made.append(Runs(log, SHOP).run_ids([Subscription("s.a")])["s.a"])
    append(log, row(9, made[-1], "s.a"))
    return folder, made


def logged(keylog: str) -> list[tuple[str, int]]:
    return sorted((r["run_id"], r["keylog_sort"]) for r in lake.read(keylog).to_pylist())


def test_runs_are_pruned_with_all_their_rows_and_never_the_one_at_work(
    three_runs: tuple[str, list[str]],
) -> None:
    log, (one, two, three, now) = three_runs
    assert prune(log, 1, dry_run=True).as_dict() == {"runs": [one, two], "rows": 4, "held": {}}
    assert len(logged(log)) == 7
    assert prune(log, 1).rows == 4
    assert logged(log) == [(three, 5), (three, 6), (now, 9)]
    assert list(table(log, "statistic")) == [three, now]
    assert prune(log, 0).runs == [three]
    assert prune(log, 0).runs == []


def test_every_table_keeps_its_newest_run(tmp_path: Path) -> None:
    log = write(tmp_path)
    runs = Runs(log, SHOP)
    (run,) = runs.run_ids([Subscription("s.a")]).values()
    append(log, row(1, run, "s.a"))
    runs.end()
    assert prune(log, 0).runs == [] and logged(log) == [(run, 1)]


def test_a_begun_prune_is_ended_by_the_next(
    three_runs: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, (one, two, *_) = three_runs
    with monkeypatch.context() as broken:
        broken.setattr(KeyedTable, "change", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            prune(log, 1)
    assert {r for r, _ in logged(log)}.isdisjoint({one, two})
    prune(log, 1)
    assert one not in table(log, "statistic")


def test_what_a_consumer_needs_stays(three_runs: tuple[str, list[str]]) -> None:
    log, (one, two, _, _) = three_runs
    add_consumer(log, "audit")
    assert prune(log, 1).as_dict() == {"runs": [], "rows": 0, "held": {one: "audit", two: "audit"}}
    of_keylog(log).acknowledge("audit", 3)
    assert prune(log, 1).as_dict() == {"runs": [one], "rows": 2, "held": {two: "audit"}}
    of_keylog(log).remove("audit")
    assert prune(log, 1).runs == [two]


def test_a_consumer_that_registers_while_a_prune_begins_is_seen(
    three_runs: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    keylog, (one, two, *_) = three_runs
    promise = Consumers.promise

    def late(self: Consumers, upto: int, version: int, *, log: int = -1) -> bool:
        if not self.all():
            add_consumer(keylog, "audit")
        return promise(self, upto, version, log=log)

    monkeypatch.setattr(Consumers, "promise", late)
    assert prune(keylog, 1).as_dict() == {"runs": [], "rows": 0, "held": {one: "audit", two: "audit"}}


def test_consumers_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no key log"):
        add_consumer(str(tmp_path / "none"), "audit")
    log = write(tmp_path)
    with pytest.raises(ConfigError, match="no consumer 'audit' is registered"):
        of_keylog(log).acknowledge("audit", 1)
    add_consumer(log, "audit")
    with pytest.raises(ConfigError, match="already registered"):
        add_consumer(log, "audit")
    of_keylog(log).acknowledge("audit", 7)
    with pytest.raises(ConfigError, match="has already acknowledged 7"):
        of_keylog(log).acknowledge("audit", 6)


def test_a_new_run_prunes_when_told_how_many_to_keep(three_runs: tuple[str, list[str]]) -> None:
    log, (*_, now) = three_runs
    Runs(log, SHOP, keep=1).run_ids([Subscription("s.a")])
    assert logged(log) == [(now, 9)]


@pytest.mark.parametrize("name", TABLES)
def test_control_tables_are_known_by_their_columns(name: str) -> None:
    assert table_of([c.name for c in TABLES[name].columns]) == name
