"""Shared Delta targets: one table with rows of several sources, each of which has its own progress."""

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
from ...lake.opened import open_table
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
    """Yields the indices of batches that may be merged in parallel: they have different targets.

    >>> from tailrace.model.change import Relation
    >>> from tailrace.model.positions import ChangeRange
    >>> def batch(target):
    ...     return ChangeBatch("s.t", Relation(1, "s", "t", "d", ()), ChangeRange(None, 1), target=target)
    >>> list(merge_rounds([batch("a"), batch("b"), batch("a"), batch("a")]))
    [[0, 1], [2], [3]]
    """
    rest = list(range(len(batches)))
    while rest:
        first_of_targets = set({batches[index].target: index for index in reversed(rest)}.values())
        yield sorted(first_of_targets)
        rest = [index for index in rest if index not in first_of_targets]


def load_partition(
    path: str,
    app: str,
    relation: Relation,
    rows: DataFrame | Parts,
    after: int,
    partition: Mapping[str, str],
    rule_columns: Mapping[str, str],
) -> int:
    """Replaces the rows of one source, in one commit with its progress: files with such rows are rewritten
    without them. Returns the version.

    Args:
        path: the target.
        app: the application id of the source's progress.
        relation: the layout of the rows.
        rows: the rows.
        after: the progress afterwards.
        partition: the constants of the source.
        rule_columns: the columns that rules may have added to the target.

    Raises:
        BaselineNeededError: the target has other columns than the rows and `rule_columns`.
    """
    create(path, relation)
    want = {c.name: c.type for c in relation.columns}

    def checked_schema(now: DeltaTable) -> pa.Schema:
        """Returns the current schema; other processes may have changed it since the rows were read."""
        schema = lake.arrow_schema(now)
        refuse_columns(relation.table, path, {f.name: spark_type(f.type) for f in schema}, want, rule_columns)
        return schema

    checked_schema(now := open_table(path))
    if not is_plain(now):
        if isinstance(rows, Parts):  # `loads_parts` was called when the table was plain
            raise ConcurrentCommitError.at(path, now.version())
        return _load_by_spark(path, app, rows, after, partition, checked_schema)
    # Columns that are not in a file are NULL.
    files, _ = write_parts(rows, PartTask(path, schema_of(relation.columns)))

    def once(now: DeltaTable) -> bool | None:
        schema = checked_schema(now)
        if not is_plain(now):  # it was plain when the rows were read
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
    """Writes parts with the other rows of files that have rows of a source; returns these files (as add
    actions) and the parts."""
    files = actions(now).to_pylist()
    rewrite = partial(_rewrite_file_without, path, partition, schema)
    with thread_pool("load", worth=len(files) > 1) as pool:
        found = list(pool.map(rewrite, [f["path"] for f in files]))
    replaced = [file for file, (has_rows, _) in zip(files, found, strict=True) if has_rows]
    return replaced, [part for _, part in found if part is not None]


def _rewrite_file_without(
    path: str, partition: Mapping[str, str], schema: pa.Schema, name: str
) -> tuple[bool, lake.AddedFile | None]:
    """Returns whether a file has rows of a source, and a part with its other rows."""
    fs, full = lake.filesystem(f"{path}/{name}")
    with pq.ParquetFile(full, filesystem=fs, buffer_size=1 << 20) as file:
        keys = (b for b in file.iter_batches(columns=list(partition), use_threads=False))
        if not any(pc.any(_in_partition(batch, partition)).as_py() for batch in keys):
            return False, None
        part = lake.Part(path, schema)
        for batch in file.iter_batches(use_threads=False):
            part.write(lake.fitted(batch.filter(pc.invert(_in_partition(batch, partition))), schema))
    return True, part.close()


def _in_partition(rows: pa.RecordBatch, partition: Mapping[str, str]) -> pa.Array:
    """Returns for each row whether it has these constants."""
    same = [pc.fill_null(pc.equal(rows[name], value), False) for name, value in partition.items()]
    return reduce(pc.and_, same)


def _load_by_spark(
    path: str,
    app: str,
    rows: DataFrame,
    after: int,
    partition: Mapping[str, str],
    checked_schema: Callable[[DeltaTable], pa.Schema],
) -> int:
    """Does `load_partition` for a table whose files only Spark may replace.

    The progress is a separate commit after the rows: after a crash between the two, the rows are loaded
    again.
    """
    from pyspark.sql import functions as F

    have = set(rows.columns)
    where = " AND ".join(f"{quoted(n)} = '{_escaped(v)}'" for n, v in partition.items())

    def once(now: DeltaTable) -> bool | None:
        kinds = {f.name: spark_type(f.type) for f in checked_schema(now)}
        cells = [col(n) if n in have else F.lit(None).cast(kind).alias(n) for n, kind in kinds.items()]
        try:
            spark_io.write(rows.select(*cells), path, now.version(), "overwrite", replaceWhere=where)
        except ConcurrentCommitError:
            return None
        return True

    lake.on_newest(path, once)
    reach("delta.load")
    version = lake.commit(path, [], progress={app: max(after, 0)}, begin=True)
    return order_key(lake.version(path)) if version is None else version


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
