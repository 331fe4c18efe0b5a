"""Identities of columns and values of older rows, against a model of pg_attribute that says the truth.

A server runs random transactions of DDL and inserts on one table; capture reads the Relation messages in
order, and sees the catalog as it is then: at once, or many transactions later.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.change import Column, Relation
from tailrace.sources.postgresql import column_identity
from tailrace.sources.postgresql.column_identity import (
    LiveColumn,
    LiveTable,
    Look,
    Moment,
    Timeline,
    XidSnapshot,
)
from tailrace.sources.postgresql.layout import UNKNOWN_COLUMN, UNKNOWN_VALUE, TypeInfo, catalogued, layout
from tailrace.wire.pgmessages import RelationColumn, RelationMessage

from ..examples import examples

pytestmark = pytest.mark.unit

RELID, INT, BIG, TEXT, VARCHAR, NUM = 7, 23, 20, 25, 1043, 1700
FORMS = {INT: "4vi", BIG: "8vd", TEXT: "-1i", VARCHAR: "-1i", NUM: "-1i"}
NAMES = {INT: "int4", BIG: "int8", TEXT: "text", VARCHAR: "varchar", NUM: "numeric"}
TYPES = {(oid, -1): TypeInfo(NAMES[oid], NAMES[oid], -1, form) for oid, form in FORMS.items()}
SAME_FORM = ({TEXT, VARCHAR},)
VOLATILE = "volatile"


def said(value: str | None, oid: int) -> str | None:
    """A number as its type writes it."""
    return value if value is None or oid != NUM else f"{value}.0"


@dataclass(frozen=True)
class Attribute:
    """A column as it truly is; `fill`: what rows older than it have; `file`: the table's when others saw it
    last without the column."""

    column: LiveColumn
    fill: str | None = None
    file: int = 0


@dataclass
class Server:
    """One table, its log and what everybody else sees of it."""

    rng: random.Random
    attributes: list[Attribute] = field(default_factory=list)
    file: int = 1
    lsn: int = 1000
    past: list[LiveTable] = field(default_factory=list)  # the catalog after each transaction
    xid: int = 0

    def show(self, xids: Sequence[int]) -> None:
        end = max(xids) + 1
        running = frozenset(range(min(xids), end)) - set(xids)
        columns = tuple(a.column for a in self.attributes)
        self.past.append(
            LiveTable(
                RELID, "s", "t", "d", columns, file=self.file, at=self.lsn, snapshot=XidSnapshot(end, running)
            )
        )

    def alive(self) -> list[int]:
        return [n for n, a in enumerate(self.attributes) if not a.column.dropped]

    def change(self, n: int, **how: Any) -> None:
        self.attributes[n] = replace(
            self.attributes[n], column=replace(self.attributes[n].column, stamp=self.xid, **how)
        )
        self.lsn += 200

    def rewrite(self) -> None:
        self.file += 1
        self.attributes = [replace(a, column=replace(a.column, missing=None)) for a in self.attributes]
        self.lsn += 200

    def add(self, name: str | None = None) -> None:
        free = [n for n in "abcdef" if n not in {a.column.name for a in self.attributes}]
        oid, fill = self.rng.choice(list(FORMS)), self.rng.choice([None, None, "42", VOLATILE])
        if not free and name is None:
            return
        if fill == VOLATILE:
            self.rewrite()
        missing = None if fill == VOLATILE else said(fill, oid)
        made = LiveColumn(
            len(self.attributes) + 1,
            name or self.rng.choice(free),
            oid,
            -1,
            missing,
            "",
            False,
            self.xid,
            FORMS[oid],
        )
        self.attributes.append(Attribute(made, fill, self.past[-1].file if self.past else 0))
        self.lsn += 200

    def drop(self, n: int) -> None:
        self.change(n, name="", type_oid=0, missing=None, dropped=True)

    def ddl(self) -> None:
        kind = self.rng.choice(["add", "add", "drop", "rename", "swap", "again", "retype", "touch", "full"])
        there = self.alive()
        n = self.rng.choice(there) if there else -1
        if kind == "add" or n < 0:
            self.add()
        elif kind == "drop":
            self.drop(n)
        elif kind == "rename":
            free = [x for x in "abcdef" if x not in {a.column.name for a in self.attributes}]
            if free:
                self.change(n, name=self.rng.choice(free))
        elif kind == "swap":
            other, mine = self.rng.choice(there), self.attributes[n].column.name
            theirs = self.attributes[other].column.name
            if other != n:
                self.change(n, name=theirs)
                self.change(other, name=mine)
        elif kind == "again":
            name = self.attributes[n].column.name
            self.drop(n)
            self.add(name)
        elif kind == "retype":
            self.retype(n)
        elif kind == "touch":
            self.change(n)
        else:
            self.rewrite()

    def retype(self, n: int) -> None:
        was, oid = self.attributes[n].column.type_oid, self.rng.choice(list(FORMS))
        if oid != was and {oid, was} not in SAME_FORM:
            self.rewrite()
        self.change(n, type_oid=oid, physical=FORMS[oid])

    def message(self) -> RelationMessage:
        columns = [self.attributes[n].column for n in self.alive()]
        said = tuple(RelationColumn(0, c.name, c.type_oid, -1) for c in columns)
        return RelationMessage(RELID, "s", "t", "d", said)


@dataclass(frozen=True)
class Announced:
    """A Relation message, when, in which transaction (by number), and the truth of its columns."""

    message: RelationMessage
    moment: Moment
    transaction: int
    truth: tuple[Attribute, ...]


def history(rng: random.Random, *, shuffled: bool, alone: bool) -> tuple[Server, list[Announced]]:
    """Random transactions; `shuffled`: their ids are not in the order of their commits; `alone`: DDL and
    inserts are not in the same transaction."""
    server, told, committed = Server(rng), [], [100]
    server.xid = 100
    for _ in range(rng.randint(1, 3)):
        server.add()
    server.show(committed)
    ids = list(range(101, 101 + rng.randint(2, 14)))
    if shuffled:
        ids = [x for k in range(0, len(ids), 3) for x in rng.sample(ids[k : k + 3], len(ids[k : k + 3]))]
    for number, xid in enumerate(ids, 1):
        inserting = rng.random() < 0.6
        steps = rng.choices(["ddl", "insert"], k=rng.randint(1, 4))
        if alone:
            steps = ["insert"] if inserting else ["ddl"] * rng.randint(1, 3)
        found: list[tuple[RelationMessage, tuple[Attribute, ...], int]] = []
        for ordinal, step in enumerate(steps, 1):
            # A subtransaction has an id of its own.
            server.xid = xid if rng.random() < 0.9 or alone else 1000 + 10 * number + ordinal
            if step == "insert":
                found.append((server.message(), tuple(server.attributes[n] for n in server.alive()), ordinal))
                server.lsn += 60
            else:
                server.ddl()
        commit = server.lsn
        server.lsn += 40
        for message, truth, ordinal in found:
            address = commit.to_bytes(8, "big") + ordinal.to_bytes(8, "big") + bytes(4)
            told.append(Announced(message, Moment(commit, xid, address, server.lsn), number, truth))
        committed.append(xid)
        server.show(committed)
    return server, told


def captured(
    rng: random.Random, server: Server, told: Sequence[Announced], *, lag: bool, look: bool
) -> tuple[list[tuple[Relation, Announced]], Relation]:
    """What capture makes of the messages: each layout with the truth, and the baseline's."""
    now = 0

    def read(relid: int) -> LiveTable:
        return server.past[now]

    def looks(relids: Sequence[int]) -> Mapping[int, Look]:
        return {RELID: server.past[now].look}

    timeline = Timeline(read, looks)
    now = rng.randint(0, len(server.past) - 1) if lag and rng.random() < 0.2 else 0
    live = server.past[now]
    there = tuple(RelationColumn(0, c.name, c.type_oid, -1) for c in live.columns if not c.dropped)
    first = previous = catalogued(RelationMessage(RELID, "s", "t", "d", there), live, TYPES)
    timeline.begin([previous])
    found: list[tuple[Relation, Announced]] = []
    last: tuple[Any, ...] = ()
    for one in told:
        while now < one.transaction or (lag and now + 1 < len(server.past) and rng.random() < 0.5):
            now += 1
            if look and (not lag or rng.random() < 0.3):
                timeline.look()
        if lag and rng.random() < 0.1:
            previous, last = Relation.from_json(previous.to_json()), ()
            timeline = Timeline(read, looks)
            timeline.begin([previous])
        stamps = tuple((a.column.attnum, a.column.stamp) for a in one.truth)
        if (one.message, stamps) == last:
            continue  # nothing was altered: the server announces nothing
        last = (one.message, stamps)
        made = layout(one.message, one.moment, timeline.around(RELID, one.moment), TYPES, previous)
        assert layout(one.message, one.moment, timeline.around(RELID, one.moment), TYPES, made) == made
        if made != previous:
            found.append((made, one))
        previous = made
    return found, first


