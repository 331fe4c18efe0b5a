"""A change table as arrays for queries: rows in order, key columns checked, masks by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import FormatError
from ..execution import thread_pool
from ..model.change import BEFORE, DELETE, INSERT, PREFIX, TRUNCATE, UPDATE
from .columns import MaskBits, codes
from .equal_values import values_differ
from .lazy import lazy

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
I, U, D, B, T = map(ord, (INSERT, UPDATE, DELETE, BEFORE, TRUNCATE))  # noqa: E741
"""Operations as stored in arrays: the codes of their letters."""
SMALL_BATCH = 200_000
"""The maximum number of changes that a query processes in the calling thread."""
WHY = "why"
"""Last column of rejected rows: the reason (string); see `with_reasons`."""
_NO_WORDS = pa.array([], pa.string())
NO_SEQUENCE, NO_OPERATION, NO_KEY, DUPLICATE = (
    "no change_seq: its position in the order is unknown",
    "change_oper is none of I, U, D, B, T",
    "NULL in the key, or the image has no key",
    "duplicate change_seq and change_oper",
)


@dataclass(frozen=True)
class ChangeArrays:
    """The rows of a change table in order of (`change_seq`, `change_oper`).

    Attributes:
        rows: headers and data columns, without rejected rows.
        key: names of the key columns; empty for a keyless table.
        columns: names of the data columns in results, in order.
        ordinals: the bit of each of `columns` in the masks.
        aside: rejected rows, with the reason in the last column (`with_reasons`).
        prefix: the prefix of header names.
        name: the table's name for errors; empty if unknown.
        earlier: known rows before the changes: data columns, and `header__absent` (list of strings: columns
            with unknown values, NULL: none).
    """

    rows: pa.Table
    key: tuple[str, ...]
    columns: tuple[str, ...]
    ordinals: tuple[int, ...]
    aside: pa.Table
    prefix: str = PREFIX
    name: str = ""
    earlier: pa.Table | None = None

    @staticmethod
    def of(
        table: pa.Table,
        key: Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        layout: Sequence[str] | None = None,
        prefix: str = PREFIX,
        name: str = "",
    ) -> ChangeArrays:
        """Creates arrays from change rows in any order.

        Args:
            table: headers (at least change_seq and change_oper) and data columns.
            key: names of the key columns.
            columns: the data columns to use, all by default; missing key columns are added.
            layout: all column names of the change table including headers, if `table` has only some. The
                index of a name is its bit in the masks.
            prefix: the prefix of header names.
            name: the table's name for errors.

        Raises:
            FormatError: a header or key column does not exist.
        """
        names = list(layout or table.column_names)
        wanted = [prefix + "change_seq", prefix + "change_oper", *key, *(columns or ())]
        if missing := [n for n in wanted if n not in table.column_names]:
            raise FormatError(
                f"the change table has no column {', '.join(missing)}",
                hint=f"columns: {', '.join(table.column_names)}",
            )
        data = [n for n in table.column_names if not n.startswith(prefix)]
        chosen = data if columns is None else [*(k for k in key if k not in columns), *columns]
        ordinals = tuple(names.index(n) for n in chosen)
        result = ChangeArrays(
            table,
            tuple(key),
            tuple(chosen),
            ordinals,
            with_reasons(table.slice(0, 0), _NO_WORDS),
            prefix,
            name,
        )
        return result._in_order()._usable()

    def header(self, name: str) -> str:
        """Returns the full name of a header column."""
        return self.prefix + name

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def column(self, header: str) -> pa.ChunkedArray | None:
        """Returns a header column, or None if the table does not have it."""
        name = self.header(header)
        return self.rows[name] if name in self.rows.column_names else None

    @lazy
    def oper(self) -> Codes:
        """The operation of each row, as its letter's code."""
        return codes(self.rows[self.header("change_oper")])

    @property
    def seq(self) -> pa.ChunkedArray:
        """The `change_seq` of each row."""
        return self.rows[self.header("change_seq")]

    @lazy
    def continues(self) -> Bools:
        """Whether each row has the `change_seq` of the row before: in an update, U follows B."""
        found = ~compare_neighbours(self.seq, values_differ)
        found[:1] = False
        return found

    @lazy
    def befores(self) -> Ints:
        """The before images whose update is the next row."""
        b_then_u = (self.oper[:-1] == B) & (self.oper[1:] == U)
        return np.flatnonzero(b_then_u & self.continues[1:])

    @lazy
    def commits(self) -> Ints:
        """The last row of each transaction. Adjacent rows with the same `transaction_id` belong together.

        If that is NULL or missing, each change is its own transaction.
        """
        begins = ~self.continues
        if (ids := self.column("transaction_id")) is not None:
            other = compare_neighbours(ids, values_differ)
            if ids.null_count:
                other |= ids.is_null().to_numpy() & begins
            begins = other
        return np.flatnonzero(np.append(begins[1:], True)) if len(self) else np.zeros(0, np.int64)

    def commit_of(self, rows: Ints) -> Ints:
        """Returns the number of each row's transaction: 0, 1, ..."""
        return np.searchsorted(self.commits, rows)

    def commit_end(self, rows: Ints) -> Ints:
        """Returns for each row the last row of its transaction."""
        return self.commits[self.commit_of(rows)] if len(self) else rows

    @lazy
    def truncates(self) -> Ints:
        """The indexes of truncates."""
        return np.flatnonzero(self.oper == T)

    def carries(self, column: str) -> Bools | None:
        """Returns which rows' images have a column; None if all have all columns."""
        if self._masks is None:
            return None
        found: Bools = self._masks.bits[self._masks.codes, self.columns.index(column)]
        return found

    def loses(self, column: str) -> Bools | None:
        """Returns which updates changed a column that their image does not have, so that its value is
        unknown; None if none."""
        there, name = self.carries(column), self.header("change_mask")
        if there is None or name not in self.rows.column_names:
            return None
        lost = MaskBits.of(self.rows[name], [self.ordinals[self.columns.index(column)]], null=False)
        found: Bools = lost.bits[lost.codes, 0] & ~there & (self.oper == U)
        return found

    @property
    def sparse(self) -> bool:
        """Whether some images have missing columns."""
        return self._masks is not None

    @lazy
    def whole(self) -> Bools:
        """Whether each row's image has all columns."""
        if self._masks is None:
            return np.ones(len(self), np.bool_)
        whole: Bools = np.asarray(self._masks.bits.all(axis=1))
        return whole[self._masks.codes]

    @lazy
    def _masks(self) -> MaskBits | None:
        name = self.header("column_mask")
        if name not in self.rows.column_names or self.rows[name].null_count == len(self):
            return None
        return MaskBits.of(self.rows[name], self.ordinals)

    def between(self, after: str | None = None, upto: str | None = None) -> ChangeArrays:
        """Returns the changes with `change_seq` in (after, upto]; None means no limit."""
        low = 0 if after is None else _count(pc.less_equal(self.seq, after))
        high = len(self) if upto is None else _count(pc.less_equal(self.seq, upto))
        return replace(self, rows=self.rows.slice(low, max(high - low, 0)))

    def _in_order(self) -> ChangeArrays:
        rises = compare_neighbours(self.seq, lambda a, b: pc.less(a, b).fill_null(False).to_numpy(False))[1:]
        if (rises | (self.continues[1:] & (self.oper[:-1] <= self.oper[1:]))).all():
            return self
        names = [self.header("change_seq"), self.header("change_oper")]
        order = pc.sort_indices(self.rows.select(names), sort_keys=[(n, "ascending") for n in names])
        return replace(self, rows=self.rows.combine_chunks().take(order))

    def _usable(self) -> ChangeArrays:
        """Moves rejected rows to `aside`."""
        which = np.zeros(len(self), np.uint8)
        for number, flags in reversed(list(enumerate(self._reasons().values(), 1))):
            which[flags] = number
        if not which.any():
            return self
        odd = np.flatnonzero(which)
        words = pa.array(list(self._reasons())).take(pa.array(which[odd] - 1))
        aside = with_reasons(self.rows.take(pa.array(odd)), words)
        return replace(self, rows=self.rows.filter(pa.array(which == 0)), aside=aside)

    def _reasons(self) -> dict[str, Bools]:
        """Returns which rows are rejected, by reason; the first reason counts."""
        keyless = np.zeros(len(self), np.bool_)
        for name in self.key:
            if (values := self.rows[name]).null_count:
                keyless |= values.is_null().to_numpy()
            if (there := self.carries(name)) is not None:
                keyless |= ~there
        again = self.continues.copy()
        again[1:] &= self.oper[1:] == self.oper[:-1]
        return {
            NO_SEQUENCE: self.seq.is_null().to_numpy(),
            NO_OPERATION: ~_OPERATIONS[self.oper],
            NO_KEY: keyless & (self.oper != T),
            DUPLICATE: again,
        }


