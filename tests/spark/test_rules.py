"""Applying under rules against a plain row-by-row model: rows and key log, however changes are cut."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tailrace.apply.rules import RulesApplier
from tailrace.apply.vendor.applier import VendorApplier
from tailrace.engine.rules import DEFAULTS, Rules
from tailrace.errors import ApplyError, ConfigError
from tailrace.formats.sqdr.reader import DIFFERS, recount
from tailrace.formats.sqdr.reader import read as read_keylog
from tailrace.formats.sqdr.tables import SqdrOptions
from tailrace.keylog.control_tables import EXCEPTIONS
from tailrace.keylog.key_log import KeyLog
from tailrace.model import sequence
from tailrace.model.types import schema_of
from tailrace.operate import vendor_apply as incoming
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.lake.sharded_merge import MergeAttempt
from tailrace.testing.images import change_rows, change_table

from .literal_tables import rows_at
from .rules_model import RELATION, Change, Model, columns_of, history, logged, nulled, told
from .rules_task import by_shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.model.change import ChangeTable

pytestmark = pytest.mark.spark
NAME = RELATION.table
LANES, STEPS = 12, 10


class Place:
    """A target, its key log, and the model for them."""

    def __init__(
        self, spark: SparkSession, root: Path, mode: str, on: Mapping[str, str], log: str = "all"
    ) -> None:
        self.spark, self.root = spark, str(root / "lake")
        self.rules = Rules.of(mode, on)
        self.target = DeltaTarget(spark, self.root, app_id="t")
        self.log = KeyLog(str(root / "keylog"), app_id="t", run_id="1", mode=log)
        self.model = Model(mode, self.rules.on)

    @property
    def under(self) -> RulesApplier:
        return RulesApplier(self.target, self.rules, root=self.root, task="task", keylog=self.log)

    @property
    def applier(self) -> VendorApplier:
        return VendorApplier(self.under, self.root)

    def table(self, changes: Sequence[Change]) -> ChangeTable:
        images = [i for c in changes for i in c.images]
        random.Random(1).shuffle(images)
        return replace(change_table(self.spark, RELATION, images), name=NAME)

    def apply(self, changes: Sequence[Change]) -> Any:
        return self.applier.apply(self.table(changes))

    def rows(self) -> list[tuple[Any, ...]]:
        mode = self.rules.mode
        rows = rows_at(self.spark, self.target.path(NAME))
        return told((tuple(r) for r in rows.select(*columns_of(mode)).collect()), mode)

    def logged(self) -> list[Any]:
        return logged(rows_at(self.spark, self.log.path).collect())

    def expect(self, changes: Sequence[Change]) -> None:
        for c in changes:
            assert self.model.apply(c) is None

    def same(self, seed: object = "") -> None:
        assert self.rows() == sorted(self.model.state(), key=repr), seed
        assert self.logged() == self.model.log, seed


# Others are in tests/unit/test_audit.py, the modes without policies in test_task_rules.py.
CASES = [
    ("archive", {}),
    ("strict", {"insert_exists": "apply", "update_missing": "apply", "delete_missing": "ignore"}),
    (
        "upsert",
        {"insert_exists": "log", "update_missing": "ignore", "delete_missing": "log", "data_error": "log"},
    ),
    ("soft_delete", {"update_missing": "log", "insert_exists": "log", "data_error": "ignore"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "on"), CASES, ids=str)
def test_any_history_ends_as_row_by_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, on: Mapping[str, str]
) -> None:
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    if dice.random() < 0.7:
        by_shards(monkeypatch)
    changes = history(seed, LANES, STEPS, truncate=dice.random() < 0.5)
    changes = nulled(changes) if "data_error" in on else changes
    start, cut = changes[: len(changes) // 4], dice.randrange(len(changes) // 4 + 1, len(changes))
    place = Place(spark, tmp_path, mode, on)
    place.apply(start)
    place.expect(start)
    if mode != "archive":  # somebody else deletes rows of the target, marked ones too
        DeltaTable(place.target.path(NAME)).delete("a % 3 = 0")
        place.model.rows = {k: r for k, r in place.model.rows.items() if r["a"] % 3}
        place.model.dead = {k: seq for k, seq in place.model.dead.items() if k in place.model.rows}
    place.expect(changes[len(start) :])
    place.apply(changes[len(start) : cut])
    place.apply(changes[len(start) :])  # what came before is passed over
    place.same(f"seed {seed}, cut {cut}")
    if mode != "archive":
        log = recount(rows_at(spark, place.log.path))
        assert log.where(DIFFERS).isEmpty()


def change(number: int, oper: str, key: str, old: str | None = None, **values: Any) -> Change:
    row = {"lane": 0, "id": key} | ({} if oper == "D" else {"a": number, "b": key} | values)
    return Change(number, oper, None if old is None else (0, old), {} if oper == "T" else row)


def test_a_chain_of_key_changes_that_hang_on_each_other(spark: SparkSession, tmp_path: Path) -> None:
    """Each is passed over only because the one before it was; a pass settles one of them at a time."""
    place = Place(spark, tmp_path, "strict", {})
    start = [change(n, "I", k) for n, k in enumerate("abcde", 1)]
    chain = [change(10 + n, "U", new, old) for n, (old, new) in enumerate(zip("abcde", "bcdex", strict=True))]
    place.apply(start)
    place.apply([*chain, change(20, "U", "d", "x"), change(21, "D", "e"), change(22, "U", "e", "c")])
    for c in (*start, *chain, change(20, "U", "d", "x"), change(21, "D", "e"), change(22, "U", "e", "c")):
        place.expect([c])
    place.same()


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1 << 30, 0])
def test_what_somebody_else_commits_between_look_and_commit_is_met(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A batch of several jobs begins anew, and its key log, exceptions and limits are those of the second."""
    place = Place(spark, tmp_path, "strict", {"update_missing": "log then stop after 1"})
    place.target = DeltaTarget(spark, place.root, app_id="t", local_limit_bytes=limit)
    start = [change(n, "I", k) for n, k in enumerate("abc", 1)]
    place.apply(start)
    written, calls = MergeAttempt._written, []

    def meanwhile(self: MergeAttempt, *given: Any, **more: Any) -> Any:
        if not calls:
            into = f"delta.`{place.target.path(NAME)}`"
            spark.sql(f"DELETE FROM {into} WHERE id = 'b'")
            spark.sql(f"INSERT INTO {into} VALUES (0, 'd', 0, 'theirs')")
        calls.append(1)
        return written(self, *given, **more)

    monkeypatch.setattr(MergeAttempt, "_written", meanwhile)
    by_shards(monkeypatch)
    more = [change(4, "U", "b"), change(5, "D", "c"), change(6, "I", "d"), change(7, "U", "a")]
    place.apply(more)
    place.expect(start)
    place.model.lose("b")
    place.model.rows[0, "d"] = {"lane": 0, "id": "d", "a": 0, "b": "theirs"}
    place.expect(more)
    place.same()
    assert len(calls) == 2
    said = [r["ERROR"].split(":")[0] for r in rows_at(spark, f"{place.root}/{EXCEPTIONS}").collect()]
    assert sorted(said) == ["insert_exists", "update_missing"]


