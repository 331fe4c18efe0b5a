"""The contract of a target: where changes are applied to, and what every implementation must keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..errors import BaselineNeededError, TailraceError
from ..lake.thinning import Past
from ..model.change import Relation
from ..model.positions import ChangeNumber
from .change_batch import ChangeBatch
from .merge_result import MergeResult
from .parts import Parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .capabilities import Capabilities


GONE = (
    "the target has no baseline of the table: it was removed, made again or restored from an earlier time, "
    "or the task reads another target now"
)
GONE_HINT = "put the target back where it was, or take a new baseline: `tailrace resync TASK %s`"


def gone(table: str) -> BaselineNeededError:
    """Returns the error for a table whose target has lost its baseline."""
    return BaselineNeededError(GONE, where=table, hint=GONE_HINT % table)


@dataclass(frozen=True)
class Demands:
    """Conditions of a target on its rows: columns that may not be NULL, and CHECKs, name -> condition (SQL;
    a row for which it is not true is refused)."""

    not_null: frozenset[str] = frozenset()
    checks: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.not_null or self.checks)


@runtime_checkable
class Target(Protocol):
    """A place that follows source tables. `tailrace.testing.targets.TargetConformance` checks all of this.

    - One batch is one commit: a reader sees all of it or none. The progress is in the same commit.
    - Afterwards the target has exactly the relation's columns, and the rows that the source had after the
      change `upto`; `progress` is `upto`, also for a batch without rows.
    - A batch whose `upto` is reached already changes nothing (plan `none`); changes at or below the reached
      number are skipped. So any batch may come again, after a crash too.
    - Rows of a batch come in any order; (`change_seq`, `change_oper`) orders them.
    - Inserts of keys that exist and updates of keys that do not are written all the same (upsert); deletes of
      keys that do not exist do nothing. For tables without key they are counted in `Outcome.missing`.
    - A batch of a table that does not exist is refused with BaselineNeededError; `alter` creates it.
    - A NULL in the row key is refused with ApplyError, and nothing is written.
    - A target that several sources feed holds rows of each; the constants of its `Place` tell them. What
      concerns one source, a truncate or a load too, leaves the others' rows alone, and each has a progress of
      its own. Such a target gets columns, or wider ones, and loses none.
    - Different tables may be applied from different threads at once; one table only from one at a time.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do besides; the same as long as it lives."""

    def exists(self, table: str) -> bool:
        """Whether the target has that table."""

    def progress(self, table: str) -> ChangeNumber | None:
        """The last change number that was applied; None if nothing was, or if the table does not exist."""

    def version_at(self, table: str, number: int) -> int | None:
        """The version that has the changes up to a number and no later ones (Delta: the newest such one);
        None: the target has no versions."""

    def path(self, table: str) -> str:
        """Where the rows of the table are: a path, or the quoted name in a database. Rows of other sources
        may be there, too."""

    def merge(self, batches: Sequence[ChangeBatch]) -> Sequence[MergeResult | TailraceError | None]:
        """Merges batches of different tables by tasks, side by side. Each batch is one commit with its
        progress, made from the rows that were read.

        Returns, in the order of the batches, the result, or the error of a table whose changes were not
        applied. None: the memory of a database's merge does not hold the batch, and nothing was done.

        If the target has the first changes of a batch already, the batch is merged up to there, because the
        key log alone needs them. The caller merges the rest.
        """

    def loads_parts(self, table: str) -> bool:
        """Whether `load` takes `Parts` for the table: it is loaded without the JVM."""

    def load(
        self, relation: Relation, rows: DataFrame | Parts, after: int, rule_columns: Mapping[str, str] = {}
    ) -> int:
        """Makes rows (the relation's columns) all that the target has of a table, the change number `after`
        reached: a baseline. Makes the table when it does not exist; one that no others feed has the
        relation's layout then. The same call again gives the same. Gives the target's version.

        `rows`: `Parts` have the relation's columns, in its types (see `loads_parts`).
        `rule_columns`: columns (name -> Spark SQL type) that rules add to the target. Where others feed it,
        or somebody made it, it may have them: they stay, and are NULL.

        Raises:
            BaselineNeededError: others feed the target, and it has other columns; the rows are refused.
                Nothing was written.
        """

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        """Changes the layout, matching columns by `attnum`; makes the table when it does not exist.

        The same call again does nothing. Progress stays. `dry_run`: nothing is changed or locked; what can be
        told without that is refused.

        Raises:
            ApplyError: a column's type became one its values cannot be turned into faithfully; others feed
                the target, and a column would go or become another one.
        """

    def columns(self, table: str) -> dict[str, str]:
        """Names and Spark SQL types of the columns the table has now, in order."""

    def rule_columns(self, table: str) -> set[str]:
        """Those of its columns that rules have added (`apply.rule_columns`)."""

    def rows_there(self, relation: Relation, keys: DataFrame) -> DataFrame:
        """The rows under keys (columns: the key's), all or at least those among `keys`, in the relation's
        columns and types; NULL in columns that the target lacks."""

    def demands(self, table: str) -> Demands:
        """What the table asks of rows that a target cannot be given at all otherwise."""

    def maintain(self, table: str, small_files: int, past: Past) -> None:
        """Joins files once there are that many small ones, and drops files that no version within
        `vacuum_after` seconds needs; rows and progress stay."""
