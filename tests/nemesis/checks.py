"""What must be true after every step of a schedule, and at its end."""

from __future__ import annotations

from collections import Counter

from tailrace.change import PREFIX
from tailrace.control import ledger, tables
from tailrace.control.ledger import Baseline
from tailrace.control.totals import Totals
from tailrace.sequence import number_of

from .applying import log_files
from .target import Held, found
from .world import World


def reached(world: World) -> list[tuple[int, int]]:
    """Last change number and index of each transaction in LOG."""
    ends = []
    for rows, _ in log_files(world.ram):
        for kind, seq, at in zip(
            *(rows[n].to_pylist() for n in ("RECID", "CHANGE_SEQ", "LOGADDR")), strict=True
        ):
            if kind in (12, 100):
                ends.append((number_of(seq), int.from_bytes(at[:8], "big") // 100))
    return ends


def targets(world: World) -> None:
    """Each target is a state that its source table had: that at its progress."""
    quiet = world.ram.at
    world.ram.at = lambda what, path: None
    try:
        every = ledger._baselines("control/baselines")
        newest: dict[str, Baseline] = {b.table: b for b in every}
        orders = tables.read("control/orders")
    finally:
        world.ram.at = quiet
    ends = reached(world)
    states = tables.states(orders, {t: b for t, b in newest.items() if b.done})
    for name, mine in world.held.items():
        base = newest.get(name)
        if base is None or not base.done or mine.upto < base.closes:
            continue
        if name in states and states[name].landing:
            continue  # a baseline replaces it, or has, and is not recorded
        by_log = max((k for number, k in ends if number <= mine.upto), default=0)
        by_baseline = world.source.index(bytes.fromhex(base.position))
        at = max(by_log, by_baseline)
        differs(name, mine, world, at)


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
            f"{name} at {mine.upto} {names}: lacks {sorted(lost, key=repr)}, has {sorted(more, key=repr)}",
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


def orders(world: World) -> None:
    """No number is given twice."""
    if "control/orders" not in world.ram.tables:
        return
    rows = world.ram.rows("control/orders").to_pylist()
    if twice := [n for n, k in Counter(r["number"] for r in rows).items() if k > 1]:
        found(
            "orders",
            f"numbers {twice} were given twice: {[(r['number'], r['action'], r['table']) for r in rows]}",
        )


def after_a_step(world: World) -> None:
    """What holds after each step."""
    orders(world)
    targets(world)
    stored(world)


def at_the_end(world: World) -> None:
    """What holds when nothing is left to do: everything there is arrived."""
    for name in world.source.now:
        if name not in world.held:
            found("stalled", f"{name} never came to its target")
            continue
        differs(name, world.held[name], world, len(world.source.history) - 1)
    totals = Totals("control/stored", "control/applied")
    reached_ = totals.reached(ledger.read_baselines("control/baselines"), {})
    known = {t: max(reached_.get(t, -1), one.upto) for t, one in world.held.items()}
    if behind := {t: n for t, n in totals.behind(known).items() if n}:
        found("status", f"everything is applied, and status says that rows are behind: {behind}")
