"""Tables get all their changes once, and counts that bound them, whatever happens between rounds."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from tailrace.apply import backlog
from tailrace.apply.applier import Applier
from tailrace.errors import ApplyError, BaselineNeededError, OvertakenError

from .apply_world import World

pytestmark = pytest.mark.unit


class Hook(threading.Event):
    """Calls a function when a round is about to begin, with its number in the call: 1, 2, ..."""

    def __init__(self, what: Callable[[int], None]) -> None:
        super().__init__()
        self.n, self.what = 0, what

    def is_set(self) -> bool:
        self.n += 1
        self.what(self.n)
        return False


def at(round_number: int, what: Callable[[], None]) -> Hook:
    return Hook(lambda n: what() if n == round_number else None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Two tables; `s.a` has rows 1, 2, 3, then a batch with all kinds of changes, and one with an insert."""
    made = World(("s.a", "s.b")).installed(monkeypatch)
    for table in made.tables:
        for n in (1, 2, 3):
            made.change(table, "I", id=n, v="old")
    made.store()
    for table in made.tables:
        made.baseline(table)()
    made.recorded = len(made.changes)
    made.change("s.a", "U", 1, id=1)  # v was not sent
    made.change("s.a", "U", 2, id=5, v="moved")
    made.change("s.a", "D", 3)
    made.store()
    made.change("s.a", "I", id=4, v="new")
    made.store()
    return made


def same(world: World, applier: Applier) -> None:
    """Targets are as the source was at the last store batch; the record says so."""
    assert world.stored
    for table in world.tables:
        rows: dict[int, dict[str, object]] = {}
        for c in world.changes[: world.stored[-1].upto]:
            if c.table == table:
                c.on(rows)
        assert world.rows.get(table, {}) == rows, table
        told, newest = (
            world.newest_applied("").get(table, -1),
            world.newest_stored("", 1 << 62).get(table, -1),
        )
        assert max(told, world.baselines[table].after) >= newest, table
    assert applier.recorded == world.stored[-1].upto
    assert world.failing == set()


def test_a_baseline_that_lands_between_two_rounds(world: World) -> None:
    taken = world.baselines.pop("s.a")
    applier = world.applier(max_changes=1)

    def lands() -> None:
        world.version += 1
        world.baselines["s.a"] = taken

    applier.catch_up(at(2, lands))
    same(world, applier)


def test_a_group_that_fails_in_the_first_round_gets_both_later(world: World) -> None:
    world.groups = {"s.a"}
    failures = iter([True])

    def point(what: str, table: str) -> None:
        if what == "before the target" and next(failures, False):
            raise ApplyError("disk full")

    world.point = point
    applier = world.applier(max_changes=1)
    assert [(d.table, d.upto) for d in applier.catch_up()] == []
    assert (world.errors, applier.recorded) == (["s.a"], 10)
    assert [(d.table, d.upto) for d in applier.catch_up()] == [("s.a", 9), ("s.a", 10)]
    same(world, applier)


def test_a_table_that_is_paused_and_resumed_between_rounds(world: World) -> None:
    world.paused = {"s.a"}
    world.change("s.b", "I", id=9, v="b")
    world.store()
    applier = world.applier(max_changes=1)
    applier.catch_up(at(2, world.paused.clear))
    same(world, applier)


def test_a_baseline_that_lands_while_its_table_is_brought_up(world: World) -> None:
    world.paused = {"s.a"}
    applier = world.applier(max_changes=1)
    applier.catch_up()
    world.paused = set()
    applier.catch_up(at(2, world.baseline("s.a", after=2)))
    same(world, applier)


def test_a_table_that_stood_in_the_middle_of_a_batch(world: World) -> None:
    """By transaction, a batch may end where no store batch does."""
    world.change("s.b", "I", id=7, v="b")
    world.store()
    for c in world.changes[6:8]:
        c.on(world.rows["s.a"])
    world.reached["s.a"] = 8
    applier = world.applier()
    applier.catch_up()
    same(world, applier)