@pytest.mark.slow
def test_a_batch_ends_before_the_offending_change(spark: SparkSession, tmp_path: Path) -> None:
    """And the table is suspended; a stop is in test_late_changes.py."""
    place = Place(spark, tmp_path, "upsert", {"update_missing": "suspend"})
    good = [change(1, "I", "a"), change(2, "U", "a", b="x"), change(4, "I", "c")]
    changes = [*good, change(5, "U", "b", b="y"), change(6, "I", "d")]
    seq = sequence.make(2026010100000000, 5)
    why = f"update_missing at change_seq {seq}: the row to be updated does not exist"
    assert place.apply(changes).suspended == why
    assert place.apply(changes).suspended is not None  # and takes nothing more
    place.expect(good)
    place.same()
    mended = pa.table([[0], ["b"], [0], ["mended"]], schema=schema_of(RELATION.columns))
    write_deltalake(place.target.path(NAME), mended, mode="append")
    place.under.suspensions.resume(NAME)
    place.apply(changes)
    assert [r[1:] for r in place.rows()] == [("a", 2, "x"), ("b", 5, "y"), ("c", 4, "c"), ("d", 6, "d")]
    assert len(place.logged()) == 5


@pytest.mark.slow  # of a task they are in test_task_rules.py
def test_a_crash_before_the_key_log_is_made_good(spark: SparkSession, tmp_path: Path) -> None:
    """What its changes met is looked up as the target was before them; what it refused of them, too."""
    place = Place(spark, tmp_path, "strict", {"data_error": "log"})
    place.model.holds = lambda row, whole: not whole or row["a"] < 100 or row["b"] == "b"
    first = [change(1, "I", "a"), change(2, "I", "b")]
    second = [
        *first,
        change(3, "D", "a"),
        change(4, "U", "a"),
        change(5, "I", "b"),
        change(6, "U", "b", a=600),
    ]
    second += [change(7, "U", "b", b="z"), change(8, "U", "b", a=800, b="y")]
    place.apply(first)
    check = "ADD CONSTRAINT low CHECK (a < 100 OR b = 'b')"
    spark.sql(f"ALTER TABLE delta.`{place.target.path(NAME)}` {check}")

    class CrashError(Exception):
        pass

    def crash(*_: object, **__: object) -> None:
        raise CrashError

    place.log.commit = crash  # type: ignore[method-assign]
    with pytest.raises(ApplyError):
        place.apply(second)
    assert place.target.progress(NAME) == 8
    place.log = KeyLog(place.log.path, app_id="t", run_id="2")
    assert len(place.logged()) == 2
    place.apply([*second, change(9, "D", "b")])
    place.expect([*second, change(9, "D", "b")])
    place.same()
    found = rows_at(spark, f"{place.root}/{EXCEPTIONS}").orderBy("ERROR").collect()
    assert [(r["TABLE_NAME"], r["ERROR"].split(":")[0], r["STATEMENT"][0]) for r in found] == [
        ("t", "data_error", "U"),
        ("t", "insert_exists", "I"),
        ("t", "update_missing", "U"),
    ]
    assert 'id="a"' in found[2]["STATEMENT"]


