"""In whatever order changes, applies, orders, baselines, consumers and purges come, what is needed stays.

The model says of each table what somebody needs; every change behind that must be in the change table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.operate import retention
from tailrace.operate.consumers import Consumers, consumers_of
from tailrace.operate.retention import purge_task
from tailrace.store.kept import kept

from ..examples import examples
from .retention_home import ITEM, NOTE, NOW, Home

pytestmark = pytest.mark.unit

LATER = NOW.timestamp() + 365 * 86_400
"""All changes are old."""


class Story:
    """A task, and what is needed of it."""

    def __init__(self, at: Path) -> None:
        self.home = Home(at, upto=4)
        self.stored = 4
        self.target = dict.fromkeys((ITEM, NOTE), 4)
        self.paused: set[str] = set()
        self.removed: set[str] = set()
        self.asked: dict[str, int] = {}
        self.begun: dict[str, tuple[int, int]] = {}  # table -> (order, LOG's number when its baseline began)
        self.numbers = dict.fromkeys((ITEM, NOTE), 1)
        self.reader: int | None = None

    def store(self, table: str) -> None:
        self.home.store(range(self.stored + 1, self.stored + 4))
        self.stored += 3

    def apply(self, table: str) -> None:
        if table not in self.paused | self.removed:
            self.target[table] = self.stored
            self.home.applied(table, self.stored)

    def pause(self, table: str) -> None:
        action = "resume" if table in self.paused else "pause"
        self.home.order(action, table)
        self.paused ^= {table}

    def resync(self, table: str) -> None:
        if table not in self.removed:
            self.asked[table] = self.home.order("resync", table)

    def begin(self, table: str) -> None:
        if table in self.asked:
            self.begun[table] = self.asked[table], self.stored  # LOG is there at least

    def land(self, table: str) -> None:
        if table not in self.begun:
            return
        order, after = self.begun.pop(table)
        self.numbers[table] += 1
        self.target[table] = after
        self.home.applied(table, after)
        self.home.baseline(table, self.numbers[table], after=after, order=order)
        if self.asked.get(table) == order:
            del self.asked[table]

    def remove(self, table: str) -> None:
        if table == NOTE and table not in self.removed:
            self.home.order("remove", table)
            self.removed.add(table)
            self.paused.discard(table)
            self.asked.pop(table, None)
            self.begun.pop(table, None)

    def reads(self, table: str) -> None:
        readers = consumers_of(self.home.task)
        if self.reader is None:
            readers.add("lake")
            self.reader = max(kept(self.home.task.changes_path(t)) or 0 for t in self.target)
            self.reader = max(self.reader, readers.promised or 0)
        else:
            self.reader = max(self.reader, self.stored - 2)
            readers.acknowledge("lake", self.reader)

    def leaves(self, table: str) -> None:
        if self.reader is not None:
            consumers_of(self.home.task).remove("lake")
            self.reader = None

    def check(self) -> None:
        for table, reached in self.target.items():
            needs = [self.stored] if table in self.removed else [reached]
            needs += [self.begun[table][1]] if table in self.begun else []
            needs += [] if self.reader is None else [self.reader]
            ids = self.home.ids(table)
            for after in (max(min(needs), 0), kept(self.home.task.changes_path(table)) or 0):
                assert [n for n in ids if n > after] == list(range(after + 1, self.stored + 1))

    def purge(self, between: Callable[[], None] | None = None, *, dies: bool = False) -> None:
        """A purge; something else happens once it has looked, or it dies after its first table."""
        promise, trim = Consumers.promise, retention.trim
        todo, done = [between] if between else [], []

        def late(
            readers: Consumers, upto: int | None, version: int | None, *, log: int | None = None
        ) -> bool:
            while todo:
                todo.pop()()
            return promise(readers, upto, version, log=log)

        def once(*args: object, **more: object) -> object:
            if dies and done:
                raise OSError("killed")
            done.append(1)
            return trim(*args, **more)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Consumers, "promise", late)
            patched.setattr(retention, "trim", once)
            try:
                purge_task(self.home.task, now=LATER)
            except OSError:
                assert dies


ACTS = ("store", "apply", "pause", "resync", "begin", "land", "remove", "reads", "leaves")
STEPS = st.one_of(
    st.tuples(st.sampled_from(ACTS), st.sampled_from((ITEM, NOTE))),
    st.tuples(st.just("purge"), st.sampled_from((None, "dies", *ACTS))),
)


@pytest.mark.slow
@examples(3)
@given(st.lists(STEPS, max_size=14))
def test_what_somebody_needs_stays(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str | None]]
) -> None:
    story = Story(tmp_path_factory.mktemp("task"))
    for act, what in steps:
        if act != "purge":
            getattr(story, act)(what)
        elif what in (None, "dies"):
            story.purge(dies=what == "dies")
        else:
            story.purge(lambda w=what: getattr(story, w)(ITEM))  # type: ignore[misc]
        story.check()
    story.purge()
    story.check()


def test_the_orders_that_are_the_hardest(tmp_path: Path) -> None:
    story = Story(tmp_path)
    steps = [
        "resync",
        "begin",
        "store",
        "apply",
        "purge",
        "land",
        "purge",
        "apply",
        "reads",
        "store",
        "purge",
        "leaves",
    ]
    for act in steps:
        story.purge() if act == "purge" else getattr(story, act)(ITEM)
        story.check()
    story.purge(lambda: story.reads(ITEM))
    story.check()
    story.apply(ITEM)
    story.apply(NOTE)
    story.leaves(ITEM)
    story.purge(dies=True)
    story.purge()
    story.check()
    assert story.home.ids() == story.home.ids(NOTE) == []
