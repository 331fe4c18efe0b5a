"""What must be true after every step of a schedule, and at its end."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from tailrace.lake import log
from tailrace.model.change import PREFIX
from tailrace.model.positions import order_key
from tailrace.model.sequence import number_of
from tailrace.state import commands, ledger, lifecycle
from tailrace.state.baselines import Baseline, all_baselines, read_baselines
from tailrace.state.totals import Totals

from .applying import log_files
from .target import Held, found
from .world import World


class Checks:
    """The checks of one world; what has not changed since the last step is not looked at again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._files = 0
        self._ends: list[int] = []
        self._indices: list[int] = []
        self._baselines: dict[str, Baseline] = {}
        self._landing: dict[str, int] = {}
        self._seen: dict[str, object] = {}
        self._fine: dict[str, tuple[Held, int]] = {}

    def after_a_step(self) -> None:
        """What holds after each step."""
        if self._new("control/commands", "control/baselines"):
            order_numbers(self._world)
            self._take_in()
        self._reached()
        self._targets()
        if self._new("tracking", *[p for p in self._world.ram.tables if p.startswith("changes/")]):
            stored(self._world)

    def _new(self, *paths: str) -> bool:
        """Whether one of these tables has another version than at the last look."""
        there = self._world.ram.tables
        now = [(p, len(there[p])) for p in paths if p in there]
        if self._seen.get(paths[0]) == now:
            return False
        self._seen[paths[0]] = now
        return True

    def _take_in(self) -> None:
        with self._world.ram.unnoticed():
            every, given = all_baselines("control/baselines"), commands.read("control/commands")
        self._baselines = {b.table: b for b in every}
        for one in given:
            if one.action == commands.LAND:
                self._landing[one.table] = max(one.baseline or 0, self._landing.get(one.table, 0))

    def _reached(self) -> None:
        """Takes in last change number and index of each transaction that is new in LOG."""
        files = log_files(self._world.ram, self._files)
        self._files += len(files)
        for rows, _ in files:
            columns = (rows[n].to_pylist() for n in ("RECID", "CHANGE_SEQ", "LOGADDR"))
            for kind, seq, at in zip(*columns, strict=True):
                if kind in (log.COMMIT, log.MESSAGE):
                    self._ends.append(number_of(seq))
                    self._indices.append(int.from_bytes(at[:8], "big") // 100)

    def _targets(self) -> None:
        """Each target is a state that its source table had: that at its progress."""
        for name, mine in self._world.held.items():
            base = self._baselines.get(name)
            if base is None or not base.done or order_key(mine.progress) < order_key(base.closes):
                continue
            if self._landing.get(name, 0) > base.number:
                continue  # a baseline replaces it, or has, and is not recorded
            place = bisect_right(self._ends, order_key(mine.progress))
            by_log = self._indices[place - 1] if place else 0
            at = max(by_log, self._world.source.index(bytes.fromhex(base.position)))
            before = self._fine.get(name)
            if before is None or before[0] is not mine or before[1] != at:
                differs(name, mine, self._world, at)
                self._fine[name] = mine, at


def differs(name: str, mine: Held, world: World, at: int) -> None:
    """Raises Find when a target is not as its table was after so many transactions."""
    table = world.source.history[at][name]
    there = {c.attnum for c in table.relation.columns}
    columns = [c for c in mine.relation.columns if c.attnum in there]
    have = sorted((tuple(r.get(c.attnum) for c in columns) for r in mine.rows.values()), key=repr)
    if have != (want := table.shown(columns)):
        lost, more = Counter(want) - Counter(have), Counter(have) - Counter(want)
        names = [c.name for c in columns]
        found(
            "wrong rows",
            f"{name} at {mine.progress} {names}: lacks {sorted(lost, key=repr)}, has {sorted(more, key=repr)}",
        )


def stored(world: World) -> None:
    """No (change_seq, oper) twice, TRACKING has each change once, in change tables that are not ahead of it."""
    seen = (
        Counter(world.ram.rows("tracking")["change_seq"].to_pylist())
        if "tracking" in world.ram.tables
        else Counter()
    )
    if twice := [s for s, n in seen.items() if n > 1]:
        found("tracking", f"{twice} stand in TRACKING more than once")
    upto = world.ram.tables["tracking"][-1].progress.get(ledger.STORE_APP, -1) if seen else -1
    have: set[str] = set()
    for path in [p for p in world.ram.tables if p.startswith("changes/")]:
        rows = world.ram.rows(path)
        pairs = Counter(
            zip(*(rows[PREFIX + n].to_pylist() for n in ("change_seq", "change_oper")), strict=True)
        )
        if twice := [p for p, n in pairs.items() if n > 1]:
            found("change tables", f"{twice} stand in {path} more than once")
        have |= {s for s, _ in pairs}
    if differ := {s for s in have if number_of(s) <= upto} ^ set(seen):
        found("tracking", f"{sorted(differ)} stand in TRACKING or a change table alone")


def order_numbers(world: World) -> None:
    """No number is given twice."""
    if "control/commands" not in world.ram.tables:
        return
    rows = world.ram.rows("control/commands").to_pylist()
    if twice := [n for n, k in Counter(r["number"] for r in rows).items() if k > 1]:
        found(
            "orders",
            f"numbers {twice} were given twice: {[(r['number'], r['action'], r['table']) for r in rows]}",
        )


def followed(world: World) -> None:
    """Once capture has looked twice with nothing in between, it follows every table that is not removed."""
    with world.ram.unnoticed():
        states = lifecycle.of_task("control/commands", read_baselines("control/baselines"))
    wanted = {t for t in world.source.now if t not in states or not states[t].removed}
    if wanted != world.source.published:
        found("orders", f"{sorted(world.source.published)} are captured, and {sorted(wanted)} should be")


def at_the_end(world: World) -> None:
    """What holds when nothing is left to do: everything there is arrived."""
    for name in world.source.now:
        if name not in world.held:
            found("stalled", f"{name} never came to its target")
            continue
        differs(name, world.held[name], world, len(world.source.history) - 1)
    totals = Totals("control/stored", "control/applied")
    reached_ = totals.reached(read_baselines("control/baselines"), {})
    known = {t: max(reached_.get(t), one.progress, key=order_key) for t, one in world.held.items()}
    known = {t: number for t, number in known.items() if number is not None}
    if behind := {t: n for t, n in totals.behind(known).items() if n}:
        found("status", f"everything is applied, and status says that rows are behind: {behind}")
