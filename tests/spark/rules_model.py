"""A plain row-by-row model of applying changes under rules, and random histories full of conflicts.

It knows nothing of the decision table: it does to a dictionary what an operator would do to a table, one
change after the other, and counts the rows it touches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.model import mask, sequence
from tailrace.model.change import Column, Relation
from tailrace.testing.images import Image

LANE = Column("lane", 1, "integer", "int4", "int", key=True)
ID = Column("id", 2, "text", "text", "string", key=True)
A = Column("a", 3, "integer", "int4", "int")
B = Column("b", 4, "text", "text", "string")
RELATION = Relation(1, "s", "t", "d", (LANE, ID, A, B))
KEYS = "pqrs"

Key = tuple[int, str]
Row = dict[str, Any]
Logged = tuple[int, str, str, int | None, int, bool]
"""(number, operation, action, row count, flagged count, whether it has an error)."""


class RefusedError(Exception):
    """A row that the table cannot hold."""


@dataclass
class Model:
    """A table and its key log under a mode and policies (conflict -> policy)."""

    mode: str
    on: Mapping[str, str]
    rows: dict[Key, Row] = field(default_factory=dict)
    dead: dict[Key, str] = field(default_factory=dict)
    archive: list[tuple[Any, ...]] = field(default_factory=list)
    log: list[Logged] = field(default_factory=list)
    flagged: int = 0
    before: Mapping[str, Any] = field(default_factory=dict)
    holds: Callable[[Row, bool], bool] | None = None
    """Whether the table can hold a row; of a part of one (False) whether the types can."""

    def apply(self, change: Change) -> str | None:
        """Does one change; gives `kind policy` when the batch ends before it."""
        number, oper, old, values = change.number, change.oper, change.old, change.values
        seq = sequence.make(2026010100000000, number)
        if self.mode == "archive":
            self.copy(seq, oper, values)
            self.say(number, oper, "\0" if oper == "T" else "I", 0 if oper == "T" else 1)
            return None
        if oper == "T":
            self.rows.clear()
            self.dead.clear()
            self.say(number, oper, "T", None)
            return None
        new = (values["lane"], values["id"])
        kept = dict(self.rows), dict(self.dead)
        try:
            self.judge(oper, values, [*new, *(old or ())])
            self.before = change.before
            kind, action, rows = getattr(self, f"try_{oper.lower()}")(new, old or new, values, seq)
        except RefusedError:
            self.rows, self.dead = kept
            kind, action, rows = "data_error", oper if oper in "ID" else self.code, 0
        policy = self.on[kind] if kind else None
        if policy in ("suspend", "stop"):
            return f"{kind} {policy}"
        if policy == "ignore":
            action, rows = "\0", 0
        flag = policy == "log" or (policy == "apply" and self.mode == "strict") or rows == 2
        self.say(number, oper, action, rows, flag)
        return None

    def judge(self, oper: str, values: Mapping[str, Any], keys: Sequence[Any]) -> None:
        """What a change's own images say decides first."""
        if None in keys:
            raise RefusedError
        if self.holds and oper in "IU":
            whole = oper == "I" or len(values) == len(RELATION.columns)
            if not self.holds({c.name: values.get(c.name) for c in RELATION.columns}, whole):
                raise RefusedError

    def say(self, number: int, oper: str, action: str, rows: int | None, flag: bool = False) -> None:
        self.flagged += flag
        self.log.append((number, oper, action, rows, self.flagged, flag))

    def copy(self, seq: str, oper: str, values: Mapping[str, Any]) -> None:
        if oper != "T":
            names = [c.name for c in RELATION.columns]
            carried = None if oper == "I" or set(names) <= set(values) else " ".join(values)
            self.archive.append((seq, oper, None, carried, *[values.get(n) for n in names]))

    @property
    def code(self) -> str:
        return "M" if self.mode == "strict" else "U"

    def there(self, key: Key) -> bool:
        return key in self.rows and key not in self.dead

    def put(self, key: Key, row: Mapping[str, Any]) -> None:
        made = {c.name: row.get(c.name) for c in RELATION.columns}
        if self.holds and not self.holds(made, True):
            raise RefusedError
        self.rows[key] = made
        self.dead.pop(key, None)

    def take(self, key: Key, seq: str) -> None:
        if self.mode == "soft_delete":
            self.dead[key] = seq
        else:
            del self.rows[key]

    def try_i(self, new: Key, old: Key, values: Mapping[str, Any], seq: str) -> tuple[str | None, str, int]:
        if not self.there(new):
            self.put(new, values)
            return None, "I", 1
        if self.on["insert_exists"] != "apply":
            return "insert_exists", "I", 0
        self.put(new, values)
        return "insert_exists", self.code, 1

    def try_d(self, new: Key, old: Key, values: Mapping[str, Any], seq: str) -> tuple[str | None, str, int]:
        if self.there(new):
            self.take(new, seq)
            return None, "D", 1
        silent = self.on["delete_missing"] == "apply" and self.mode != "strict"
        return "delete_missing", "\0" if silent else "D", 0

    def try_u(self, new: Key, old: Key, values: Mapping[str, Any], seq: str) -> tuple[str | None, str, int]:
        if new != old:
            return self.move(new, old, values, seq)
        if self.there(new):
            self.put(new, self.rows[new] | values)
            return None, self.code, 1
        if self.on["update_missing"] != "apply":
            return "update_missing", self.code, 0
        # Of what the image lacks a marked row has all; else the image before is all that is known.
        self.put(new, {**self.before, **self.rows.get(new, {}), **values})
        return "update_missing", "I", 1

    def move(self, new: Key, old: Key, values: Mapping[str, Any], seq: str) -> tuple[str | None, str, int]:
        if not self.there(old):
            if self.on["update_missing"] != "apply":
                return "update_missing", self.code, 0
            if not self.there(new):
                self.put(new, {**self.before, **values})
                return "update_missing", "I", 1
            if self.on["insert_exists"] == "apply":
                self.put(new, {**self.before, **values})
            return "insert_exists", self.code, int(self.on["insert_exists"] == "apply")
        met = self.there(new)
        if met and self.on["insert_exists"] != "apply":
            return "insert_exists", self.code, 0
        row = self.rows[old] | values
        self.take(old, seq)
        self.put(new, row)
        return ("insert_exists", self.code, 2) if met else (None, self.code, 1)

    def lose(self, key: str) -> None:
        """Somebody else takes rows away."""
        for at in [k for k in self.rows if k[1] == key]:
            del self.rows[at]
            self.dead.pop(at, None)

    def gain(self, lanes: int, key: str) -> list[Row]:
        """Somebody else writes rows where none are; gives them."""
        made = [{"lane": n, "id": key, "a": -n, "b": "v0"} for n in range(lanes) if (n, key) not in self.rows]
        self.rows |= {(r["lane"], key): r for r in made}
        return made

    def state(self) -> list[tuple[Any, ...]]:
        if self.mode == "archive":
            return sorted(self.archive)
        mark = self.mode == "soft_delete"
        made = [(*r.values(), *([self.dead.get(k)] if mark else [])) for k, r in self.rows.items()]
        return sorted(made, key=repr)


