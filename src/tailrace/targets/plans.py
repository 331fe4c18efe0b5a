"""The plans of batches, and the limits by which one is chosen.

Every plan gives the same rows in one commit; they differ in cost alone, which the conformance suite
(`tailrace.testing.targets`) proves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.columns import KEPT
from ..model.change import Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLANS: dict[str, str] = {
    "none": "the target already has this batch, or there is nothing in it: no row is touched",
    "append": "no row of the target can be meant (only inserts came and there is no key, or it is an "
    "archive): parts are written and committed",
    "task_local": "one task decides the changes and rewrites the files they touch",
    "rewrite": "tasks decide the changes of a shard each, by key, and others rewrite the files that change; "
    "no deletion vectors",
    "merge": "Spark's MERGE of what remains of the changes, for targets that only Spark may write "
    "(partitions, constraints, a change feed, deletion vectors), or where more bytes than `rewrite_limit` "
    "would be rewritten: it marks rows in deletion vectors",
    "replace_all": "a truncate came: what remains of the changes becomes the whole target",
    "bag": "the same as `merge` for a table without key: Spark writes the target again, with as many copies "
    "of each row as changes leave",
    "upsert": "PostgreSQL: the rows that result are staged by COPY, one transaction deletes and upserts by "
    "key",
}
"""Plan name -> what it does and when."""

SPECIAL = ("I", "U", "D", "T", "key_changes", "absent")
"""Keys of `ChangeBatch.counts`: changes by operation, key changes, images that lack columns."""

UNKNOWN: Mapping[str, int] = dict.fromkeys(SPECIAL, 1)
"""Counts for changes nobody has counted: anything may occur."""

REWRITE_SHARE = 20
"""A batch of a twentieth of the target's rows meets next to every file, wherever its keys are: to mark rows
in deletion vectors costs a pass over the target more than to write it anew."""

REWRITE_BYTES = 4 << 30
"""Up to so many touched bytes are written anew by smaller batches, too: marking rows has a price of its own
(docs/performance.md)."""

_AWKWARD = frozenset(" ,;{}()\n\t=`.")


@dataclass(frozen=True)
class FoldedChanges:
    """What is left of a batch's changes, the one thing that all plans write.

    Attributes:
        df: the `extra` columns (see `engine.columns`), then those of the layout. With a key a row a key,
            `OP`, and `KEPT` when something of the target's row may stay; without one a different row each,
            `TAKE` and `ADD`; of inserts alone just the rows.
        extra: which of `OP`, `KEPT`, `TAKE`, `ADD` there are.
        replaces: a truncate was among the changes, so nothing of the target before it remains.
        keys: keys that are touched, or more, read at less cost than `df`; None: there is no key.
    """

    df: DataFrame
    extra: tuple[str, ...]
    replaces: bool = False
    keys: DataFrame | None = None

    @property
    def partial(self) -> bool:
        """Whether something of the target's rows may stay."""
        return KEPT in self.extra


@dataclass(frozen=True)
class TableSize:
    """A target's size: bytes and files in force; `vectors`: it has deletion vectors (a one-way upgrade);
    `rows`: how many there are (0: not known)."""

    bytes: int
    files: int
    vectors: bool = False
    rows: int = 0


@dataclass(frozen=True)
class Limits:
    """`local_bytes`: batches that touch files of up to so many bytes are merged inside one task; smaller
    targets always are. `rewrite_bytes`: batches that touch up to so many bytes in a larger target write these
    anew; others mark rows in deletion vectors. `rewrite_share`: batches of at least one change for so many
    rows write anew whatever they touch; 0: never.
    """

    local_bytes: int = 1 << 30
    rewrite_share: int = REWRITE_SHARE
    rewrite_bytes: int = REWRITE_BYTES

    def most(self, changes: int, size: TableSize) -> int:
        """How many bytes of touched files a batch of so many changes may write anew."""
        return size.bytes if self.is_large(changes, size) else self.rewrite_bytes

    def is_large(self, changes: int, size: TableSize) -> bool:
        """Whether so many changes meet next to every file, wherever their keys are."""
        return bool(size.rows) and changes * self.rewrite_share >= size.rows


def is_local(size: TableSize, limits: Limits) -> bool:
    """Whether a target of that size is one task's work."""
    return not size.vectors and size.bytes < limits.local_bytes


def has_special_names(relation: Relation) -> bool:
    """Whether a column's name has characters that Delta refuses to alter or to replace by.

    >>> from tailrace.model.change import Column, Relation
    >>> awkward(Relation(1, "s", "t", "d", (Column("Mixed Case", 1, "text", "text", "string"),)))
    True
    """
    return any(_AWKWARD & set(c.name) for c in relation.columns)
