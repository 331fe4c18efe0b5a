"""Orders the images of each key: the versions of a row that they start and end, and the origin of their
values.

All queries use it. Rows before the changes are at the start of their key's images, with operation
`EARLIER`. They are the base's rows. Without a base, they are known earlier rows (`ChangeArrays.earlier`), or
what the first image of a key contains. A *life* is the images of one row from its insert to its delete,
through every change of its key. A column that an image does not have keeps the value of the previous image in
the same life. If its change mask marks it as changed, the value is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UnsupportedError
from .change_arrays import B, Bools, ChangeArrays, Codes, D, I, Ints, U
from .chunked_take import ChunkedTake
from .columns import one
from .keys import Keys
from .lazy import lazy

EARLIER = ord("L")
"""Operation of an image before the changes, as stored in arrays."""
_GROUP_BITS = 16
"""The number of low bits of a key number that do not select its group. NumPy sorts 16-bit numbers by
counting, many times faster than by comparison, and a group needs little memory."""
KEY_HINT = "name columns that identify a row, in Python: `tailrace.read(CHANGE_TABLE, key=[...])`"
"""Hint for a keyless table."""
ABSENT = "_absent"
"""Result column: names of the columns with unknown values (list of strings; NULL: none)."""
ABSENT_HEADER = "header__absent"
"""The internal name of `ABSENT`, which no data column has."""


@dataclass(frozen=True)
class KeyTimelines:
    """Images ordered by key and by position in the change table; truncates are left out.

    Attributes:
        changes: the changes.
        values: the data columns: earlier rows, then those of the changes.
        row: the index of each image in `values`.
        at: the row of `changes` of each image; -1 for earlier rows.
        oper: the operation, as its letter's code.
        key: the number of each image's key.
        bare: images of which only the key is known.
        whole: a base was given, so a key that is not in it had no row.
        moves: whether an update changes its key.
    """

    changes: ChangeArrays
    values: pa.Table
    row: Ints
    at: Ints
    oper: Codes
    key: Ints
    bare: Bools
    whole: bool
    moves: bool

    @staticmethod
    def of(changes: ChangeArrays, base: pa.Table | None = None) -> KeyTimelines:
        """Orders the images of a table with a key; `base` has its rows before the changes.

        Raises:
            UnsupportedError: the table has no key, so images cannot be assigned to rows.
        """
        return KeyTimelines._ordered(changes, base, None)[0]

    @staticmethod
    def parts(changes: ChangeArrays, base: pa.Table | None, pool: Executor) -> list[KeyTimelines]:
        """Returns the images in small parts, for queries that treat each key separately; one part if keys
        change."""
        return KeyTimelines._ordered(changes, base, pool)

    @staticmethod
    def _ordered(changes: ChangeArrays, base: pa.Table | None, pool: Executor | None) -> list[KeyTimelines]:
        if not changes.key:
            raise UnsupportedError(
                "the table has no key, so images cannot be assigned to rows",
                hint=f"use pairs, net, changes or transactions, which need no key; or {KEY_HINT}",
            )
        data = changes.rows.select(list(changes.columns))
        known = changes.earlier if base is None else base
        before = 0 if known is None else known.num_rows
        if known is not None:
            have = [n for n in changes.columns if n in known.column_names]
            both = [known.select(have), data]
            data = pa.concat_tables(both, promote_options="permissive").select(list(changes.columns))
        numbers = Keys([one(data[n]) for n in changes.key]).place
        oper = np.concatenate([np.full(before, EARLIER, np.uint8), changes.oper]) if before else changes.oper
        two = before + changes.befores
        moves = bool((numbers[two] != numbers[two + 1]).any())

        def made(some: Sequence[Ints]) -> KeyTimelines:
            row = np.concatenate([sort_group(numbers, group) for group in some])
            lines = KeyTimelines(
                changes=changes, values=data, row=row, at=np.maximum(row - before, -1), oper=oper[row],
                key=numbers[row], bare=np.zeros(len(row), np.bool_), whole=base is not None, moves=moves,
            )  # fmt: skip
            return lines if lines.whole else lines._with_earlier_rows(earlier)

        earlier = None
        left_out = before + changes.truncates
        if base is None and before:
            earlier = np.full(int(numbers.max()) + 1, -1)
            earlier[numbers[:before]] = np.arange(before)
            left_out = np.concatenate([np.arange(before), left_out])
        found = group_by_key(numbers, left_out)
        if pool is None or moves:
            return [made(found)]
        return list(pool.map(made, [[group] for group in found]))

    def __len__(self) -> int:
        return len(self.row)

    def _with_earlier_rows(self, earlier: Ints | None) -> KeyTimelines:
        """Adds images of rows that existed before the changes.

        These are rows of keys whose first image is that of an update or delete without an earlier truncate.
        `earlier` is the index in `values` of each key's earlier row; -1 if unknown.
        """
        met = self.first & (self.oper != I) & ~self.came & (self.epoch == 0)
        place = np.flatnonzero(met)
        if not len(place):
            return self
        row, bare = self.row[place], self.oper[place] == U
        if earlier is not None:
            known = earlier[self.key[place]]
            takes = (known >= 0) & (bare | ~self.changes.whole[self.at[place]])
            row, bare = np.where(takes, known, row), bare & ~takes
        return replace(
            self,
            row=np.insert(self.row, place, row),
            at=np.insert(self.at, place, -1),
            oper=np.insert(self.oper, place, EARLIER),
            key=np.insert(self.key, place, self.key[place]),
            bare=np.insert(self.bare, place, bare),
        )

    @lazy
    def first(self) -> Bools:
        """Whether an image is the first of its key."""
        found = np.ones(len(self), np.bool_)
        found[1:] = self.key[1:] != self.key[:-1]
        return found

    @lazy
    def epoch(self) -> Ints:
        """The number of truncates before each image."""
        truncates = self.changes.truncates
        return np.searchsorted(truncates, self.at) if len(truncates) else np.zeros(len(self), np.int64)

    @lazy
    def partner(self) -> Ints:
        """The before image of each update, and the update of each before image; -1 for others."""
        found = np.full(len(self), -1, np.int64)
        if self.moves:
            place = np.full(len(self.changes), -1, np.int64)
            real = np.flatnonzero(self.at >= 0)
            place[self.at[real]] = real
            b, u = place[self.changes.befores], place[self.changes.befores + 1]
        else:  # both belong to one key, and are adjacent
            b = np.flatnonzero((self.oper[:-1] == B) & (self.oper[1:] == U))
            b = b[self.at[b] + 1 == self.at[b + 1]]
            b = b[self.changes.continues[self.at[b + 1]]]
            u = b + 1
        found[b], found[u] = u, b
        return found

    @lazy
    def _moved(self) -> Bools:
        """Images of updates that change the key."""
        if not self.moves:
            return np.zeros(len(self), np.bool_)
        other = self.partner >= 0
        other[other] = self.key[self.partner[other]] != self.key[other]
        return other

    @property
    def came(self) -> Bools:
        """Updates that moved a row to their key."""
        found: Bools = self._moved & (self.oper == U)
        return found

    @property
    def left(self) -> Bools:
        """Before images of rows that were moved away from their key."""
        found: Bools = self._moved & (self.oper == B)
        return found

    @lazy
    def opens(self) -> Bools:
        """Images that start a version of their key's row."""
        found: Bools = (self.oper == I) | (self.oper == U) | (self.oper == EARLIER)
        return found

    @lazy
    def closes(self) -> Bools:
        """Images after which their key has no row."""
        found: Bools = (self.oper == D) | self.left
        return found

    @lazy
    def starts(self) -> Bools:
        """Images that share no values with earlier images of their key."""
        found: Bools = self.first | (self.oper == I) | self.came
        found[1:] |= self.closes[:-1] | (self.epoch[1:] != self.epoch[:-1])
        return found

    @lazy
    def life(self) -> Ints:
        """The number of each image's life."""
        stretch = np.cumsum(self.starts) - 1
        root = np.arange(stretch[-1] + 1 if len(self) else 0)
        came = np.flatnonzero(self.came)
        root[stretch[came]] = stretch[self.partner[came]]
        while True:  # the number of passes is logarithmic in the longest chain of keys
            further = root[root]
            if np.array_equal(further, root):
                return np.asarray(root[stretch], np.int64)
            root = further

    @lazy
    def _by_life(self) -> tuple[Ints, Ints]:
        """The images ordered by life, and for each of them the first image of its life."""
        order = np.lexsort((self.at, self.life)) if self._moved.any() else np.arange(len(self))
        new = np.ones(len(self), np.bool_)
        new[1:] = np.diff(self.life[order]) != 0
        return order, np.maximum.accumulate(np.where(new, np.arange(len(self)), 0))

    def previous(self, images: Ints) -> Ints:
        """Returns the previous image in each one's life; -1 for the first."""
        if not self._moved.any():
            return np.where(self.starts[images], -1, images - 1)
        return self._previous[images]

    @lazy
    def _previous(self) -> Ints:
        """The previous image of every image, if a row has had several keys."""
        order, first = self._by_life
        found = np.full(len(self), -1, np.int64)
        found[order[1:]] = np.where(first[1:] == np.arange(1, len(self)), -1, order[:-1])
        return found

    def source(self, column: str) -> Ints:
        """Returns the index in `values` of each image's value of a column; -1 if unknown."""
        carries = self._carries(column)
        if carries is None:
            return self.row
        if self.changes.sparse or self._lacks is not None:
            return self._filled(carries, self.lost(column))
        return self._complete_source

    def lost(self, column: str) -> Bools | None:
        """Returns which images belong to updates that changed a column without including it; None if none."""
        loses = self.changes.loses(column)
        return None if loses is None else loses[self.at.clip(0)] & (self.at >= 0)

    @lazy
    def _complete_source(self) -> Ints:
        """`source` of columns outside the key if all images are complete."""
        return self._filled(~self.bare)

    def _filled(self, carries: Bools, lost: Bools | None = None) -> Ints:
        order, first = self._by_life
        tells = carries if lost is None else carries | lost
        newest = np.maximum.accumulate(np.where(tells[order], np.arange(len(self)), -1))
        known = (newest >= first) & carries[order[newest]]
        found = np.full(len(self), -1, np.int64)
        found[order] = np.where(known, self.row[order[newest]], -1)
        return found

    def _carries(self, column: str) -> Bools | None:
        """Returns which images contain a column; None if all do."""
        carries = self.changes.carries(column)
        unknown = self.bare if column not in self.changes.key else None
        if carries is None and self._lacks is None:
            return None if unknown is None or not unknown.any() else ~unknown
        before = self.values.num_rows - len(self.changes)
        first = np.ones(before, np.bool_) if self._lacks is None else ~contains_name(self._lacks, column)
        own = np.ones(len(self.changes), np.bool_) if carries is None else carries
        there = np.concatenate([first, own])[self.row]
        return there if unknown is None else there & ~unknown

    @lazy
    def _lacks(self) -> pa.Array | None:
        """The unknown columns of earlier rows; None if all are known."""
        earlier = None if self.whole else self.changes.earlier
        if earlier is None or ABSENT_HEADER not in earlier.column_names:
            return None
        lists = one(earlier[ABSENT_HEADER])
        return lists if lists.null_count < len(lists) else None

    @lazy
    def versions(self) -> tuple[Ints, Ints]:
        """The images that start a version, and the row of the change that ends it; -1 for current versions.

        The end is the next change of the key, or a truncate.
        """
        events = np.flatnonzero(self.opens | self.closes)
        end = np.full(len(events), -1, np.int64)
        same = self.key[events[1:]] == self.key[events[:-1]]
        end[:-1][same] = self.at[events[1:][same]]
        opens = self.opens[events]
        events, end = events[opens], end[opens]
        if not len(self.changes.truncates):
            return events, end
        truncates = np.append(self.changes.truncates, len(self.changes))
        cut = truncates[np.searchsorted(truncates, self.at[events], side="right")]
        cut = np.where(cut == len(self.changes), -1, cut)
        earlier = (cut >= 0) & ((end < 0) | (cut < end))
        return events, np.where(earlier, cut, end)

    def before(self, images: Ints) -> Ints:
        """Returns the image of the row before each change; -1 if no row is known. For a delete, it is its own
        image."""
        oper = self.oper[images]
        found = self.previous(images)
        if len(self.changes.befores):
            partner = np.where(oper == U, self.partner[images], -1)
            found = np.where(partner >= 0, partner, found)
        return np.where(oper == I, -1, np.where(oper == D, images, found))

    def take(self, images: Ints, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows of images with absent columns filled in, and `ABSENT_HEADER`; NULLs for -1."""
        names = list(columns or self.changes.columns)
        arrays, unknown = [], np.zeros((len(images), len(names)), np.bool_)
        shown = images >= 0
        found: tuple[Ints, ChunkedTake] | None = None
        for k, name in enumerate(names):
            source = self.source(name) if len(self) else images
            if found is None or found[0] is not source:
                found = source, ChunkedTake(np.where(shown, source[images], -1) if len(self) else images)
            unknown[:, k] = shown & (found[1].places < 0)
            arrays.append(found[1].of(self.values[name]))
        return pa.Table.from_arrays([*arrays, list_names(unknown, names)], [*names, ABSENT_HEADER])


def list_names(flags: Bools, names: Sequence[str], nulls: Bools | None = None) -> pa.Array:
    """Returns for each row the list of names whose flags are set.

    Lists are NULL where `nulls` is set; by default, where no flag is set.

    >>> list_names(np.array([[True, True], [False, False]]), ["a", "b"]).to_pylist()
    [['a', 'b'], None]
    >>> list_names(np.array([[True], [False]]), ["a"], np.array([False, False])).to_pylist()
    [['a'], []]
    """
    if nulls is None and not flags.any():
        return pa.nulls(len(flags), pa.list_(pa.string()))
    none: Bools = np.asarray(~flags.any(axis=1)) if nulls is None else nulls
    flags = flags & ~none[:, None]
    offsets = np.concatenate([[0], np.cumsum(flags.sum(axis=1))]).astype(np.int32)
    words = pa.array(list(names), pa.string()).take(pa.array(np.nonzero(flags)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), words, mask=pa.array(none))


def contains_name(lists: pa.Array, name: str) -> Bools:
    """Returns which lists contain a name.

    >>> contains_name(pa.array([["a", "b"], None, ["b"]], pa.list_(pa.string())), "a").tolist()
    [True, False, False]
    """
    found = np.zeros(len(lists), np.bool_)
    hit = pc.equal(lists.flatten(), name)
    found[pc.list_parent_indices(lists).filter(hit).to_numpy()] = True
    return found


def group_by_key(numbers: Ints, without: Ints) -> list[Ints]:
    """Returns the indexes of numbers (0, 1, ...) in groups of neighbouring numbers, in order within a group.

    `without` are indexes to leave out.

    >>> [g.tolist() for g in group_by_key(np.array([70_000, 0, 1, 70_000, 0]), np.array([1]))]
    [[2, 4], [0, 3]]
    """
    high = (numbers >> _GROUP_BITS).astype(np.uint16)
    order = np.argsort(high, kind="stable") if high.any() else np.arange(len(numbers))
    if len(without):
        taking = np.ones(len(numbers), np.bool_)
        taking[without] = False
        order = order[taking[order]]
    return np.split(order, np.cumsum(np.bincount(high[order]))[:-1])


def sort_group(numbers: Ints, group: Ints) -> Ints:
    """Returns a group's indexes sorted by number, stably.

    >>> sort_group(np.array([1, 0, 1, 0]), np.array([0, 1, 3])).tolist()
    [1, 3, 0]
    """
    return group[np.argsort(numbers[group].astype(np.uint16), kind="stable")]
