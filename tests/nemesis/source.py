"""A database in a few dictionaries: tables, transactions, a log of them in pgoutput's bytes, and what every
table looked like after each transaction: the model that everything is held against.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pyarrow as pa

from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.wire.records import RECORDS, Chunk

from ..unit.messages import UNSENT, delete, insert, update

Row = Mapping[int, object]
"""attnum -> value, of every column the table ever had since the row came."""

ID = Column("id", 1, "integer", "int4", "int", key=True)
BIG = Column("big", 2, "text", "text", "string")
N = Column("n", 3, "integer", "int4", "int")
KINDS = {b"I": log.INSERT, b"U": log.UPDATE, b"D": log.DELETE, b"B": log.BEGIN, b"C": log.COMMIT, b"T": log.DDL, b"M": log.MESSAGE}  # fmt: skip


def position_at(lsn: int) -> bytes:
    """The position where the transaction committed at an LSN begins."""
    return lsn.to_bytes(8, "big") + bytes(12)


@dataclass(frozen=True)
class Table:
    """A table as of one moment; without a key, rows are numbered."""

    relation: Relation
    rows: Mapping[int, Row] = field(default_factory=dict)

    @property
    def keyed(self) -> bool:
        return bool(self.relation.key)

    def shown(self, columns: Sequence[Column]) -> list[tuple[object, ...]]:
        """Its rows in some columns, sorted."""
        return sorted((tuple(r.get(c.attnum) for c in columns) for r in self.rows.values()), key=repr)


@dataclass(frozen=True)
class Message:
    """One record of a transaction, and the layout it is to be read with."""

    data: bytes
    relation: Relation | None = None


@dataclass(frozen=True)
class Transaction:
    """A committed transaction: its records (without those of tables that were not published), its words."""

    lsn: int
    messages: tuple[Message, ...]
    words: str


class Source:
    """The database. `history[k]` is every table after the first `k` transactions."""

    def __init__(self, tables: int, keyless: bool) -> None:
        self.now: dict[str, Table] = {}
        for k in range(tables):
            without = keyless and k == tables - 1
            columns = tuple(replace(c, key=c.key and not without) for c in (ID, BIG, N))
            identity = "f" if without or k % 3 == 1 else "d"
            self.now[f"s.t{k}"] = Table(Relation(100 + k, "s", f"t{k}", identity, columns))
        self.published: set[str] = set()
        self.slot: int | None = None
        self.log: list[Transaction] = []
        self.history: list[dict[str, Table]] = [dict(self.now)]
        self._attnum, self._serial = 10, 0

    @property
    def lsn(self) -> int:
        """Of the newest transaction."""
        return 100 * len(self.log)

    def index(self, position: bytes) -> int:
        """How many transactions lie before a position."""
        return min((int.from_bytes(position[:8], "big") + 99) // 100 - 1, len(self.log)) if position else 0

    def transaction(self, seed: int) -> str:
        """Runs a random one; gives what it did, in words."""
        rng = Random(seed)
        words: list[str] = []
        messages: list[Message] = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            name = rng.choice(sorted(self.now))
            said, made = self._change(rng, name)
            words.append(said)
            if name in self.published:
                messages.append(Message(made, self.now[name].relation))
        self._committed(messages, "; ".join(words))
        return "; ".join(words)

    def mark(self, text: str) -> None:
        """Writes a message into the log, as a transaction of its own."""
        content = text.encode()
        data = (
            b"M"
            + struct.pack(">BQ", 1, self.lsn + 100)
            + b"tailrace\0"
            + struct.pack(">I", len(content))
            + content
        )
        self._committed([Message(data)], f"token {text}")

    def _committed(self, messages: list[Message], words: str) -> None:
        self.log.append(Transaction(self.lsn + 100, tuple(messages), words))
        self.history.append(dict(self.now))

    def _change(self, rng: Random, name: str) -> tuple[str, bytes]:
        table = self.now[name]
        relid, columns = table.relation.relid, table.relation.columns
        rows = dict(table.rows)
        kind = rng.choice("IIIIUUUUUKKDDT") if rows else "I"
        kind = "U" if kind == "K" and not table.keyed else kind
        full = table.relation.identity == "f"
        at = rng.choice(sorted(rows)) if rows else 0
        if kind == "T":
            self.now[name] = replace(table, rows={})
            return f"truncate {name}", b"T\0\0\0\1\0" + relid.to_bytes(4, "big")
        if kind == "D":
            old = rows.pop(at)
            self.now[name] = replace(table, rows=rows)
            image = self._values(old, columns)
            key = [v if c.key else None for v, c in zip(image, columns, strict=True)]
            return f"delete {name} {at}", delete(relid, old=image) if full else delete(relid, key=key)
        if kind == "I":
            free = [k for k in range(1, 9) if k not in rows] if table.keyed else [self._next()]
            if not free:
                return self._change(rng, name)
            new = self._fresh(rng, free[0] if table.keyed else rng.randrange(3), columns)
            k = rng.choice(free)
            rows[k] = {**new, 1: k} if table.keyed else new
            self.now[name] = replace(table, rows=rows)
            return f"insert {name} {self._text(rows[k], columns)}", insert(
                relid, self._values(rows[k], columns)
            )
        return self._update(rng, table, rows, at, key=kind == "K")

    def _update(
        self, rng: Random, table: Table, rows: dict[int, Row], at: int, *, key: bool
    ) -> tuple[str, bytes]:
        relid, columns, name = table.relation.relid, table.relation.columns, table.relation.table
        old = rows.pop(at)
        new = dict(old)
        free = [k for k in range(1, 9) if k not in rows and k != at]
        to = at
        if key and free:
            new[1] = to = rng.choice(free)
        touched = [c for c in columns if not c.key and rng.random() < 0.5]
        for c in touched:
            new[c.attnum] = self._value(rng, c)
        rows[to] = new
        self.now[name] = replace(table, rows=rows)
        unsent = {
            c.attnum
            for c in columns
            if c.type == "string" and c not in touched and old.get(c.attnum) is not None
        }
        image = [UNSENT if c.attnum in unsent else new.get(c.attnum) for c in columns]
        words = f"update {name} {at}: {self._text(new, columns)}" + (
            f" but {sorted(unsent)}" if unsent else ""
        )
        if table.relation.identity == "f":
            return words, update(relid, image, old=self._values(old, columns))
        was = [old.get(c.attnum) if c.key else None for c in columns] if to != at else None
        return words, update(relid, image, key=was)

    def ddl(self, seed: int) -> str:
        """Alters a table at random; the stream tells of it with the next change."""
        rng = Random(seed)
        name = rng.choice(sorted(self.now))
        table = self.now[name]
        free = [c for c in table.relation.columns if c.attnum > 3]
        kind = rng.choice(["add", "add default", *(["drop", "rename"] if free else [])])
        columns, rows = list(table.relation.columns), table.rows
        self._attnum += 1
        if kind.startswith("add"):
            missing = str(rng.randrange(90)) if kind == "add default" else None
            columns.append(
                Column(f"c{self._attnum}", self._attnum, "integer", "int4", "int", missing=missing)
            )
            rows = {
                k: {**r, self._attnum: None if missing is None else int(missing)} for k, r in rows.items()
            }
        else:
            one = rng.choice(free)
            place = columns.index(one)
            columns[place : place + 1] = [] if kind == "drop" else [replace(one, name=f"r{self._attnum}")]
        self.now[name] = Table(table.relation.with_columns(columns), rows)
        self._committed([], f"alter {name} {kind}")
        return f"alter {name} {kind}: {', '.join(c.name for c in columns)}"

    def chunk(self, one: Transaction, announced: dict[int, Relation]) -> Chunk:
        """A transaction as capture reads it, whole; takes in which layouts were announced in this session."""
        marked = [m for m in one.messages if m.relation is None]
        messages = list(marked) if marked else [Message(b"B"), *one.messages, Message(b"C")]
        if not one.messages:
            return Chunk(pa.RecordBatch.from_pylist([], schema=RECORDS), [], 0, position_at(one.lsn + 1))
        relations = []
        for k, m in enumerate(messages):
            # A server announces a table again after each ALTER, also where it is what it was before.
            if m.relation is not None and announced.get(m.relation.relid) is not m.relation:
                announced[m.relation.relid] = m.relation
                relations.append((k, m.relation))
        n = len(messages)
        columns = [
            pa.array([KINDS[m.data[:1]] for m in messages], pa.int32()),
            pa.array([one.lsn] * n, pa.int64()),
            pa.array([one.lsn] * n, pa.int64()),
            pa.array([m.relation.relid if m.relation else 0 for m in messages], pa.int64()),
            pa.array([1] * n, pa.int32()),
            pa.array(
                [one.lsn.to_bytes(8, "big") + k.to_bytes(8, "big") + bytes(4) for k in range(n)], pa.binary()
            ),
            pa.array([m.data for m in messages], pa.binary()),
            pa.array([1_700_000_000_000_000 + one.lsn * 10_000] * n, pa.timestamp("us", "UTC")),
        ]
        return Chunk(pa.record_batch(columns, schema=RECORDS), relations, n, position_at(one.lsn + 1))

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _fresh(self, rng: Random, id_: int, columns: Sequence[Column]) -> dict[int, object]:
        return {c.attnum: id_ if c.attnum == 1 else self._value(rng, c) for c in columns}

    def _value(self, rng: Random, column: Column) -> object:
        if rng.random() < 0.15:
            return None
        return rng.choice("abc") * 3 if column.type == "string" else rng.randrange(100)

    def _values(self, row: Row, columns: Sequence[Column]) -> list[object]:
        return [row.get(c.attnum) for c in columns]

    def _text(self, row: Row, columns: Sequence[Column]) -> str:
        return "(" + ", ".join(str(v) for v in self._values(row, columns)) + ")"
