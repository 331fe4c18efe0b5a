"""Reads vendors' tables for `tailrace apply`, with the names and columns that their targets have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.fs

from ..apply.vendor import sequence_stats
from ..apply.vendor.applied_files import AppliedFiles
from ..apply.vendor.change_stats import ChangeStats
from ..apply.vendor.sequence_stats import SequenceStats
from ..apply.vendor.table_names import TableNames, refuse_unnamed
from ..apply.vendor.target_columns import with_target_columns, with_target_spelling
from ..engine.rules import Rules
from ..errors import ApplyError, FormatError
from ..formats import checks, convert
from ..formats.base import Read
from ..lake.storage import filesystem
from ..model.change import ChangeTable
from ..targets.base import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def with_names(side: convert.Side, names: TableNames) -> convert.Side:
    """The side, with the names that its tables had in earlier calls."""
    if (option := side.form.ids_option) is None:
        return side
    known = names.by_id(getattr(side.options, option))
    return replace(side, options=side.options.model_copy(update={option: known}))


def read(
    spark: SparkSession, side: convert.Side, applied: AppliedFiles
) -> tuple[Read, Read, dict[str, SequenceStats]]:
    """Returns the tables, the same with bad rows marked where the order is ambiguous, and their statistics.

    Raises:
        ApplyError: a table has no name, so its target is not known.
    """
    found = convert.read(spark, side)
    refuse_unnamed(applied.unknown(found.unnamed), side.form.ids_option, side.path)
    stats = {n: sequence_stats.scan(ct, applied.end(n)) for n, ct in found.changes.items()}
    ordered = {n: checks.in_order(ct) if stats[n].ambiguous else ct for n, ct in found.changes.items()}
    return found, replace(found, changes=ordered), stats


def as_in_target(
    target: Target, changes: Mapping[str, ChangeTable], found: Read, rules: Rules
) -> dict[str, ChangeTable]:
    """The change tables with the spelling of their targets, and with the columns that stay there."""
    changes = {n: with_target_spelling(target, n, ct) for n, ct in changes.items()}
    some = found.partial | found.left_out
    return {
        n: with_target_columns(target, n, ct, rules, absent=n in found.partial) if n in some else ct
        for n, ct in changes.items()
    }


class IncompleteFiles:
    """Notes on files that have another number of rows than their metadata says.

    The files are checked before they are read, because a file that is complete then is complete when it is
    read. `check_new` checks again if others have arrived in between.
    """

    def __init__(self, spark: SparkSession, side: convert.Side, *, fail: bool) -> None:
        self._spark, self._side, self._fail = spark, side, fail
        self._checked = self._names()
        self.notes = self._check()

    def check_new(self) -> None:
        """Checks the files again if others have arrived; to be called after they were read.

        Raises:
            FormatError: files are incomplete, if that is a failure.
        """
        if self._names() != self._checked:
            self.notes = self._check()

    def _names(self) -> set[str]:
        if self._side.form.complete is None:
            return set()
        fs, root = filesystem(self._side.path)
        if fs.get_file_info(root).is_file:
            return {root}
        found = fs.get_file_info(pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True))
        return {one.path for one in found if one.is_file}

    def _check(self) -> list[str]:
        found = convert.odd_files(self._spark, self._side)
        if found and self._fail:
            hint = "provide the complete files; `--on-bad reject` applies the rows that they have"
            raise FormatError("; ".join(found), where=self._side.path, hint=hint)
        return found


def known_stats(
    stats: Mapping[str, SequenceStats], rows: Mapping[str, DataFrame], now: Mapping[str, ChangeTable]
) -> dict[str, ChangeStats]:
    """The statistics of the rows of change tables, as far as they are known already.

    They are not known of a table whose rows are no longer the `rows` that were scanned: because of a mapping,
    columns of the target, or combined numbers.
    """
    return {
        n: known
        for n, ct in now.items()
        if ct.df is rows[n] and not stats[n].ambiguous and (known := stats[n].rows) is not None
    }


def without_bare(
    found: Read, good: Mapping[str, ChangeTable], changed: Collection[str]
) -> tuple[Read, dict[str, ChangeTable]]:
    """Sets aside the change tables without data columns. Returns `found` with their reasons, and the others.

    Args:
        found: the tables that were read.
        good: their change tables.
        changed: those whose target exists, and does not have all changes.

    Raises:
        ApplyError: a part with truncates alone, which does not say which columns its table has.
    """
    bare = {n: "it has no columns but headers" for n, ct in good.items() if not ct.columns}
    if undeclared := sorted(bare.keys() & (found.partial | found.left_out) & set(changed)):
        raise ApplyError(
            f"{', '.join(undeclared)}: the columns and the key of the changes are unknown",
            where=undeclared[0],
            hint="apply them together with the files after them, or declare the columns "
            "(SQDR: `tailrace_columns`, Qlik: DFM files)",
        )
    rest = {n: ct for n, ct in good.items() if n not in bare}
    return replace(found, apart={**bare, **found.apart}), rest
