"""The contract that every target fulfils."""

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


TARGET_MISSING = (
    "the target has no baseline of the table: it was removed, created again or restored to an earlier time, "
    "or the task reads another target now"
)
TARGET_MISSING_HINT = "put the target back where it was, or take a new baseline: `tailrace resync TASK %s`"


def missing_baseline(table: str) -> BaselineNeededError:
    """Returns the error for a table whose target has lost its baseline."""
    return BaselineNeededError(TARGET_MISSING, where=table, hint=TARGET_MISSING_HINT % table)


@dataclass(frozen=True)
class Constraints:
    """Constraints of a target on its rows.

    Attributes:
        not_null: the columns that may not be NULL.
        checks: name -> SQL condition; a row for which it is not true is refused.
    """

    not_null: frozenset[str] = frozenset()
    checks: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.not_null or self.checks)


@runtime_checkable
class Target(Protocol):
    """Tables that follow source tables. `tailrace.testing.targets.TargetConformance` tests these promises:

    - One batch is one commit: a reader sees the whole batch or nothing of it. The same commit has the
      progress.
    - After the commit the target has exactly the relation's columns, and the rows that the source had after
      the last change of the batch (`range.end`). `progress` is `range.end`, even for a batch without rows.
    - Changes up to the progress are skipped. A batch that ends there changes nothing (plan `none`). So any
      batch may be merged again, for example after a crash.
    - The rows of a batch may be in any order; (`change_seq`, `change_oper`) orders them.
    - Inserts of existing keys and updates of missing keys are written (upsert). Deletes of missing keys do
      nothing; for keyless tables they are counted in `ApplyOutcome.missing`.
    - A batch of a table that does not exist is refused with BaselineNeededError; `alter` creates the table.
    - A NULL in the row key is refused with ApplyError, and nothing is written.
    - A shared target holds rows of several sources, which the constants of `TargetLocation` identify. Changes
      of one source, including truncates and loads, do not affect the rows of others. Each source has its own
      progress. Columns of a shared target may be added and become wider; none is removed.
    - Threads may merge different tables at the same time, but not the same table.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities beyond this contract; they never change."""

    def exists(self, table: str) -> bool:
        """Whether the target has the table."""

    def progress(self, table: str) -> ChangeNumber | None:
        """Returns the last change number that was applied; None if nothing was applied, or without a
        table."""

    def version_at(self, table: str, number: int) -> int | None:
        """Returns the version with the changes up to a number and no later ones (Delta: the newest such
        version). None if the target has no versions."""

    def path(self, table: str) -> str:
        """Returns the path of the table, or its quoted name in a database. A shared table has rows of other
        sources, too."""

    def merge(self, batches: Sequence[ChangeBatch]) -> Sequence[MergeResult | TailraceError | None]:
        """Merges batches of different tables by tasks, in parallel. Each batch is one commit with its
        progress, based on exactly the rows that were read.

        Returns, in the order of the batches, the result, or the error of a table whose changes were not
        applied. None: the memory of a database's merge does not hold the batch, and nothing was done.

        If the target has the first changes of a batch already, only these are merged, for the key log. The
        caller merges the rest.
        """

    def loads_parts(self, table: str) -> bool:
        """Whether `load` accepts `Parts` for the table, so that it is loaded without the JVM."""

    def load(
        self, relation: Relation, rows: DataFrame | Parts, after: int, rule_columns: Mapping[str, str] = {}
    ) -> int:
        """Replaces the rows of a table by a baseline, and returns the target's version.

        Creates the table if it does not exist. If it is not shared, it has the relation's layout afterwards.
        The same call again has the same result.

        Args:
            relation: the table and its layout.
            rows: the rows; `Parts` have exactly the columns and types of the relation (see `loads_parts`).
            after: the progress afterwards.
            rule_columns: columns that rules add to the target (name -> Spark SQL type). A shared or manually
                created table may have them: they stay, and are NULL.

        Raises:
            BaselineNeededError: the target is shared and has other columns, or it refuses the rows. Nothing
                was written.
        """

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        """Changes the layout, in which `attnum` identifies columns; creates the table if it does not exist.

        The same call again does nothing. The progress stays. With `dry_run` nothing is changed or locked, and
        errors that can be detected that way are raised.

        Raises:
            ApplyError: the values of a column cannot be converted faithfully to its new type; or the target
                is shared, and a column would be removed or replaced.
        """

    def columns(self, table: str) -> dict[str, str]:
        """Returns the names and Spark SQL types of the table's columns, in order."""

    def rule_columns(self, table: str) -> set[str]:
        """Returns the columns that rules have added to the table (see `targets.rule_columns`)."""

    def rows_with_keys(self, relation: Relation, keys: DataFrame) -> DataFrame:
        """Returns rows in the relation's columns and types, NULL in missing columns: those with the `keys`
        (key columns), and possibly more."""

    def constraints(self, table: str) -> Constraints:
        """Returns the constraints that a merge has to check itself because the target does not."""

    def maintain(self, table: str, small_files: int, past: Past) -> None:
        """Compacts files if there are at least `small_files` small ones, and deletes files that no version
        that is kept (`past`) needs. Rows and progress stay."""
