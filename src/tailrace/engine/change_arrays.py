"""A change table in arrays, made ready for questions: rows in order, key columns checked, masks by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import FormatError
from ..model.change import BEFORE, DELETE, INSERT, PREFIX, TRUNCATE, UPDATE
from .columns import MaskBits, letters, one

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
I, U, D, B, T = map(ord, (INSERT, UPDATE, DELETE, BEFORE, TRUNCATE))  # noqa: E741
"""Operations as they stand in arrays: the codes of their letters."""
WHY = "why"
"""Column of rows that were set aside: the reason (string)."""
NO_SEQUENCE, NO_OPERATION, NO_KEY, TWICE = (
    "no change_seq: its place in the order is not known",
    "change_oper is none of I, U, D, B, T",
    "NULL in the key, or the image has no key",
    "the same change_seq and change_oper again",
)


@dataclass(frozen=True)
class ChangeArrays:
    """The rows of a change table in order of (`change_seq`, `change_oper`).

    Attributes:
        rows: headers and data columns, without what was set aside.
        key: names of the key columns; empty: the table has none.
        columns: names of the data columns that questions answer with, in order.
        ordinals: the bit of each of `columns` in the masks.
        aside: rows that no question can use, with the reason in `WHY`.
        prefix: what header names start with.
    """

    rows: pa.Table
    key: tuple[str, ...]
    columns: tuple[str, ...]
    ordinals: tuple[int, ...]
    aside: pa.Table
    prefix: str = PREFIX

    @staticmethod
    def of(
        table: pa.Table,
        key: Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        layout: Sequence[str] | None = None,
        prefix: str = PREFIX,
    ) -> ChangeArrays:
        """Makes change rows ready, in whatever order they come.

        Args:
            table: the rows: headers (at least change_seq and change_oper) and data columns.
            key: names of the key columns.
            columns: the data columns to use, all by default; key columns are added when they are missing.
            layout: all column names of the change table, headers too, when `table` has only some of them:
                a bit in a mask is a place among these.

        Raises:
            FormatError: a header or key column is not there.
        """
        names = list(layout or table.column_names)
        wanted = [prefix + "change_seq", prefix + "change_oper", *key, *(columns or ())]
        if missing := [n for n in wanted if n not in table.column_names]:
            raise FormatError(
                f"the change table has no column {', '.join(missing)}",
                hint=f"it has {', '.join(table.column_names)}",
            )
        data = [n for n in table.column_names if not n.startswith(prefix)]
        chosen = data if columns is None else [*(k for k in key if k not in columns), *columns]
        ordinals = tuple(names.index(n) for n in chosen)
        table = table.combine_chunks()
        made = ChangeArrays(table, tuple(key), tuple(chosen), ordinals, _nothing(table), prefix)
        return made._in_order()._usable()

    def header(self, name: str) -> str:
        """The full name of a header column."""
        return self.prefix + name

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def column(self, header: str) -> pa.Array | None:
        """A header column; None when the table has not got it."""
        name = self.header(header)
        return one(self.rows[name]) if name in self.rows.column_names else None

    @cached_property
    def oper(self) -> Ints:
        """The operation of each row, as its letter's code."""
        found = letters(one(self.rows[self.header("change_oper")]))
        return found.astype("U1").view(np.int32).astype(np.int64)

    @cached_property
    def seq(self) -> pa.Array:
        """`change_seq` of each row."""
        return one(self.rows[self.header("change_seq")])

    @cached_property
    def change(self) -> Ints:
        """The number of each row's change: 0, 1, ...; B and U of one update have the same."""
        return runs(self.seq)

    @cached_property
    def commit(self) -> Ints:
        """The number of each row's transaction: neighbours with the same `transaction_id` belong together.
        Where it is NULL, or the table has not got it, each change is one of its own."""
        ids = self.column("transaction_id")
        if ids is None:
            return self.change
        told = ids.is_valid().to_numpy(zero_copy_only=False)
        new = np.ones(len(self), np.bool_)
        new[1:] = differs(ids[:-1], ids[1:]) | (~told[1:] & (np.diff(self.change) > 0))
        return np.cumsum(new) - 1

    @cached_property
    def commit_end(self) -> Ints:
        """For each row the last row of its transaction."""
        last = np.flatnonzero(np.append(np.diff(self.commit) > 0, True)) if len(self) else self.commit
        found: Ints = last[self.commit]
        return found

    @cached_property
    def truncates(self) -> Ints:
        """The rows that are truncates."""
        return np.flatnonzero(self.oper == T)

    def carries(self, column: str) -> Bools | None:
        """Which rows' images have a column; None: all have all."""
        if self._masks is None:
            return None
        found: Bools = self._masks.bits[self._masks.codes, self.columns.index(column)]
        return found

    def loses(self, column: str) -> Bools | None:
        """Which updates changed a column that their image lacks: its value is not known then. None: none."""
        there, name = self.carries(column), self.header("change_mask")
        if there is None or name not in self.rows.column_names:
            return None
        told = MaskBits.of(self.rows[name], [self.ordinals[self.columns.index(column)]], null=False)
        found: Bools = told.bits[told.codes, 0] & ~there & (self.oper == U)
        return found

    @property
    def sparse(self) -> bool:
        """Whether some images lack columns."""
        return self._masks is not None

    @cached_property
    def _masks(self) -> MaskBits | None:
        name = self.header("column_mask")
        if name not in self.rows.column_names or self.rows[name].null_count == len(self):
            return None
        return MaskBits.of(self.rows[name], self.ordinals)

    def between(self, after: str | None = None, upto: str | None = None) -> ChangeArrays:
        """The changes with `change_seq` in (after, upto]; None: no limit."""
        low = 0 if after is None else _count(pc.less_equal(self.seq, after))
        high = len(self) if upto is None else _count(pc.less_equal(self.seq, upto))
        return replace(self, rows=self.rows.slice(low, max(high - low, 0)))

    def _in_order(self) -> ChangeArrays:
        seq, oper = one(self.rows[self.header("change_seq")]), one(self.rows[self.header("change_oper")])
        if len(seq) < 2:
            return self
        same = pc.equal(seq[:-1], seq[1:]).fill_null(False)
        fits = pc.or_(pc.less(seq[:-1], seq[1:]), pc.and_(same, pc.less_equal(oper[:-1], oper[1:])))
        if pc.all(fits.fill_null(False)).as_py():
            return self
        order = pc.sort_indices(
            pa.table({"s": seq, "o": oper}), sort_keys=[("s", "ascending"), ("o", "ascending")]
        )
        return replace(self, rows=self.rows.take(order).combine_chunks())

    def _usable(self) -> ChangeArrays:
        """Without the rows that no question can use."""
        none = np.zeros(len(self), np.bool_)
        again, keyless = none.copy(), none.copy()
        again[1:] = (np.diff(self.change) == 0) & (self.oper[1:] == self.oper[:-1])
        for name in self.key:
            if (values := one(self.rows[name])).null_count:
                keyless |= values.is_null().to_numpy(zero_copy_only=False)
            there = self.carries(name)
            keyless |= none if there is None else ~there
        seq = self.seq
        reasons = {
            NO_SEQUENCE: seq.is_null().to_numpy(zero_copy_only=False) if seq.null_count else none,
            NO_OPERATION: ~np.isin(self.oper, (I, U, D, B, T)),
            NO_KEY: keyless & (self.oper != T),
            TWICE: again,
        }
        if not any(flags.any() for flags in reasons.values()):
            return self
        which = np.select(list(reasons.values()), np.arange(1, len(reasons) + 1), 0)
        odd = np.flatnonzero(which)
        words = pa.array(list(reasons)).take(pa.array(which[odd] - 1))
        aside = self.rows.take(pa.array(odd)).append_column(WHY, words)
        return replace(self, rows=self.rows.filter(pa.array(which == 0)).combine_chunks(), aside=aside)