@dataclass(frozen=True)
class Change:
    """A change as the model takes it, and its images. `before`: what its B row has besides the key."""

    number: int
    oper: str
    old: Key | None
    values: Row
    before: Row = field(default_factory=dict)

    @property
    def images(self) -> list[Image]:
        made: list[Image] = [(self.number, self.oper, self.values)]
        if self.old is not None:
            made.insert(0, (self.number, "B", {"lane": self.old[0], "id": self.old[1], **self.before}))
        return made


def history(seed: int, lanes: int, steps: int, *, truncate: bool = False) -> list[Change]:
    """Random changes: operations on keys that may or may not have a row. Lanes do not meet each other."""
    dice, made, number = random.Random(seed), [], 0
    for step in range(steps):
        for lane in range(lanes):
            number += 1
            key, other = ((lane, k) for k in dice.sample(KEYS, 2))
            oper = dice.choice("IIUUUDKKK")
            values = {"lane": key[0], "id": key[1], "a": number, "b": f"v{number}"}
            old = None
            if oper == "D":
                values = {"lane": key[0], "id": key[1]}
            elif oper == "U" and dice.random() < 0.4:
                del values["b"]
                old = key if dice.random() < 0.5 else None  # B rows whose key stays
            elif oper == "K":
                oper, old = "U", other
                if dice.random() < 0.4:
                    del values["b"]
            # What the source had, but not always the target.
            before = {"b": f"v{number + 500}"} if old and dice.random() < 0.6 else {}
            made.append(Change(number, oper, old, values, before))
        if truncate and step == steps // 2:
            number += 1
            made.append(Change(number, "T", None, {}))
    return made