def identities(found: Sequence[tuple[Relation, Announced]]) -> None:
    """The same number is always the same column; a positive one is its attnum."""
    truth: dict[int, int] = {}
    for made, one in found:
        for column, attribute in zip(made.columns, one.truth, strict=True):
            real = attribute.column.attnum
            assert truth.setdefault(column.attnum, real) == real, (column, attribute)
            assert column.attnum < 0 or column.attnum == real, (column, attribute)


def certain(column: Column) -> bool:
    return column.note not in (UNKNOWN_COLUMN, UNKNOWN_VALUE)


def values(first: Relation, found: Sequence[tuple[Relation, Announced]], told: Sequence[Announced]) -> None:
    """What is said of older rows is so."""
    before = first
    for made, one in found:
        had = {c.attnum for c in before.columns}
        earlier = {a.column.attnum for x in told if x.moment.address < one.moment.address for a in x.truth}
        for column, attribute in zip(made.columns, one.truth, strict=True):
            if column.attnum in had or not certain(column):
                continue
            assert attribute.fill != VOLATILE, (column, attribute)
            assert attribute.column.attnum not in earlier or column.attnum in {
                c.attnum for c in first.columns
            }
            assert column.missing == said(attribute.fill, attribute.column.type_oid), (column, attribute)
        before = made


