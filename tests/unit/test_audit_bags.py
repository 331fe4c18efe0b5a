"""The merge that audits on tables without a key, without Spark: rows are known by all of their values."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError
from tailrace.lake import delta as lake
from tailrace.model.change import Relation
from tailrace.targets.merge_result import MergeResult

from ..examples import rounds
from ..spark.bag_model import ROWS, Bag, Change, history
from ..spark.rules_model import RELATION, logged
from .test_audit import COLUMNS, Place, seq

pytestmark = pytest.mark.unit
KEYLESS: Relation = RELATION.with_columns([replace(c, key=False) for c in RELATION.columns])
MORE = [*ROWS, (None, None, None, None), (None, "p", 1, "x"), (5, "p", 1, "x")]
POLICIES = ["apply", "ignore", "log"]


class BagPlace(Place):
    """A table without key; `plain`: without rules and key log."""

    plain = False

    def __init__(self, root: Path, mode: str, on: Mapping[str, str]) -> None:
        super().__init__(root, mode, on)
        self.relation = KEYLESS

    def add(self, changes: Sequence[Change]) -> MergeResult:
        one, kinds = self.batch(changes), Counter(c.oper for c in changes)  # type: ignore[arg-type]
        one = replace(one, appends=not any(kinds[k] for k in "UDTB"), counts=kinds)
        done = self.merge(replace(one, audit=None) if self.plain else one)
        assert isinstance(done, MergeResult)
        lake.commit(self.log, list(done.parts), progress={})
        return done

    def bag(self) -> Counter[object]:
        return Counter(tuple(r.values()) for r in lake.read(self.path).to_pylist())


def inserts(*rows: tuple[object, ...], first: int = 1) -> list[Change]:
    return [Change(n, "I", None, row) for n, row in enumerate(rows, first)]


@pytest.mark.parametrize("memory", [None, 1 << 30, 20_000], ids=["task", "two shards", "many shards"])
@pytest.mark.parametrize("round_", range(rounds(2)))
def test_any_history_ends_as_row_by_row(tmp_path: Path, round_: int, memory: int | None) -> None:
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    on = {k: dice.choice(POLICIES) for k in ("update_missing", "delete_missing")} if round_ else {}
    mode = dice.choice(["strict", "upsert"])
    place, bag = BagPlace(tmp_path, mode, on), Bag(Rules.of(mode, on))
    place.memory = memory
    changes = history(seed, 80, MORE)
    if round_ % 2:
        changes = [replace(c, number=n) for n, c in enumerate((c for c in changes if c.oper != "T"), 1)]
    start = inserts(*(dice.choice(MORE) for _ in range(12)))
    cuts = sorted(dice.sample(range(1, len(changes)), 2))
    later = [replace(c, number=c.number + 12) for c in changes]
    for some in (start[:6], start[6:], later[: cuts[0]], later[cuts[0] : cuts[1]], later[cuts[1] :]):
        before = sum(place.bag().values())
        for change in some:
            bag.apply(change)
        done = place.add(some)
        place.flagged = bag.flagged
        assert place.bag() == +bag.rows, seed
        assert logged(place.logged()) == bag.log, seed
        assert before + done.outcome.inserted - done.outcome.deleted == sum(bag.rows.values()), seed


def test_without_rules_changes_of_rows_that_are_not_there_are_counted(tmp_path: Path) -> None:
    place = BagPlace(tmp_path, "upsert", {})
    place.plain, (p, x, q, other) = True, ROWS
    place.add(inserts(p, p, q))
    some = [Change(4, "D", p), Change(5, "D", x), Change(6, "U", other, x), Change(7, "U", q, other)]
    done = place.add(some).outcome
    assert (done.inserted, done.updated, done.deleted, done.missing) == (2, 0, 2, 2)
    assert place.bag() == {p: 1, x: 1, other: 1}
    for file in DeltaTable(place.path).file_uris():
        Path(file).unlink()  # a truncate takes away what is not even read
    done = place.add(
        [Change(8, "D", q), Change(9, "T"), *inserts(p, p, first=10), Change(12, "D", p)]
    ).outcome
    assert (done.inserted, done.deleted, done.missing) == (1, 3, 0)
    assert place.bag() == {p: 1}


def test_only_files_with_rows_that_go_are_written_anew(tmp_path: Path) -> None:
    """Copies go from the first file that has some; one whose range of values says no is not even read."""
    place = BagPlace(tmp_path, "strict", {})
    one, two, far = (1, "k", 1, "x"), (2, "k", 1, "x"), (9, "k", 1, "x")
    for n, rows in enumerate(([one, two], [one, two], [far, far])):
        place.add(inserts(*rows, first=2 * n + 1))
    table = DeltaTable(place.path)
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    (unread,) = (f["path"] for f in actions if f["min.lane"] == 9)
    Path(place.path, unread).rename(tmp_path / "away")
    done = place.add([Change(7, "D", one), Change(8, "D", one), Change(9, "D", two), Change(10, "D", two)])
    assert (done.outcome.deleted, done.tally) == (4, {})
    (tmp_path / "away").rename(Path(place.path, unread))
    assert [Path(f).name for f in DeltaTable(place.path).file_uris()] == [unread]
    place.add([Change(11, "D", far), Change(12, "I", None, one)])
    assert place.bag() == {far: 1, one: 1}


def test_ranges_of_values_say_nothing_of_nulls(tmp_path: Path) -> None:
    place = BagPlace(tmp_path, "strict", {})
    zero, none, far = (0, "k", 1, "x"), (None, "k", 1, "x"), (9, "k", 1, "x")
    place.add(inserts(zero, none))
    place.add(inserts(far, first=3))
    assert place.add([Change(4, "D", far), Change(5, "D", none)]).tally == {}
    assert place.bag() == {zero: 1}


def test_inserts_alone_are_added_and_no_row_is_read(tmp_path: Path) -> None:
    place = BagPlace(tmp_path, "strict", {})
    place.add(inserts(ROWS[0]))
    (file,) = DeltaTable(place.path).file_uris()
    Path(file).rename(tmp_path / "away")
    done = place.add(inserts(ROWS[0], ROWS[2], first=2))
    (tmp_path / "away").rename(file)
    assert (done.outcome.inserted, done.outcome.plan) == (2, "append")
    assert place.bag() == {ROWS[0]: 2, ROWS[2]: 1}
    assert [(r["action_taken"], r["result_row_count"]) for r in place.logged()] == [("I", 1)] * 3


@pytest.mark.parametrize(
    ("what", "at", "oper", "there"),
    [
        ("an update has no before image", 2, "U", set(COLUMNS.names)),
        ("a before image has no update", 2, "B", set(COLUMNS.names)),
        ("an image leaves columns out", 2, "D", {"lane", "id"}),
    ],
)
def test_changes_that_do_not_say_which_row_they_mean(
    tmp_path: Path, what: str, at: int, oper: str, there: set[str]
) -> None:
    place = BagPlace(tmp_path, "strict", {})
    values = {n: v for n, v in zip(COLUMNS.names, ROWS[0], strict=True) if n in there}

    class Odd(Change):
        images = property(lambda _: [(at, oper, values)])  # type: ignore[assignment]

    with pytest.raises(ApplyError, match=f"{what}, and the table has no key") as said:
        place.add([*inserts(ROWS[0]), Odd(at, oper), Change(3, "D", ROWS[0])])
    assert said.value.where == f"s.t, change_seq {seq(at)}"
    assert not place.bag() and not place.logged()
