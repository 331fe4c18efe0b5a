"""The plans by which batches are merged, and the limits by which a plan is chosen.

All plans write the same rows in one commit and differ only in cost. The conformance suite
(`tailrace.testing.targets`) tests this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.columns import KEPT
from ..model.change import Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..lake.table import LakeTable

PLANS: dict[str, str] = {
    "none": "the target already has this batch, or the batch is empty: no row is touched",
    "append": "the changes only add rows (inserts into a keyless table, or an archive): parts are written "
    "and committed",
    "task_local": "one task decides the changes and rewrites the files that they touch",
    "rewrite": "each task decides the changes of a shard, by key; other tasks rewrite the files that change; "
    "no deletion vectors",
    "merge": "Spark's MERGE of the resulting images, for targets that only Spark may write (partitions, "
    "constraints, a change feed, deletion vectors), or if more bytes than `rewrite_limit` would be "
    "rewritten: it marks rows in deletion vectors",
    "replace_all": "after a truncate: the resulting images become the whole target",
    "keyless": "like `merge`, for a keyless table: Spark writes the target again, with the resulting number "
    "of copies of each row",
    "upsert": "PostgreSQL: the resulting rows are staged by COPY; one transaction deletes and upserts by key",
}
"""Plan name -> description."""

SPECIAL = ("I", "U", "D", "T", "key_changes", "absent")
"""Keys of `ChangeBatch.counts`: changes by operation, key changes, images without some columns."""

UNKNOWN: Mapping[str, int] = dict.fromkeys(SPECIAL, 1)
"""Counts of changes that were not counted: any kind may occur."""

REWRITE_SHARE = 20
"""A batch of a twentieth of the target's rows touches almost every file, wherever its keys are. Marking rows
in deletion vectors then costs one pass over the target more than rewriting it."""

REWRITE_BYTES = 4 << 30
"""Smaller batches rewrite up to this number of touched bytes, too, because marking rows has its own cost
(docs/performance.md)."""

_SPECIAL_CHARACTERS = frozenset(" ,;{}()\n\t=`.")


@dataclass(frozen=True)
class FoldedChanges:
    """The resulting images of a batch's changes.

    Attributes:
        df: the `extra` columns (see `engine.columns`), then those of the layout. With a key: one row per key,
            `OP`, and `KEPT` if columns of the target's row may stay. Without a key: one row per different
            row, `TAKE` and `ADD`. For inserts into a keyless table: only the rows.
        extra: the names among `OP`, `KEPT`, `TAKE`, `ADD` that `df` has.
        replaces: the batch has a truncate, so no row of the target remains.
        keys: the touched keys, and possibly more, which cost less to read than `df`; None: there is no key.
    """

    df: DataFrame
    extra: tuple[str, ...]
    replaces: bool = False
    keys: DataFrame | None = None

    @property
    def partial(self) -> bool:
        """Whether columns of the target's rows may stay."""
        return KEPT in self.extra


@dataclass(frozen=True)
class TableSize:
    """Size of a table.

    Attributes:
        bytes, files: of the current version.
        vectors: the table has deletion vectors, which cannot be undone.
        rows: the number of rows; 0 if it is not known.
    """

    bytes: int
    files: int
    vectors: bool = False
    rows: int = 0

    @staticmethod
    def of(table: LakeTable) -> TableSize:
        """Returns the size of an open table."""
        files = table.data_files()
        sizes = [file["size_bytes"] for file in files]
        rows = sum(file["num_records"] or 0 for file in files)
        return TableSize(sum(sizes), len(sizes), table.has_vectors, rows)


@dataclass(frozen=True)
class Limits:
    """Limits by which a plan is chosen.

    Attributes:
        local_bytes: one task merges batches that touch files of at most this number of bytes.
        rewrite_share: batches with at least one change per this number of rows rewrite all files that they
            touch; 0: no batch does because of its number of changes.
        rewrite_bytes: other batches rewrite files of at most this number of bytes; if they touch more, rows
            are marked in deletion vectors.
    """

    local_bytes: int = 1 << 30
    rewrite_share: int = REWRITE_SHARE
    rewrite_bytes: int = REWRITE_BYTES

    def most(self, changes: int, size: TableSize) -> int:
        """Returns the maximum bytes of files that a batch with a number of changes may rewrite."""
        return size.bytes if self.is_large(changes, size) else self.rewrite_bytes

    def is_large(self, changes: int, size: TableSize) -> bool:
        """Whether a batch with a number of changes touches almost every file, wherever its keys are."""
        return bool(size.rows) and changes * self.rewrite_share >= size.rows


def is_local(size: TableSize, limits: Limits) -> bool:
    """Whether one task may rewrite a whole target of this size."""
    return not size.vectors and size.bytes < limits.local_bytes


def has_special_names(relation: Relation) -> bool:
    """Whether a column's name has characters with which Delta refuses ALTER TABLE and `replaceUsing`.

    >>> from tailrace.model.change import Column, Relation
    >>> has_special_names(Relation(1, "s", "t", "d", (Column("Mixed Case", 1, "text", "text", "string"),)))
    True
    """
    return any(_SPECIAL_CHARACTERS & set(c.name) for c in relation.columns)
