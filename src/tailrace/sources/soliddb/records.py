"""Converts rows of SYS_LOG to log records of LOG, by column. Source: spec/soliddb.md §2-§5."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import FormatError
from ...model.change import Relation
from ...wire import pgoutput_write, soliddb
from ...wire.records import COMMIT, DDL, DELETE, FLAG_DATA, INSERT, RECORDS, TRX_START, UPDATE, Chunk
from ...wire.soliddb_address import TRUNCATE, behind, ddl, name_parts, short
from .catalog import fields

Ints = npt.NDArray[np.int64]
BEFORE, SQL, EMPTY = 5, 6, 0
CAPTURE_OFF = 0x40
ALTERS = (22, 45, 47)
"""LOGRECIDs after which a table's columns may have changed: alter, create, rename."""
_LAYOUT = "check source.options.row_layout, and whether the table's layout has changed since this record"
_DROPPED = "the table was dropped before this change was read, so its layout is unknown"
_LEAVE_OUT = "`tailrace remove TASK {}` continues without the table's changes since its baseline"
PUBLISHED = (EMPTY, INSERT, UPDATE, DELETE, BEFORE, SQL, TRX_START, COMMIT, DDL)


class SysLogBuilder:
    """Converts rows to chunks, and keeps the layouts and the open transaction between calls."""

    def __init__(self, layout: Callable[[int], Relation], style: soliddb.Style, policy: str) -> None:
        self.layout, self.style, self.policy = layout, style, policy
        self.tables: dict[int, str] = {}
        self.known: dict[int, Relation] = {}
        self.open: tuple[int, bool] | None = None
        """The open transaction: its time (microseconds), and whether it has CAPTURE_OFF."""
        self.skipped: Counter[int] = Counter()

    def build(self, rows: Sequence[Sequence[Any]]) -> Chunk:
        """Returns one chunk of these rows."""
        return _Batch(self, rows).chunk()