def test_a_new_process_reads_what_waits_from_the_ledger(world: World) -> None:
    world.paused = {"s.a"}
    world.applier().catch_up()
    assert world.recorded == 10
    world.change("s.a", "T")
    world.change("s.a", "I", id=1, v="again")
    world.store()
    world.applier().catch_up()
    world.paused = set()
    applier = world.applier(max_changes=1)
    assert [d.upto for d in applier.catch_up()] == [9, 10, 12]
    same(world, applier)


def test_a_table_whose_batches_are_not_kept_any_more_needs_a_baseline(world: World) -> None:
    world.paused = {"s.a"}
    applier = world.applier()
    applier.catch_up()
    world.paused, world.gone = set(), {"s.a": 9}
    with pytest.raises(BaselineNeededError, match="has the changes up to 6, and store batches of it up to 9"):
        applier.catch_up()
    assert world.reached["s.a"] == 6
    world.baseline("s.a")()
    applier.catch_up()
    same(world, applier)


def test_what_waits_is_not_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "ROWS", 5)
    world.paused = {"s.a"}
    applier = world.applier()
    for n in range(60):
        world.change("s.a", "I", id=100 + n, v="a")
        if (batch := world.store()) is not None:
            applier.add(batch)
        if n % 20 == 19:
            applier.catch_up()
    assert len(applier._backlog.take()) == 0
    world.paused, world.read = set(), 0
    applier.catch_up()
    same(world, applier)
    assert world.read <= 5


def test_the_store_does_not_wait_for_a_round(world: World) -> None:
    begun, go = threading.Event(), threading.Event()

    def point(what: str, _: str) -> None:
        if what == "before the target":
            begun.set()
            assert go.wait(10)

    world.point = point
    applier = world.applier()
    worker = threading.Thread(target=applier.catch_up)
    worker.start()
    assert begun.wait(10)
    world.change("s.b", "I", id=9, v="b")
    batch = world.store()
    assert batch is not None
    applier.add(batch)  # would hang
    go.set()
    worker.join(10)
    world.point = lambda *_: None
    applier.catch_up()
    same(world, applier)


def test_what_is_committed_is_recorded_when_another_table_ends_the_round(world: World) -> None:
    world.change("s.b", "I", id=9, v="b")
    world.store()

    def point(what: str, table: str) -> None:
        if (what, table) == ("before the target", "s.b"):
            raise ApplyError("disk full")

    world.point = point
    with pytest.raises(ApplyError, match="disk full"):
        world.applier(max_changes=9).catch_up()
    assert [(d.table, d.upto) for d in world.applied] == [("s.a", 11)]
    world.point = lambda *_: None
    applier = world.applier()
    applier.catch_up()
    same(world, applier)


class KilledError(BaseException):
    """The process ends here."""


def test_what_a_kill_kept_from_the_record_is_recorded_by_the_next_process(world: World) -> None:
    def point(what: str, _: str) -> None:
        if what == "before the record":
            raise KilledError

    world.point = point
    with pytest.raises(KilledError):
        world.applier(max_changes=9).catch_up()
    world.point = lambda *_: None
    applier = world.applier(max_changes=1)
    applier.catch_up()
    same(world, applier)
    assert [(d.table, d.upto, d.plan) for d in world.applied] == [("s.a", 10, "none")]