def spoiled(changes: list[Change]) -> list[Change]:
    """The same with values that not every table holds, see `held`; some columns become absent."""
    made = []
    for c in changes:
        values = dict(c.values)
        if "a" in values and c.number % 9 == 4:
            values["a"] = 170_000
        if "b" in values:
            values["b"] = (
                None if c.number % 7 == 3 else f"v{c.number}" + "0" * (7 if c.number % 8 == 5 else 0)
            )
        made.append(replace(c, values=values))
    return made


def nulled(changes: list[Change]) -> list[Change]:
    """The same with a NULL in some keys, of updates in the old one at times."""
    made = []
    for c in changes:
        old, values = c.old, c.values
        if c.number % 61 == 7 and old is not None:
            old = (old[0], None)  # type: ignore[assignment]
        elif c.number % 61 == 7 and values:
            values = values | {"id": None}
        made.append(replace(c, old=old, values=values))
    return made


def held(row: Row, whole: bool) -> bool:
    """What `spoiled` is about: smallint, varchar(8), NOT NULL, and a CHECK over both columns."""
    a, b = row["a"], row["b"]
    fits = (a is None or a < 1 << 15) and (b is None or len(b) <= 8)
    return fits and (not whole or (b is not None and (a + int(b[1:])) % 5 != 0))


CHECK = "(a + cast(substr(b, 2) as int)) % 5 <> 0"


COLUMNS = {
    "soft_delete": ["_deleted"],
    "archive": ["header__change_seq", "header__change_oper", "header__timestamp", "header__column_mask"],
}
"""What modes add to a target's columns."""


def columns_of(mode: str) -> list[str]:
    """The columns that a target has, in their order."""
    more, own = COLUMNS.get(mode, []), [c.name for c in RELATION.columns]
    return [*more, *own] if mode == "archive" else [*own, *more]


def told(rows: Iterable[tuple[Any, ...]], mode: str) -> list[tuple[Any, ...]]:
    """A target's rows as the model has them, of masks the columns that they name."""
    names, made = columns_of(mode), [list(r) for r in rows]
    at = names.index("header__column_mask") if mode == "archive" else -1
    for row in made if at >= 0 else []:
        row[at] = None if row[at] is None else " ".join(names[n] for n in mask.decode(bytes(row[at])))
    return sorted(map(tuple, made), key=repr)


def logged(rows: list[Any]) -> list[Logged]:
    """Rows of a key log as the model tells them, in their order."""
    return [
        (
            r["change_row_counter"], r["change_row_type"], r["action_taken"], r["result_row_count"],
            r["flagged_count"], r["result_error"] is not None,
        )
        for r in sorted(rows, key=lambda r: r["keylog_sort"])
    ]  # fmt: skip
