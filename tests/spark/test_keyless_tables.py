"""`tailrace apply` on tables without a key: outcomes of whole rows, and changes that do not name their row."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tailrace.apply import rejects
from tailrace.apply.rules import RulesApplier
from tailrace.apply.task_rules import TableRules
from tailrace.apply.vendor import upsert as plain
from tailrace.apply.vendor.applier import VendorApplier
from tailrace.capture.snapshot_sink import DeltaLanding
from tailrace.engine.columns import WHY
from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError, ConfigError
from tailrace.formats.qlik.dfm import DfmColumn
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.model import mask
from tailrace.operate import vendor_apply as incoming
from tailrace.state import commands
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.targets.base import Constraints
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.images import KEYLESS, Image, change_table

from .bag_model import NAMES, ROWS, Bag, Change, history
from .rules_model import RELATION
from .rules_task import NOW
from .test_format_qlik import seq
from .test_keyless_rules import Keyless, some_rules
from .test_qlik_folders import header_columns, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.model.change import ChangeTable

pytestmark = pytest.mark.spark
AT = "2026-01-01 12:00:00.120"
NOTES = [*header_columns(), DfmColumn(5, "id", "INT4"), DfmColumn(6, "word", "WSTRING", length=20)]


def line(number: int, oper: str, *values: object) -> str:
    marked = {"I": "30", "U": "20"}.get(oper, "")
    return ",".join(map(str, (seq(number), oper, marked, AT, *values)))


@pytest.mark.slow
def test_a_qlik_table_without_key_and_its_key_log(spark: SparkSession, tmp_path: Path) -> None:
    """Two equal rows, NULLs, a row that is not there; then changes that do not say which row they mean."""
    folder = tmp_path / "in" / "dbo.note__ct"
    lines = [
        line(1, "I", 1, "a"), line(2, "I", 1, "a"), line(3, "I", 2, ""),
        line(4, "B", 1, "a"), line(4, "U", 1, "b"), line(5, "D", 2, ""),
        line(6, "D", 1, "a"), line(7, "D", 1, "a"), line(8, "B", 9, "z"), line(8, "U", 9, "y"),
    ]  # fmt: skip
    put(folder, "20260101-120000120", lines, NOTES, start="2026-01-01T12:00:00.120", version=1)

    chosen = incoming.ruling("strict", {}, None, f"{tmp_path}/keylog", "all")

    def apply(**more: Any) -> dict[str, Any]:
        where = (f"{tmp_path}/in", "qlik", {}, f"{tmp_path}/out")
        made = incoming.run(spark, *where, ruling=chosen, **more)
        assert any(
            "dbo.note: no DFM names a key, so rows are identified by all of their values" in n
            for n in made["notes"]
        )
        told: dict[str, Any] = made["tables"][0]
        return told

    would, done = apply(dry_run=True), apply()
    assert (done["actions"], done["conflicts"]) == (
        {"I": 3, "M": 2, "D": 3}, {"delete_missing": 1, "update_missing": 1},
    )  # fmt: skip
    assert all(would[k] == done[k] for k in ("actions", "conflicts", "flagged"))
    assert lake.read(f"{tmp_path}/out/dbo.note", ["id", "word"]).to_pylist() == [{"id": 1, "word": "b"}]
    log = lake.read(f"{tmp_path}/keylog").sort_by("keylog_sort").to_pylist()
    missing = "_missing: the row to be "
    assert [(r["change_row_counter"], r["action_taken"], r["result_row_count"], r["result_error"]) for r in log] == [
        (1, "I", 1, None), (2, "I", 1, None), (3, "I", 1, None), (4, "M", 1, None), (5, "D", 1, None),
        (6, "D", 1, None), (7, "D", 0, f"delete{missing}deleted does not exist"),
        (8, "M", 0, f"update{missing}updated does not exist"),
    ]  # fmt: skip
    assert [(log[n]["before_key"], log[n]["after_key"]) for n in (3, 4)] == [
        ('id="1" word="a"', 'id="1" word="b"'), ('id="2" word=&xsi:nil="true"', None),
    ]  # fmt: skip
    late = [line(9, "I", 5, "e"), line(10, "U", 1, "c")]
    put(folder, "20260101-120001120", late, NOTES, start="2026-01-01T12:00:01.120", version=1)
    with pytest.raises(ApplyError, match="an update has no before image, and the table has no key") as said:
        apply()
    assert said.value.where == f"dbo.note, change_seq {seq(10)}"
    assert "`--option key=...`" in str(said.value.hint)
    assert DeltaTarget(spark, f"{tmp_path}/out", app_id="apply").progress("dbo.note") == 8
    assert lake.read(f"{tmp_path}/keylog").num_rows == 8


def notes(spark: SparkSession, *images: Image) -> ChangeTable:
    return replace(change_table(spark, KEYLESS, images), name=KEYLESS.table)


ONE, TWO = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
UNCLEAR: list[tuple[str, int, list[Image]]] = [
    ("an update has no before image", 3, [(2, "B", ONE), (2, "U", TWO), (3, "U", ONE), (4, "U", ONE)]),
    # As many of one as of the other.
    ("a before image has no update", 2, [(2, "B", ONE), (3, "U", TWO)]),
    ("an image leaves columns out", 2, [(2, "B", {"id": 1}), (2, "U", TWO), (3, "U", TWO)]),
    ("an image leaves columns out", 3, [(2, "B", ONE), (2, "U", TWO), (3, "D", {"v": "b"})]),
]


@pytest.mark.slow
def test_changes_that_do_not_say_which_row_they_mean(spark: SparkSession, tmp_path: Path) -> None:
    """With rules and without: nothing of the batch is applied; what an insert leaves out is NULL."""
    target = DeltaTarget(spark, f"{tmp_path}/lake", app_id="t")
    folder = str(tmp_path)
    rules = VendorApplier(RulesApplier(target, Rules.of("upsert"), root=folder, task="t"), folder)

    def unruled(table: ChangeTable) -> object:
        return plain.apply(target, {KEYLESS.table: table}, folder)

    unruled(notes(spark, (1, "I", {"id": 1})))
    ways = [rules.apply, rules.preview, unruled, rules.apply]
    for apply, (what, number, images) in zip(ways, UNCLEAR, strict=True):
        with pytest.raises(ApplyError, match=what) as said:
            apply(notes(spark, (1, "I", {"id": 1}), *images))
        assert str(said.value.where).endswith(f"{number:019d}"), what
    soft = VendorApplier(RulesApplier(target, Rules.of("soft_delete"), root=folder, task="t"), folder)
    with pytest.raises(ConfigError, match="soft delete marks rows by their key"):
        soft.preview(notes(spark, (2, "I", ONE)))
    assert lake.read(target.path(KEYLESS.table)).to_pylist() == [{"id": 1, "v": None}]


def test_values_that_the_target_cannot_hold_are_no_row_of_it(spark: SparkSession) -> None:
    """Nor is a delete about one: all columns tell rows apart. Images that say which columns they have are whole."""
    narrow = KEYLESS.with_columns([replace(KEYLESS.columns[0], type="smallint"), KEYLESS.columns[1]])
    constraints = Constraints(frozenset({"v"}), {"good": "v <> 'bad'"})
    big, none, bad = {"id": 70000, "v": "a"}, {"id": 1, "v": None}, {"id": 1, "v": "bad"}
    table = notes(
        spark, (1, "I", ONE), (2, "D", big), (3, "B", big), (3, "U", ONE), (4, "D", none),
        (5, "B", ONE), (5, "U", none), (6, "B", bad), (6, "U", bad), (7, "D", bad),
    )  # fmt: skip
    whole = mask.encode(table.ordinal(c) for c in table.columns)
    df = table.df.withColumn(table.header("column_mask"), F.lit(bytearray(whole)))
    found = rejects.judged(table.with_df(df), narrow, Rules.of("strict"), constraints)
    seq, oper = (found.header(n) for n in ("change_seq", "change_oper"))
    bad = found.df.where(F.col(WHY).isNotNull()).select(seq, oper, WHY).collect()
    assert sorted((int(r[0][-2:]), r[1], r[2]) for r in bad) == [
        (2, "D", "id is not a valid smallint"), (3, "B", "id is not a valid smallint"), (5, "U", "NULL in v"),
        (6, "U", "CHECK good refuses it"),
    ]  # fmt: skip


@pytest.mark.parametrize("policies", [{}, {"data_error": "log"}], ids=["one task", "several"])
@pytest.mark.parametrize("key", [[], ["id"]], ids=["no key", "key"])
def test_an_archives_key_log_has_old_keys(
    spark: SparkSession, tmp_path: Path, policies: dict[str, str], key: list[str]
) -> None:
    """An archive looks for no row: only images tell of an update's old key, and of a delete's row."""
    target = DeltaTarget(spark, f"{tmp_path}/lake", app_id="t")
    log = KeyLog(f"{tmp_path}/keylog", app_id="t", run_id="1")
    rules = Rules.of("archive", policies)
    under = RulesApplier(target, rules, root=str(tmp_path), task="t", keylog=log)
    relation = KEYLESS.with_columns([replace(c, key=c.name in key) for c in KEYLESS.columns])
    moved = {"id": 7, "v": "b"}
    images: list[Image] = [
        (1, "I", ONE), (2, "U", TWO), (3, "B", {"id": 1} if key else TWO), (3, "U", moved), (4, "B", moved),
        (4, "U", moved), (5, "D", moved), (6, "D", {"id": 9}),
    ]  # fmt: skip
    VendorApplier(under, str(tmp_path)).apply(
        replace(change_table(spark, relation, images), name=relation.table)
    )
    rows = lake.read(log.path).sort_by("keylog_sort").to_pylist()
    told = [(r["change_row_type"], r["before_key"], r["after_key"]) for r in rows]
    if key:
        assert told == [
            ("I", None, None), ("U", 'id="1"', None), ("U", 'id="1"', 'id="7"'), ("U", 'id="7"', None),
            ("D", 'id="7"', None), ("D", 'id="9"', None),
        ]  # fmt: skip
    else:
        assert told == [
            ("I", None, None), ("U", None, None), ("U", 'id="1" v="b"', 'id="7" v="b"'), ("U", None, None),
            ("D", 'id="7" v="b"', None), ("D", 'id="9"', None),
        ]  # fmt: skip
    assert lake.read(target.path(relation.table)).num_rows == 6


@pytest.mark.slow
def test_any_policies_over_a_change_table(spark: SparkSession, tmp_path: Path) -> None:
    """As the plain model; a policy that ends a batch ends it before the change."""
    rules = some_rules(random.Random(seed := random.randrange(10**6)))
    target = DeltaTarget(spark, f"{tmp_path}/lake", app_id="t")
    log = KeyLog(f"{tmp_path}/keylog", app_id="t", run_id="1")

    def apply(rules: Rules, some: list[Change]) -> str | None:
        under = RulesApplier(target, rules, root=str(tmp_path), task="t", keylog=log)
        keyless = replace(RELATION, columns=tuple(replace(c, key=False) for c in RELATION.columns))
        table = change_table(spark, keyless, [i for c in some for i in c.images])
        made = VendorApplier(under, str(tmp_path))
        return made.apply(replace(table, name=RELATION.table)).suspended

    bag = Bag(rules)
    changes = history(seed, 30)
    for c in changes:
        bag.apply(c)
    assert apply(rules, changes) is None
    ends = [
        Change(50, "I", None, ROWS[0]), Change(51, "D", (7, "x", 1, "x")), Change(52, "I", None, ROWS[0]),
    ]  # fmt: skip
    ending = Rules.of(rules.mode, {"delete_missing": "suspend"})
    assert str(apply(ending, ends)).startswith("delete_missing at change_seq")
    bag.apply(ends[0])
    rows = lake.read(target.path(RELATION.table), NAMES).to_pylist()
    assert Counter(tuple(r[n] for n in NAMES) for r in rows) == +bag.rows, (seed, rules)
    found = lake.read(log.path).sort_by("keylog_sort").to_pylist()
    assert [
        (
            r["change_row_counter"], r["change_row_type"], r["action_taken"], r["result_row_count"],
            r["flagged_count"], r["result_error"] is not None,
        )
        for r in found
    ] == bag.log, (seed, rules)  # fmt: skip


def test_what_a_task_refuses_of_a_table_without_key(spark: SparkSession, tmp_path: Path) -> None:
    """Soft delete; and a window of its baseline that is open: it gets a new one, in an exact window."""
    task = Keyless(spark, tmp_path / "soft", {"s.t": TableRules(Rules.of("soft_delete"))})
    task.put({"s.t": [Change(1, "I", None, ROWS[0])]})
    assert task.catch_up() == []
    (order,) = commands.read(task.orders)
    assert (order.action, order.table) == (commands.SUSPEND, "s.t")
    assert "soft delete marks rows by their key" in order.why
    task = Keyless(spark, tmp_path / "open", {"s.t": TableRules(Rules.of("strict"))})
    relation = task.relation("s.t")
    DeltaLanding(task.target.path("s.t"), task.target.app("s.t")).begin(relation).commit(relation, [], 0)
    open_ = Baseline("s.t", relation, "", 0, 1, NOW, 0.0, 1, 0, 0, "open", 5)
    write_baseline(f"{task.control}/baselines", open_)
    task.put({"s.t": [Change(1, "I", None, ROWS[0]), Change(9, "I", None, ROWS[1])]})
    assert task.catch_up() == []
    orders = commands.read(task.orders)
    assert [o.action for o in orders] == [commands.SUSPEND, commands.RESYNC_EXACT]
    assert "lost its key while its baseline was read in an open window" in orders[0].why