def test_changes_that_a_baseline_has_are_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is behind the baseline: two rounds in a row have changes that are in its rows already."""
    world = World(("s.a",), keylog=True).installed(monkeypatch)
    for n in range(6):
        world.change("s.a", "I", id=n, v="x")
    world.baseline("s.a", after=0)()
    for n in range(6, 10):
        world.change("s.a", "I", id=n, v="x")
    for upto in (2, 4, 8, 10):
        world.store(upto)
    applier = world.applier(max_changes=1)
    applier.catch_up()
    same(world, applier)


STEPS = [
    "store",
    "store",
    "store",
    "catch-up",
    "catch-up",
    "pause",
    "resume",
    "baseline",
    "land",
    "fail",
    "kill",
    "overtake",
    "trim",
]


def steps(world: World, seed: int, many: int) -> Applier:
    """A schedule of random steps, some of them between rounds; then all is healed."""
    dice, landings, armed = random.Random(seed), list[Callable[[], None]](), {"what": ""}
    tables = sorted(world.tables)

    def point(what: str, _: str) -> None:
        if armed["what"] and dice.random() < 0.2:
            kind = armed["what"]
            if kind != "overtake" or what == "before the key log":
                armed["what"] = ""
                raise {"kill": KilledError(), "fail": ApplyError("full"), "overtake": OvertakenError("m")}[
                    kind
                ]

    def change() -> None:
        table, oper = dice.choice(tables), dice.choice("IIIUUUKKDDT" if dice.random() < 0.2 else "IIUUKD")
        rows = world.source.get(table, {})
        old = dice.choice(sorted(rows)) if rows else 0
        free = dice.choice([k for k in range(len(rows) + 3) if k not in rows])
        values = {"v": f"{len(world.changes)}"} if dice.random() < 0.6 else {}
        if oper == "T" or (oper != "I" and rows):
            new = {"id": free if oper == "K" else old}
            world.change(table, "U" if oper == "K" else oper, old, **({} if oper in "DT" else new | values))
        else:
            world.change(table, "I", id=free, v="new")

    def step(kind: str) -> None:
        if kind == "store":
            for _ in range(dice.randrange(1, 6)):
                change()
            last = world.stored[-1].upto if world.stored else 0
            if (batch := world.store(dice.randint(last + 1, len(world.changes)))) is not None:
                applier.add(batch)
        elif kind == "pause":
            world.paused.add(dice.choice(tables))
        elif kind == "resume" and world.paused:
            world.paused.remove(dice.choice(sorted(world.paused)))
        elif kind == "baseline":
            after = dice.randint(world.stored[-1].upto if world.stored else 0, len(world.changes))
            landings.append(world.baseline(dice.choice(tables), after))  # LOG is never behind the store
        elif kind == "trim":
            world.trim()
        elif kind == "land" and landings:
            landings.pop(0)()
        elif kind in ("fail", "kill", "overtake", "trim"):
            armed["what"] = kind

    def catch_up() -> Applier:
        try:
            applier.catch_up(Hook(lambda _: step(dice.choice(STEPS)) if dice.random() < 0.3 else None))
        except (ApplyError, KilledError):
            return world.applier()
        return applier

    world.point, applier = point, world.applier()
    for _ in range(many):
        kind = dice.choice(STEPS)
        if kind == "catch-up":
            applier = catch_up()
        else:
            step(kind)
    world.point = lambda *_: None
    world.paused.clear()
    for table in tables:
        if table not in world.baselines:
            world.baseline(table)()
    if (batch := world.store()) is not None:
        applier.add(batch)
    applier.catch_up()
    return applier


@pytest.mark.parametrize("keylog", [False, True])
def test_whatever_order_things_happen_in(keylog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(150):
        with monkeypatch.context() as patch:
            patch.setattr(backlog, "ROWS", seed % 7 + 1)
            world = World(("s.a", "s.b", "s.c"), {"s.a", "s.b"}, keylog).installed(patch)
            try:
                same(world, steps(world, seed, 60))
                assert all(len(set(numbers)) == len(numbers) for numbers in world.log.values())
            except BaseException as error:
                raise AssertionError(f"seed {seed}") from error


def test_a_new_baseline_ends_what_the_key_log_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes that a baseline has are not logged: they may be gone (lost files of LOG are given up for baselines)."""
    world = World(("s.a",), keylog=True).installed(monkeypatch)
    world.change("s.a", "I", id=1, v="a")
    world.store()
    world.baseline("s.a")()
    world.change("s.a", "I", id=2, v="b")
    world.store()
    world.applier().catch_up()
    assert world.log == {"s.a": [2]}
    world.change("s.a", "I", id=3, v="c")
    world.change("s.a", "I", id=4, v="d")
    world.store()
    world.baseline("s.a")()
    world.kept = 4
    world.change("s.a", "D", 1)
    world.store()
    world.applier().catch_up()
    assert world.rows == world.source and world.log == {"s.a": [2, 5]} and world.logged == {"s.a": 5}
