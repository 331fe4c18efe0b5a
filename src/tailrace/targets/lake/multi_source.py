"""Shared targets: one table with rows of several sources, each of which has its own progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConcurrentCommitError
from ...execution import thread_pool
from ...lake import delta as lake
from ...lake import retrying
from ...lake.data_files import DataFiles
from ...lake.failpoints import reach
from ...lake.table import LakeTable, LakeTables, commit_info
from ...model.change import Relation
from ...model.types import spark_type
from ..change_batch import ChangeBatch
from ..multi_source import refuse_columns


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


def column_check(
    name: str, relation: Relation, rule_columns: Mapping[str, str]
) -> Callable[[LakeTable], pa.Schema]:
    """Returns a function that returns the columns of an open target.

    It raises BaselineNeededError if the target has other columns than the relation and `rule_columns`.
    """
    want = {c.name: c.type for c in relation.columns}

    def checked(now: LakeTable) -> pa.Schema:
        have = {f.name: spark_type(f.type) for f in now.schema}
        refuse_columns(relation.table, name, have, want, rule_columns)
        return now.schema

    return checked


def exchange_partition(
    tables: LakeTables,
    name: str,
    app: str,
    files: Sequence[lake.AddedFile],
    after: int,
    partition: Mapping[str, str],
    checked_schema: Callable[[LakeTable], pa.Schema],
) -> int:
    """Replaces the rows of one source by files, in one commit with its progress: files with such rows are
    rewritten without them. Returns the version.

    Args:
        tables: the tables of the target's format.
        name: the target.
        app: the application id of the source's progress.
        files: the new rows.
        after: the progress afterwards.
        partition: the constants of the source.
        checked_schema: returns the columns of the target, or raises an error if files do not fit; other
            processes may have changed them since the rows were read.

    Raises:
        ConcurrentCommitError: other writers keep committing, or only Spark may write the target now.
    """

    def once() -> int:
        now = tables.open(name)
        schema = checked_schema(now)
        if not now.replaces_files:  # its files could be replaced when the rows were read
            raise ConcurrentCommitError.at(name, now.version)
        replaced, others = rewrite_without(now, partition, schema)
        reach("delta.load")
        try:
            return now.exchange(replaced, [*others, *files], app, max(after, 0), commit_info(plan="load"))
        except ConcurrentCommitError as error:
            raise _OtherFirstError from error

    try:
        return retrying.retried(once, _OtherFirstError)
    except _OtherFirstError as error:
        raise error.__cause__ or error from None


class _OtherFirstError(Exception):
    """Another writer committed first."""


def rewrite_without(
    now: LakeTable, partition: Mapping[str, str], schema: pa.Schema
) -> tuple[list[dict[str, object]], list[lake.AddedFile]]:
    """Writes parts with the other rows of files that have rows of a source; returns these files (see
    `LakeTable.data_files`) and the parts."""
    files = now.data_files()
    rewrite = partial(_rewrite_file_without, now.files, partition, schema)
    with thread_pool("load", worth=len(files) > 1) as pool:
        found = list(pool.map(rewrite, [f["path"] for f in files]))
    replaced = [file for file, parts in zip(files, found, strict=True) if parts is not None]
    return replaced, [part for parts in found for part in parts or ()]


def _rewrite_file_without(
    files: DataFiles, partition: Mapping[str, str], schema: pa.Schema, name: str
) -> list[lake.AddedFile] | None:
    """Returns parts with the other rows of a file; None if it has no rows of the source."""
    with files.open(name) as file:
        constants = pa.schema([schema.field(n) for n in partition])
        if not any(pc.any(_in_partition(one, partition)).as_py() for one in files.batches(file, constants)):
            return None
        part = files.part(schema)
        for batch in files.batches(file, schema):
            part.write(batch.filter(pc.invert(_in_partition(batch, partition))))
    return part.close_all()


def _in_partition(rows: pa.RecordBatch, partition: Mapping[str, str]) -> pa.Array:
    """Returns for each row whether it has these constants."""
    same = [pc.fill_null(pc.equal(rows[name], value), False) for name, value in partition.items()]
    return reduce(pc.and_, same)
