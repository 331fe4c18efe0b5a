"""Lists the transactions of several change tables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .change_arrays import ChangeArrays, D, I, T, U
from .chunked_take import take_rows
from .columns import one
from .commits import COMMIT_TIMESTAMP, COMMIT_VERSION, TIME
from .equal_values import values_differ

_COUNTS = {"inserts": I, "updates": U, "deletes": D, "truncates": T}


def transactions(tables: Mapping[str, ChangeArrays]) -> pa.Table:
    """Returns one row per transaction and table, in commit order.

    Args:
        tables: change tables of one task by name, whose change sequences have one order.

    Returns:
        `transaction_id` (string), `user_name` (string, NULL if the change table does not have it), `table`,
            `inserts`, `updates`, `deletes`, `truncates` (bigint), `_commit_version` (string: the
            transaction's last `change_seq` in all these tables), `_commit_timestamp`. A change without a
            `transaction_id` is its own transaction.
    """
    parts = [_groups(name, one) for name, one in tables.items()]
    rows = pa.concat_tables([_NOTHING, *parts], promote_options="permissive").combine_chunks()
    rows = rows.take(pc.sort_indices(rows, [("seq", "ascending")]))
    if not rows.num_rows:
        return rows.drop_columns(["seq", "at"]).append_column(COMMIT_VERSION, rows["seq"]).append_column(
            COMMIT_TIMESTAMP, rows["at"]
        )  # fmt: skip
    ids = one(rows["transaction_id"])
    # The changes of a transaction are adjacent.
    together = ~values_differ(ids[:-1], ids[1:]) & ids[1:].is_valid().to_numpy(zero_copy_only=False)
    last = np.flatnonzero(np.append(~together, True))
    end = pa.array(last[np.searchsorted(last, np.arange(rows.num_rows))])
    versions, times = one(rows["seq"]).take(end), one(rows["at"]).take(end)
    rows = rows.drop_columns(["seq", "at"])
    return rows.append_column(COMMIT_VERSION, versions).append_column(COMMIT_TIMESTAMP, times)


_NOTHING = pa.schema(
    [
        ("transaction_id", pa.string()), ("user_name", pa.string()), ("table", pa.string()),
        *((n, pa.int64()) for n in _COUNTS), ("seq", pa.string()), ("at", TIME),
    ]
).empty_table()  # fmt: skip


def _groups(name: str, changes: ChangeArrays) -> pa.Table:
    """Returns the transactions of one table, with their last `seq` and its time `at`."""
    last = changes.commits
    result = {"table": pa.array([name] * len(last), pa.string()), "seq": take_rows(changes.seq, last)}
    for to, header in (("transaction_id", None), ("user_name", None), ("at", "timestamp")):
        if (column := changes.column(header or to)) is not None:
            result[to] = take_rows(column, last)
    for to, oper in _COUNTS.items():
        counts = np.bincount(changes.commit_of(np.flatnonzero(changes.oper == oper)), minlength=len(last))
        result[to] = pa.array(counts, pa.int64())
    return pa.table(result)