_OPERATIONS = np.isin(np.arange(256), (I, U, D, B, T))


def compare_neighbours(column: pa.ChunkedArray, compare: Callable[[pa.Array, pa.Array], Bools]) -> Bools:
    """Compares each value with the one before it; the first result is True.

    >>> compare_neighbours(pa.chunked_array([["a"], ["a", "b"]]), values_differ).tolist()
    [True, False, True]
    """
    found = np.ones(len(column), np.bool_)
    chunks = [c for c in column.chunks if len(c)]
    ends = np.cumsum([len(c) for c in chunks])

    def compared(k: int) -> None:
        chunk, end = chunks[k], ends[k]
        if k:
            found[end - len(chunk)] = compare(chunks[k - 1][-1:], chunk[:1])[0]
        found[end - len(chunk) + 1 : end] = compare(chunk[:-1], chunk[1:])

    with thread_pool("compare", worth=len(column) > SMALL_BATCH and len(chunks) > 1) as pool:
        list(pool.map(compared, range(len(chunks))))
    return found


def with_reasons(rows: pa.Table, words: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Returns rejected rows with the reason in the last column: `why`, or `_why` if a column has that name.

    >>> with_reasons(pa.table({"id": [1]}), pa.array(["no key"])).column_names
    ['id', 'why']
    >>> with_reasons(pa.table({"id": [1], "Why": [2]}), pa.array(["no key"])).column_names
    ['id', 'Why', '_why']
    """
    name, theirs = WHY, {n.casefold() for n in rows.column_names}
    while name in theirs:
        name = f"_{name}"
    return rows.append_column(name, words)


def _count(flags: pa.Array) -> int:
    return int(pc.sum(flags).as_py() or 0)
