"""Delta targets that several sources feed: one table, in which each has rows, and a progress of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ...errors import ConcurrentCommitError
from ...execution import thread_pool
from ...lake import delta as lake
from ...lake.failpoints import reach
from ...model.change import Relation
from ...model.positions import order_key
from ...model.quoting import quoted
from ...model.types import schema_of, spark_type
from ..change_batch import ChangeBatch
from ..images import col
from ..multi_source import refuse_columns
from ..parts import Parts
from . import spark_io
from .commit import exchange, info
from .layout import create
from .load import PartTask, write_parts
from .table_info import actions, is_plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def merge_rounds(batches: Sequence[ChangeBatch]) -> Iterator[list[int]]:
    """The places of batches that may be merged side by side: no two of them have one target.

    >>> from tailrace.model.change import Relation
    >>> from tailrace.model.positions import ChangeRange
    >>> def batch(target):
    ...     return ChangeBatch("s.t", Relation(1, "s", "t", "d", ()), ChangeRange(None, 1), target=target)
    >>> list(rounds([batch("a"), batch("b"), batch("a"), batch("a")]))
    [[0, 1], [2], [3]]
    """
    left = list(range(len(batches)))
    while left:
        mine = list({batches[place].target: place for place in reversed(left)}.values())
        yield sorted(mine)
        left = [place for place in left if place not in set(mine)]


def load_partition(
    path: str,
    app: str,
    relation: Relation,
    rows: DataFrame | Parts,
    after: int,
    partition: Mapping[str, str],
    rule_columns: Mapping[str, str],
) -> int:
    """Makes rows all those with the constants `own`, in one commit with the source's progress: files that
    have some are written anew without them. Gives the version.

    Raises:
        BaselineNeededError: the target has other columns than the rows, but for `rule_columns`.
    """
    create(path, relation)
    want = {c.name: c.type for c in relation.columns}

    def takes(now: DeltaTable) -> pa.Schema:
        """The schema that it has now; others may have changed it since the rows were read."""
        schema = lake.arrow_schema(now)
        there = {f.name: spark_type(f.type) for f in schema}
        refuse_columns(relation.table, path, there, want, rule_columns)
        return schema

    takes(now := DeltaTable(path))
    if not is_plain(now):
        if isinstance(rows, Parts):  # it was plain when it was asked
            raise ConcurrentCommitError.at(path, now.version())
        return _load_by_spark(path, app, rows, after, partition, takes)
    # Columns that a file lacks are NULL.
    files, _ = write_parts(rows, PartTask(path, schema_of(relation.columns)))

    def once(now: DeltaTable) -> bool | None:
        schema = takes(now)
        if not is_plain(now):  # it was, when the rows were read
            raise ConcurrentCommitError.at(path, now.version())
        replaced, others = rewrite_without(now, path, partition, schema)
        reach("delta.load")
        try:
            exchange(now, replaced, [*others, *files], app, max(after, 0), info(plan="load"))
        except CommitFailedError:
            return None
        return True

    lake.on_newest(path, once)
    return order_key(lake.version(path))


def rewrite_without(
    now: DeltaTable, path: str, partition: Mapping[str, str], schema: pa.Schema
) -> tuple[list[dict[str, object]], list[lake.AddedFile]]:
    """The files that have rows with the constants `own` (as add actions), and parts with their other rows."""
    files = actions(now).to_pylist()
    with thread_pool("load", worth=len(files) > 1) as pool:
        found = list(
            pool.map(partial(_rewrite_file_without, path, partition, schema), [f["path"] for f in files])
        )
    replaced = [file for file, (mine, _) in zip(files, found, strict=True) if mine]
    return replaced, [part for _, part in found if part is not None]


def _rewrite_file_without(
    path: str, partition: Mapping[str, str], schema: pa.Schema, name: str
) -> tuple[bool, lake.AddedFile | None]:
    """Whether a file has rows with these constants, and a part with its other rows."""
    fs, full = lake.filesystem(f"{path}/{name}")
    with pq.ParquetFile(full, filesystem=fs, buffer_size=1 << 20) as file:
        named = (b for b in file.iter_batches(columns=list(partition), use_threads=False))
        if not any(pc.any(_mine(batch, partition)).as_py() for batch in named):
            return False, None
        part = lake.Part(path, schema)
        for batch in file.iter_batches(use_threads=False):
            part.write(lake.fitted(batch.filter(pc.invert(_mine(batch, partition))), schema))
    return True, part.close()


def _mine(rows: pa.RecordBatch, partition: Mapping[str, str]) -> pa.Array:
    """Which rows have these constants."""
    same = [pc.fill_null(pc.equal(rows[name], value), False) for name, value in partition.items()]
    return reduce(pc.and_, same)


def _load_by_spark(
    path: str,
    app: str,
    rows: DataFrame,
    after: int,
    partition: Mapping[str, str],
    takes: Callable[[DeltaTable], pa.Schema],
) -> int:
    """The same for a table whose files Spark alone exchanges; `takes` gives its schema. The progress is a
    commit of its own behind the rows: who dies in between loads again."""
    from pyspark.sql import functions as F

    have = set(rows.columns)
    where = " AND ".join(f"{quoted(n)} = '{_text(v)}'" for n, v in partition.items())

    def once(now: DeltaTable) -> bool | None:
        kinds = {f.name: spark_type(f.type) for f in takes(now)}
        cells = [col(n) if n in have else F.lit(None).cast(kind).alias(n) for n, kind in kinds.items()]
        whole = rows.select(*cells)
        try:
            spark_io.write(whole, path, now.version(), "overwrite", replaceWhere=where)
        except ConcurrentCommitError:
            return None
        return True

    lake.on_newest(path, once)
    reach("delta.load")
    done = lake.commit(path, [], progress={app: max(after, 0)}, begin=True)
    return order_key(lake.version(path)) if done is None else done


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
