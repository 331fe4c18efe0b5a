"""What is applied (`TableBatch`) and how (`choose`): the plans, declared, and the rule that picks one.

Every plan gives the same rows in one commit; they differ in cost alone, which the conformance suite
(`tailrace.testing.targets`) proves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from ..engine.columns import KEPT
from ..model.change import ChangeTable, Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLANS: dict[str, str] = {
    "none": "the target already has this batch, or there is nothing in it: no row is touched",
    "append": "no row of the target can be meant (it is empty, or only inserts came and there is no key): "
    "tasks write parquet parts side by side, the driver commits them",
    "task_local": "one task folds the changes and rewrites the files they touch (after a truncate: all of "
    "them); no snapshot of the target in the JVM",
    "replace_all": "a truncate came, and the batch is not one task's: the rows folded after it become the "
    "whole target",
    "rewrite": "tasks side by side find the rows that the changes meet and write the files that have some "
    "anew; no deletion vectors",
    "replace_keys": "the changes touch too many bytes to write them anew, full images and no deletes: Delta "
    "replaces rows by key, with deletion vectors",
    "purge": "the target has deletion vectors, and as many changes come as would touch every file anyway: "
    "Spark purges the vectors, then as `rewrite`",
    "merge": "the same with deletes or partial images: Spark MERGE, pruned to the batch's range of keys; "
    "also when a task has not the memory",
    "upsert": "PostgreSQL: tasks stage the folded rows by COPY, one transaction deletes and upserts by key",
    "bag": "a large table without key, or one whose changes are decided: as many copies of each full row are "
    "added or taken away as changes say; the target is rewritten",
}
"""Plan name -> what it does and when."""

SPECIAL = ("I", "U", "D", "T", "key_changes", "absent")
"""Keys of `TableBatch.counts`: changes by operation, key changes, images that lack columns."""

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
class Folded:
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
class TableBatch:
    """Changes of one table up to a change number, all of one layout.

    Attributes:
        table: `schema.name`; names the target.
        relation: the layout; the target has exactly its columns.
        changes: the change rows. Those whose number the target has already reached are skipped.
        upto: the change number that the target has reached once this is applied.
        counts: how many rows of each kind there may be (keys: `SPECIAL`; a missing key counts as 0).
            Upper bounds of all that `changes` holds, wherever slices begin: 0 means that none occurs, and
            the step for it is skipped. So whoever counts counts every store batch that has changes later
            than what the table has reached.
        tolerant: the window of the table's baseline was open: some of the changes may be in the target's rows
            already, in part. They are upserted, whatever rules the table has.
        looked: what `Target.look` gave before it was looked what the changes meet: they are applied to the
            rows that were there then, or refused with ConcurrentCommitError. None: nobody looked.
        folded: what is left of the changes, when rules have decided them; `counts` are those of its rows
            then: `I` to be written, `D` deleted, `absent` those of which something stays.
        based: the target has a baseline of the table: where it is gone, it is not made anew without that.
    """

    table: str
    relation: Relation
    changes: ChangeTable
    upto: int
    counts: Mapping[str, int] = field(default_factory=lambda: UNKNOWN)
    tolerant: bool = False
    looked: int | None = None
    folded: Folded | None = None
    based: bool = False

    def may(self, *kinds: str) -> bool:
        """Whether any of these kinds may occur.

        >>> TableBatch("s.t", None, None, 1, {"I": 3, "D": 0}).may("D", "U")
        False
        """
        return any(self.counts.get(k, 0) for k in kinds)

    @property
    def rows(self) -> int:
        """About how many changes there are, as far as counted."""
        return sum(self.counts.get(k, 0) for k in ("I", "U", "D", "T"))

    @staticmethod
    def there(table: str, relation: Relation, upto: int, *, based: bool = False) -> TableBatch:
        """The batch of changes that a target has: it changes nothing, is not looked at, and its outcome says
        with which version they came."""
        none = ChangeTable(cast("DataFrame", None), relation.key, [])
        return TableBatch(table, relation, none, upto, {}, based=based)


@dataclass(frozen=True)
class Size:
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

    def most(self, changes: int, size: Size) -> int:
        """How many bytes of touched files a batch of so many changes may write anew."""
        return size.bytes if self.is_large(changes, size) else self.rewrite_bytes

    def is_large(self, changes: int, size: Size) -> bool:
        """Whether so many changes meet next to every file, wherever their keys are."""
        return bool(size.rows) and changes * self.rewrite_share >= size.rows


def choose(batch: TableBatch, size: Size, limits: Limits, *, truncated: bool = False) -> str:
    """The cheapest plan (a name in `PLANS`) that gives the right rows.

    >>> from tailrace.model.change import Column, Relation
    >>> relation = Relation(1, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
    >>> batch = TableBatch("s.t", relation, None, 9, {"I": 5, "U": 2})
    >>> choose(batch, Size(10_000, 2), Limits())
    'task_local'
    >>> choose(batch, Size(5 << 30, 40), Limits())
    'rewrite'
    >>> choose(batch, Size(5 << 30, 40, vectors=True), Limits())
    'replace_keys'
    >>> choose(batch, Size(0, 0), Limits())
    'append'
    >>> deletes = TableBatch("s.t", relation, None, 9, {"D": 100})
    >>> [choose(deletes, Size(5 << 30, 40, True, rows), Limits()) for rows in (1_000, 1_000_000)]
    ['purge', 'merge']
    """
    if truncated:
        return "replace_all"
    if not batch.relation.key:
        here = batch.folded is None and size.files and is_local(size, limits)
        return "append" if not batch.may("U", "D") else "task_local" if here else "bag"
    if size.files == 0:
        return "append"
    if is_local(size, limits):
        return "task_local"
    if not size.vectors:
        return "rewrite"
    marks = choose_marks(batch)
    return "purge" if marks == "merge" and limits.is_large(batch.rows, size) else marks


def choose_marks(batch: TableBatch) -> str:
    """The plan that marks rows in deletion vectors instead of writing files anew."""
    # Delta's replace by key and its ALTER TABLE refuse names that MERGE does well with.
    simple = not batch.may("D", "key_changes", "absent") and not awkward(batch.relation)
    return "replace_keys" if simple else "merge"


def is_local(size: Size, limits: Limits) -> bool:
    """Whether a target of that size is one task's work."""
    return not size.vectors and size.bytes < limits.local_bytes


def awkward(relation: Relation) -> bool:
    """Whether a column's name has characters that Delta refuses to alter or to replace by.

    >>> from tailrace.model.change import Column, Relation
    >>> awkward(Relation(1, "s", "t", "d", (Column("Mixed Case", 1, "text", "text", "string"),)))
    True
    """
    return any(_AWKWARD & set(c.name) for c in relation.columns)