class _Batch:
    def __init__(self, state: SysLogBuilder, rows: Sequence[Sequence[Any]]) -> None:
        self.state = state
        recid, trx, stmt, relid, flags, address, data = zip(*rows, strict=True)
        self.recid, self.trx, self.stmt = _ints(recid), _ints(trx), _ints(stmt)
        self.relid, self.flags = _ints(relid), _ints(flags)
        self.address = [bytes(a) for a in address]
        self.data = pa.array([None if d is None else bytes(d) for d in data], pa.binary())
        now = time.time_ns() // 1000
        held_time, held_off = state.open or (now, False)
        starts = np.flatnonzero(self.recid == TRX_START)
        self.of = np.cumsum(self.recid == TRX_START)  # 0: the one carried over
        self.times = np.concatenate([[held_time], np.full(len(starts), max(now, held_time))])
        self.off = np.concatenate([[held_off], self.flags[starts] & CAPTURE_OFF != 0])
        ended = bool(self.recid[-1] == COMMIT)
        state.open = None if ended else (int(self.times[-1]), bool(self.off[-1]))
        state.skipped.update(int(k) for k in self.recid[~np.isin(self.recid, PUBLISHED)])
        self.relations: list[tuple[int, Relation]] = []  # row -> layout valid from it on
        self.made = pa.nulls(len(rows), pa.binary())
        self.truncates = np.zeros(len(rows), np.bool_)
        self.whole = np.isin(self.of, self.of[self.recid == COMMIT]) & (self.of > 0)
        self.joined = np.zeros(len(rows), np.bool_)  # first halves of key changes

    def chunk(self) -> Chunk:
        wanted = self._wanted()
        layouts = self._layouts(wanted)
        kept = self._changes(wanted, layouts) | self.truncates
        marks = np.isin(self.recid, (TRX_START, COMMIT))
        busy = np.isin(self.of, self.of[kept])
        keep = kept | (marks & (busy | ~self.whole))  # empty transactions are omitted
        commits = np.flatnonzero(self.recid == COMMIT)
        before = np.concatenate([[0], np.cumsum(keep)])
        position = None if not len(commits) else self._behind(int(commits[-1]))
        complete = 0 if position is None else int(before[commits[-1] + 1])
        relations = [(int(before[row]), r) for row, r in self.relations]
        return Chunk(self._records(np.flatnonzero(keep)), relations, complete, position)

    def _behind(self, row: int) -> bytes:
        return behind(short(self.address[row]))

    def _wanted(self) -> npt.NDArray[np.bool_]:
        rows = np.isin(self.recid, (INSERT, UPDATE, DELETE, BEFORE)) & np.isin(
            self.relid, list(self.state.tables)
        )
        off = self.off[self.of]
        if self.state.policy == "skip-all":
            return np.asarray(rows & ~off, np.bool_)
        if self.state.policy == "skip-deletes":
            return np.asarray(rows & ~(off & (self.recid == DELETE) & ~self._inserting()), np.bool_)
        return np.asarray(rows, np.bool_)

    def _inserting(self) -> npt.NDArray[np.bool_]:
        """Returns which rows belong to a statement that inserts into their table; its deletes are key
        changes."""
        statement = np.stack([self.of, self.stmt, self.relid])
        _, which = np.unique(statement, axis=1, return_inverse=True)
        which = which.reshape(-1)
        return np.asarray(np.isin(which, which[self.recid == INSERT]), np.bool_)

    def _layouts(self, wanted: npt.NDArray[np.bool_]) -> dict[int, list[tuple[int, Relation]]]:
        """Returns the valid layouts per table, each with its first row. After DDL of a table, the server is
        queried again."""
        state = self.state
        found: dict[int, list[tuple[int, Relation]]] = {}
        for relid in np.unique(self.relid[wanted]).tolist():
            if relid not in state.known:
                first = int(np.flatnonzero(wanted & (self.relid == relid))[0])
                layout = state.layout(relid)
                if not layout.columns:
                    self._refuse(first, _DROPPED, _LEAVE_OUT.format(state.tables[relid]))
                state.known[relid] = layout
                self.relations.append((first, layout))
            found[relid] = [(0, state.known[relid])]
        for row in np.flatnonzero(self.recid == DDL).tolist():
            relid, kind = self._ddl(row)
            if relid is None:
                continue
            if kind == TRUNCATE:
                self.truncates[row] = not (self.off[self.of[row]] and state.policy == "skip-all")
                self.relid[row] = relid
            elif kind in ALTERS:
                newest = state.layout(relid)
                if newest.columns:  # none: dropped since
                    state.known[relid] = newest
                    found.setdefault(relid, []).append((row, newest))
                    self.relations.append((row, newest))
        self.relations.sort(key=lambda one: one[0])
        return found

    def _ddl(self, row: int) -> tuple[int | None, int]:
        """Returns the (wanted) table of a DDL record, and the kind of statement."""
        kind, info = ddl(self.data[row].as_py() or b"")
        relid = int(self.relid[row])
        if relid in self.state.tables:
            return relid, kind
        name = name_parts(info)[-2:]
        for known, table in self.state.tables.items():
            if table.split(".")[-len(name) :] == name:
                return known, kind
        return None, kind

    def _changes(
        self, wanted: npt.NDArray[np.bool_], layouts: dict[int, list[tuple[int, Relation]]]
    ) -> npt.NDArray[np.bool_]:
        """Encodes the images of rows into `made`; returns the rows that become records (not
        before images)."""
        rows = np.flatnonzero(wanted)
        kinds = self.recid[rows]
        follows = np.zeros(len(rows), np.bool_)
        if len(rows) > 1:
            same = (
                (np.diff(self.of[rows]) == 0)
                & (np.diff(self.stmt[rows]) == 0)
                & (np.diff(self.relid[rows]) == 0)
            )
            follows[1:] = same & (kinds[:-1] == BEFORE) & (kinds[1:] == UPDATE)
        lone = (kinds == BEFORE) & ~np.append(follows[1:], False)
        if lone.any():
            self._refuse(int(rows[np.argmax(lone)]), "a before image without its update")
        old = np.full(len(self.recid), -1, np.int64)
        old[rows[follows]] = rows[np.flatnonzero(follows) - 1]
        parts, order = [], []
        for some in layouts.values():
            ends = [start for start, _ in some[1:]] + [len(self.recid)]
            for (start, relation), end in zip(some, ends, strict=True):
                mine = rows[(rows >= start) & (rows < end) & (self.relid[rows] == relation.relid)]
                if len(mine):
                    for which, messages in self._encoded(relation, mine, old):
                        parts.append(messages)
                        order.append(which)
        if parts:
            place = np.full(len(self.recid), -1, np.int64)
            place[np.concatenate(order)] = np.arange(sum(map(len, order)))
            self.made = pa.concat_arrays(parts).take(pa.array(place, mask=place < 0))
        kept: npt.NDArray[np.bool_] = wanted.copy()
        kept[rows[kinds == BEFORE]] = False
        return np.asarray(kept & ~self.joined, np.bool_)

    def _encoded(self, relation: Relation, mine: Ints, old: Ints) -> list[tuple[Ints, pa.Array]]:
        """Returns (rows, messages) of one layout's inserts, deletes, updates with and without
        before image."""
        found = soliddb.decode(self.data.take(pa.array(mine)), fields(relation), self.state.style)
        if found.why.null_count < len(mine):
            bad = int(np.flatnonzero(pc.is_valid(found.why).to_numpy(zero_copy_only=False))[0])
            self._refuse(int(mine[bad]), found.why[bad].as_py())
        texts = [pgoutput_write.text_of(c) for c in found.columns]
        place = np.full(len(self.recid), -1, np.int64)
        place[mine] = np.arange(len(mine))
        new = self._key_changes(mine, [t for t, c in zip(texts, relation.columns, strict=True) if c.key], old)
        kinds, paired = np.where(self.joined[mine], -1, self.recid[mine]), old[mine] >= 0
        lone = (kinds == UPDATE) & ~paired
        if not relation.key and lone.any():
            what = (
                "an update without its before image, and the table has no key: its row cannot be identified"
            )
            self._refuse(int(mine[np.argmax(lone)]), what, "declare its key (`source.options.keys`)")
        made = []
        for letter, chosen in (
            ("I", kinds == INSERT), ("D", kinds == DELETE),
            ("U", (kinds == UPDATE) & paired), ("U", lone),
        ):  # fmt: skip
            which = mine[chosen]
            if not len(which):
                continue
            now = [t.take(pa.array(place[new[chosen]])) for t in texts]
            then = [t.take(pa.array(place[old[which]])) for t in texts] if old[which[0]] >= 0 else None
            sides = (None, now) if letter == "D" else (now, then)
            made.append((which, pgoutput_write.messages(letter, relation.relid, *sides)))
        return made

    def _key_changes(self, mine: Ints, key: Sequence[pa.Array], old: Ints) -> Ints:
        """Returns the rows of the new images of `mine`.

        Inserts and deletes of one statement that strictly alternate with different keys are key changes.
        Their second row becomes the update, and `old` the row of its old image. A transaction that continues
        in another chunk is left unchanged, because its pairs are unknown.
        """
        new: Ints = mine.copy()
        at = np.flatnonzero(np.isin(self.recid[mine], (INSERT, DELETE)) & self.whole[mine])
        if not key or len(at) < 2:
            return new
        rows = mine[at]
        _, group = np.unique(np.stack([self.of[rows], self.stmt[rows]]), axis=1, return_inverse=True)
        order = np.argsort(group.reshape(-1), kind="stable")
        at, rows, group = at[order], rows[order], group.reshape(-1)[order]
        first = np.flatnonzero(np.r_[True, np.diff(group) != 0])
        size = np.diff(np.r_[first, len(group)])
        repeats = np.r_[False, (np.diff(group) == 0) & (np.diff(self.recid[rows]) == 0)]
        strict = (size % 2 == 0) & (np.add.reduceat(repeats.astype(np.int64), first) == 0)
        second = np.flatnonzero(
            np.repeat(strict, size) & ((np.arange(len(group)) - np.repeat(first, size)) % 2 == 1)
        )
        differ = np.zeros(len(second), np.bool_)
        for text in key:
            left, right = text.take(pa.array(at[second - 1])), text.take(pa.array(at[second]))
            differ |= ~pc.fill_null(pc.equal(left, right), False).to_numpy(zero_copy_only=False)
        second = second[differ]
        inserted = np.where(self.recid[rows[second]] == INSERT, rows[second], rows[second - 1])
        old[rows[second]] = rows[second] + rows[second - 1] - inserted
        new[at[second]] = inserted
        self.recid[rows[second]] = UPDATE
        self.joined[rows[second - 1]] = True
        return new

    def _refuse(self, row: int, what: str, hint: str = _LAYOUT) -> None:
        table = self.state.tables.get(int(self.relid[row]), str(self.relid[row]))
        where = f"table {table}, LOGADDR {self.address[row].hex().upper()}"
        raise FormatError(what, where=where, hint=hint)

    def _records(self, keep: Ints) -> pa.RecordBatch:
        take = pa.array(keep)
        times = pa.array(self.times[self.of[keep]], pa.int64()).cast(pa.timestamp("us", "UTC"))
        arrays = [
            pa.array(self.recid[keep], pa.int32()), pa.array(self.trx[keep]), pa.array(self.stmt[keep]),
            pa.array(np.maximum(self.relid[keep], 0)), pa.array(np.full(len(keep), FLAG_DATA, np.int32)),
            pa.array([short(self.address[i]) for i in keep.tolist()], pa.binary()),
            pc.fill_null(self.made.take(take), b""), times,
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def _ints(values: Sequence[int | None]) -> Ints:
    return np.asarray([0 if v is None else v for v in values], np.int64)