@pytest.mark.slow
def test_key_log_columns_and_modes(spark: SparkSession, tmp_path: Path) -> None:
    changes = [change(1, "I", "a"), change(2, "U", "x", "a"), change(3, "D", "q"), change(4, "U", "x", b="n")]
    found = {}
    for mode in ("all", "keys", "errors", "off"):
        place = Place(spark, tmp_path / mode, "strict", {}, log=mode)
        place.apply(changes)
        place.apply(changes)
        if mode != "off":
            log = rows_at(spark, place.log.path).orderBy("keylog_sort")
            found[mode] = log.collect()
    assert [len(found[m]) for m in ("all", "keys", "errors")] == [4, 4, 1]
    key, old = 'lane="0" id="x"', 'lane="0" id="a"'
    assert [(r["before_key"], r["after_key"]) for r in found["keys"]] == [
        (None, None), (old, key), ('lane="0" id="q"', None), (key, None),
    ]  # fmt: skip
    assert {r["after_image"] for r in found["keys"]} == {None}
    first = found["all"][0]
    assert first["after_image"] == '<Dest>"s"."t"</Dest><row>lane="0" id="a" a="1" b="a"</row>'
    assert (first["run_id"], first["group_id"], first["subscription_id"]) == ("1", "t", NAME)
    assert (first["resync_state"], first["change_row_counter"]) == (2026010100000000, 1)
    assert [r["flagged_count"] for r in found["all"]] == [0, 0, 1, 1]
    assert found["errors"][0]["result_error"] == "delete_missing: the row to be deleted does not exist"