def runs(values: pa.Array) -> Ints:
    """Numbers runs of equal neighbours.

    >>> runs(pa.array(["a", "a", "b", None])).tolist()
    [0, 0, 1, 2]
    """
    new = np.zeros(len(values), np.int64)
    if len(values) > 1:
        new[1:] = differs(values[:-1], values[1:])
    return np.cumsum(new)


def differs(left: pa.Array, right: pa.Array) -> Bools:
    """Where two columns differ: NULL equals NULL, NaN equals NaN.

    >>> differs(pa.array([1, None, None, 2]), pa.array([1, None, 1, 3])).tolist()
    [False, False, True, True]
    """
    same = pc.equal(left, right).fill_null(False)
    same = pc.or_(same, pc.and_(left.is_null(), right.is_null()))
    if pa.types.is_floating(left.type):
        nan = pc.and_(pc.is_nan(left).fill_null(False), pc.is_nan(right).fill_null(False))
        same = pc.or_(same, nan)
    found: Bools = ~same.to_numpy(zero_copy_only=False)
    return found


def _nothing(table: pa.Table) -> pa.Table:
    return table.slice(0, 0).append_column(WHY, pa.array([], pa.string()))


def _count(flags: pa.Array) -> int:
    return int(pc.sum(flags).as_py() or 0)
