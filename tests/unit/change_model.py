"""Change tables for the tests of questions: literal images, random ones, and the answers, worked out one row
at a time over plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tailrace.engine.change_arrays import ChangeArrays
from tailrace.model import mask

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
HEADERS = ("change_seq", "change_oper", "change_mask", "transaction_id", "timestamp", "column_mask")
COLUMNS = ("id", "name", "qty")
SCHEMA = pa.schema(
    [
        ("header__change_seq", pa.string()), ("header__change_oper", pa.string()),
        ("header__change_mask", pa.binary()), ("header__transaction_id", pa.string()),
        ("header__timestamp", pa.timestamp("us", "UTC")), ("header__column_mask", pa.binary()),
        ("id", pa.int64()), ("name", pa.string()), ("qty", pa.int64()),
    ]
)  # fmt: skip
Row = dict[str, Any]


@dataclass(frozen=True)
class Image:
    """One image: change number, operation, the columns that it carries, transaction (its number when None)."""

    number: int
    oper: str
    values: Row = field(default_factory=dict)
    transaction: int | None = None
    changed: Sequence[str] = ()


def seq(number: int) -> str:
    return f"{number:035d}"


def at(transaction: int) -> datetime:
    return EPOCH + timedelta(seconds=transaction)


def table(images: Sequence[Image]) -> pa.Table:
    """The change table of these images."""
    start = len(HEADERS)
    rows = []
    for one in images:
        whole = one.oper == "T" or set(one.values) == set(COLUMNS)
        transaction = one.number if one.transaction is None else one.transaction
        rows.append(
            {
                "header__change_seq": seq(one.number), "header__change_oper": one.oper,
                "header__change_mask": mask.encode(start + COLUMNS.index(c) for c in one.changed),
                "header__transaction_id": str(transaction), "header__timestamp": at(transaction),
                "header__column_mask": None if whole else mask.encode(start + COLUMNS.index(c) for c in one.values),
                **one.values,
            }
        )  # fmt: skip
    return pa.Table.from_pylist(rows, SCHEMA)


def arrays(images: Sequence[Image]) -> ChangeArrays:
    return ChangeArrays.of(table(images), ["id"])


def base_of(rows: Sequence[Row] | None) -> pa.Table | None:
    schema = pa.schema([SCHEMA.field(n) for n in COLUMNS])
    return None if rows is None else pa.Table.from_pylist(list(rows), schema)


def full(id: int, name: str | None = "a", qty: int | None = 1) -> Row:
    return {"id": id, "name": name, "qty": qty}


# Answers, one row at a time.

UNKNOWN = "(unknown)"
"""A value that no image tells."""
NOTHING: Row = dict.fromkeys(COLUMNS, UNKNOWN)


@dataclass
class Version:
    """A version of a key's row: its values, and the images that began (None: before all) and ended it (None:
    it lives)."""

    row: Row
    begin: Image | None
    end: Image | None = None


@dataclass
class Step:
    """A change: what it met (None: no row that anything tells of) and what it left; whether its key had a row
    before."""

    image: Image
    before: Row | None
    after: Row | None
    old_key: int | None
    life: int
    lived: bool = False


class Model:
    """Does one change after the other.

    `live`: the version of each key's row. `known`: what images told of it last, and the number of its life.
    """

    def __init__(self, images: Sequence[Image], base: Sequence[Row] | None = None) -> None:
        self.whole = base is not None
        self.live: dict[int, Version] = {}
        self.known: dict[int, tuple[Row, int]] = {}
        self.versions: dict[int, list[Version]] = {}
        self.steps: list[Step] = []
        self.met: set[int] = set()
        self._truncated = False
        self._lives = 0
        for row in base or ():
            self._open(row["id"], dict(row), None, self._new_life())
        ordered = sorted(images, key=lambda one: (one.number, one.oper))
        old: Image | None = None
        for k, one in enumerate(ordered):
            following = ordered[k + 1] if k + 1 < len(ordered) else None
            if one.oper == "B":
                paired = following is not None and following.oper == "U" and following.number == one.number
                old = one if paired else None
                if not paired:
                    self._sighted(one)
                continue
            self._do(one, old)
            old = None

    def _new_life(self) -> int:
        self._lives += 1
        return self._lives

    def _open(self, key: int, row: Row, image: Image | None, life: int) -> None:
        self._close(key, image)
        self.live[key] = Version(row, image)
        self.versions.setdefault(key, []).append(self.live[key])
        self.known[key] = (row, life)

    def _close(self, key: int, image: Image | None) -> None:
        self.known.pop(key, None)
        if (version := self.live.pop(key, None)) is not None:
            version.end = image

    def _meet(self, key: int, told: Row) -> None:
        """The first change of a key may say that there was a row."""
        if key not in self.met and not self.whole and not self._truncated:
            self._open(key, NOTHING | told, None, self._new_life())
        self.met.add(key)

    def _sighted(self, image: Image) -> None:
        """A before image without its update tells values of a row, and changes nothing."""
        key = image.values["id"]
        self._meet(key, image.values)
        row, life = self.known.get(key) or (NOTHING, self._new_life())
        self.known[key] = (row | image.values, life)

    def _do(self, one: Image, old: Image | None) -> None:
        if one.oper == "T":
            for key in [*self.live]:
                self._close(key, one)
            self.known.clear()
            self._truncated = True
            self.steps.append(Step(one, None, None, None, 0))
            return
        key = one.values["id"]
        if one.oper == "I":
            self.met.add(key)
            row, life = NOTHING | one.values, self._new_life()
            self._open(key, row, one, life)
            self.steps.append(Step(one, None, row, None, life))
        elif one.oper == "D":
            self._meet(key, one.values)
            row, life = self.known.get(key) or (NOTHING, self._new_life())
            self._close(key, one)
            self.steps.append(Step(one, row | one.values, None, None, life))
        else:
            self._update(one, key, old)

    def _update(self, one: Image, key: int, old: Image | None) -> None:
        was = old.values["id"] if old else key
        self._meet(was, old.values if old else {"id": key})
        self.met.add(key)
        known, life = self.known.get(was) or (None, self._new_life())
        lived = key in self.live
        before = (known or NOTHING) | old.values if old else known
        if was != key:
            self._close(was, old)
        lost = {c: UNKNOWN for c in one.changed if c not in one.values}
        after = (before or NOTHING) | one.values | lost
        self._open(key, after, one, life)
        self.steps.append(Step(one, before, after, was if was != key else None, life, lived))


# Random histories.


@st.composite
def histories(draw: st.DrawFn, *, most: int = 14) -> list[Image]:
    """Random changes of few keys: what a source does, and what it would never do (updates of rows that are
    not there, inserts of rows that are), sparse images, several changes in a transaction."""
    images: list[Image] = []
    transaction = 0
    for number in range(1, draw(st.integers(0, most)) + 1):
        transaction += draw(st.booleans())
        images.extend(_change(draw, number, max(transaction, 1)))
    return images


def _change(draw: st.DrawFn, number: int, transaction: int) -> Iterator[Image]:
    kind = draw(st.sampled_from(["I", "I", "U", "U", "BU", "BU", "D", "move", "move", "T", "B"]))
    key = draw(st.integers(1, 4))

    def image(oper: str, key: int) -> Image:
        values = {"id": key, "name": draw(st.sampled_from([None, "a", "b"])), "qty": draw(st.integers(0, 1))}
        if oper != "I" and draw(st.booleans()):
            values = {c: v for c, v in values.items() if c == "id" or draw(st.booleans())}
        told = COLUMNS if draw(st.integers(0, 3)) == 0 else values
        return Image(number, oper, values, transaction, tuple(c for c in told if draw(st.booleans())))

    if kind == "T":
        yield Image(number, "T", {}, transaction)
    elif kind in ("BU", "move"):
        yield image("B", key if kind == "BU" else draw(st.integers(1, 4)))
        yield image("U", key)
    else:
        yield image(kind, key)


@st.composite
def bases(draw: st.DrawFn) -> list[Row] | None:
    """Rows before the changes, or None."""
    if draw(st.booleans()):
        return None
    keys = draw(st.sets(st.integers(1, 5)))
    return [full(k, draw(st.sampled_from([None, "a"])), draw(st.integers(0, 1))) for k in sorted(keys)]


def shown(row: Row) -> Row:
    """A row of a result with `UNKNOWN` where `_absent` names a column."""
    absent = row.get("_absent") or []
    return {c: UNKNOWN if c in absent else row[c] for c in COLUMNS}