@pytest.fixture(autouse=True)
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_identity, "EVERY_S", 0.0)


@given(st.integers(0, 1 << 60), st.booleans(), st.booleans())
@examples(200)
def test_nothing_is_said_of_a_column_that_is_not_so(seed: int, shuffled: bool, look: bool) -> None:
    rng = random.Random(seed)
    server, told = history(rng, shuffled=shuffled, alone=rng.random() < 0.3)
    found, first = captured(rng, server, told, lag=True, look=look)
    identities(found)
    values(first, found, told)


@given(st.integers(0, 1 << 60), st.booleans())
@examples(100)
def test_all_is_known_when_capture_keeps_up(seed: int, look: bool) -> None:
    rng = random.Random(seed)
    server, told = history(rng, shuffled=False, alone=True)
    found, first = captured(rng, server, told, lag=False, look=look)
    identities(found)
    values(first, found, told)
    before = first
    for made, one in found:
        assert [c.attnum for c in made.columns] == [a.column.attnum for a in one.truth]
        had = {c.attnum for c in before.columns}
        for column, attribute in zip(made.columns, one.truth, strict=True):
            kept = attribute.file == server.past[one.transaction].file and look
            if column.attnum not in had and (attribute.column.missing is not None or kept):
                assert certain(column), attribute
        before = made