def test_preview_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(spark, tmp_path, "strict", {})
    place.apply([change(1, "I", "a")])
    changes = [change(2, "I", "a"), change(3, "D", "a"), change(4, "D", "a"), change(5, "U", "c")]
    told = place.applier.preview(place.table(changes))
    assert (told.actions, told.flagged) == ({"I": 1, "D": 2, "M": 1}, 3)
    assert told.conflicts == {"insert_exists": 1, "delete_missing": 1, "update_missing": 1}
    assert (place.target.progress(NAME), len(place.logged())) == (1, 1)


def test_modes_do_not_mix(spark: SparkSession, tmp_path: Path) -> None:
    changes = [change(1, "I", "a")]
    for mode, other in (("archive", "upsert"), ("upsert", "archive"), ("soft_delete", "strict")):
        Place(spark, tmp_path / mode, mode, {}).apply(changes)
        with pytest.raises(ConfigError):
            Place(spark, tmp_path / mode, other, {}).apply(changes)
    marked = Place(spark, tmp_path / "gone", "soft_delete", {})
    marked.rules = Rules.of("soft_delete", {}, "gone")
    marked.applier.apply(marked.table(changes))
    for rules in (Rules.of("soft_delete", {}, "removed"), Rules.of("upsert")):
        marked.rules = rules
        with pytest.raises(ConfigError, match="marks deleted rows in 'gone'"):
            marked.applier.apply(marked.table([change(2, "I", "b")]))
    assert set(DEFAULTS) == {"strict", "upsert", "archive", "soft_delete"}


@pytest.mark.slow
def test_the_command_and_its_key_log_read_back(spark: SparkSession, tmp_path: Path) -> None:
    """`tailrace apply` with rules; the key log is a change table again."""
    changes = [
        change(1, "I", "a", b='q"'),
        change(2, "D", "q"),
        change(3, "U", "z", "a"),
        change(4, "U", "z"),
    ]
    images = [i for c in changes for i in c.images]
    (tmp_path / "in" / "s.t__ct").mkdir(parents=True)
    pq.write_table(change_rows(RELATION, images), tmp_path / "in" / "s.t__ct" / "1.parquet")
    given = {"key": "lane,id"}
    chosen = incoming.ruling("strict", {"delete_missing": "log"}, None, f"{tmp_path}/keylog", "all")
    call = partial(incoming.run, spark, f"{tmp_path}/in", "tailrace", given, f"{tmp_path}/out", ruling=chosen)
    would = call(dry_run=True)["tables"][0]
    assert not (tmp_path / "out").exists() and not (tmp_path / "keylog").exists()
    done = call()["tables"][0]
    assert {k: done[k] for k in ("actions", "conflicts", "flagged", "inserted")} == {
        "actions": {"I": 1, "M": 2, "D": 1},
        "conflicts": {"delete_missing": 1},
        "flagged": 1,
        "inserted": 1,
    }
    assert all(would[k] == done[k] for k in ("actions", "conflicts", "flagged", "progress", "up to"))
    assert call()["tables"][0]["actions"] == {}
    one_by_one = replace(chosen, transactional=True, keylog=f"{tmp_path}/other")
    again = incoming.run(
        spark, f"{tmp_path}/in", "tailrace", given, f"{tmp_path}/other_out", ruling=one_by_one
    )["tables"][0]
    assert all(again[k] == done[k] for k in ("actions", "conflicts", "flagged", "I", "U", "D", "up to"))
    assert again["version"] > done["version"]
    options = SqdrOptions(columns="lane int, id string, a int, b string", key="lane,id")
    log = rows_at(spark, f"{tmp_path}/keylog")
    (read,) = read_keylog({"ir_keylog": log}, options).changes.values()
    found = read.df.orderBy("header__change_seq", "header__change_oper").collect()
    assert [(r["header__change_oper"], r["id"], r["b"]) for r in found] == [
        ("I", "a", 'q"'),
        ("D", "q", None),
        ("B", "a", None),
        ("U", "z", "z"),
        ("U", "z", "z"),
    ]
