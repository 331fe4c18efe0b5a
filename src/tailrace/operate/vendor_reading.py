"""Reads vendors' tables for `tailrace apply`, with the names and columns of their targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.fs

from ..apply.vendor import kept_columns, numbering, spelling
from ..apply.vendor.incoming import Incoming
from ..apply.vendor.late_changes import LateChanges
from ..apply.vendor.numbering import Numbers
from ..apply.vendor.table_names import TableNames, refuse_unnamed
from ..engine.rules import Rules
from ..errors import ApplyError, FormatError
from ..formats import checks, convert
from ..formats.base import Read
from ..lake.parts import filesystem
from ..model.change import ChangeTable
from ..targets.base import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def named(side: convert.Side, names: TableNames) -> convert.Side:
    """Returns a side whose tables keep their names of earlier calls."""
    if (option := side.form.ids_option) is None:
        return side
    known = names.of(getattr(side.options, option))
    return replace(side, options=side.options.model_copy(update={option: known}))


def read(
    spark: SparkSession, side: convert.Side, passed: LateChanges
) -> tuple[Read, Read, dict[str, Numbers]]:
    """Returns the input as it was read, the input with ordered change tables, and their change numbers.

    Raises:
        ApplyError: the target of some changes is unknown.
    """
    found = convert.read(spark, side)
    refuse_unnamed(passed.strange(found.unnamed), side.form.ids_option, side.path)
    numbers = {n: numbering.look(ct, passed.upto(n)) for n, ct in found.changes.items()}
    ordered = {n: checks.in_order(ct) if numbers[n].unclear else ct for n, ct in found.changes.items()}
    return found, replace(found, changes=ordered), numbers


def with_kept(
    target: Target, changes: Mapping[str, ChangeTable], found: Read, rules: Rules
) -> dict[str, ChangeTable]:
    """Returns the change tables with the columns that stay in their targets, in the targets' spelling."""
    changes = {n: spelling.spelled(target, n, ct) for n, ct in changes.items()}
    some = found.partial | found.left_out
    return {
        n: kept_columns.kept(target, n, ct, rules, absent=n in found.partial) if n in some else ct
        for n, ct in changes.items()
    }


class WholeFiles:
    """Checks that each file of a side has as many rows as its metadata records.

    Files are checked before they are read: a file that is complete then is complete when it is read. They are
    checked again if other files have arrived since.
    """

    def __init__(self, spark: SparkSession, side: convert.Side, *, fail: bool) -> None:
        self._spark, self._side, self._fail = spark, side, fail
        self._names_before = self._names()
        self.notes = self._odd()

    def again(self) -> None:
        """Checks the files again after they were read, if there are others.

        Raises:
            FormatError: a file is incomplete, and that is a failure.
        """
        if self._names() != self._names_before:
            self.notes = self._odd()

    def _names(self) -> set[str]:
        if self._side.form.complete is None:
            return set()
        fs, root = filesystem(self._side.path)
        if fs.get_file_info(root).is_file:
            return {root}
        found = fs.get_file_info(pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True))
        return {one.path for one in found if one.is_file}

    def _odd(self) -> list[str]:
        found = convert.odd_files(self._spark, self._side)
        if found and self._fail:
            hint = "bring the whole files; `--on-bad reject` applies the rows that are there"
            raise FormatError("; ".join(found), where=self._side.path, hint=hint)
        return found


def known(
    numbers: Mapping[str, Numbers], rows: Mapping[str, DataFrame], now: Mapping[str, ChangeTable]
) -> dict[str, Incoming]:
    """Returns the results of `incoming.look` that the numbers already have.

    They exist for tables whose rows in `now` are still those in `rows`: no mapping, no column of the target
    and no other numbers have replaced them.
    """
    return {
        n: found
        for n, ct in now.items()
        if ct.df is rows[n] and not numbers[n].unclear and (found := numbers[n].incoming) is not None
    }


def with_columns(
    found: Read, good: Mapping[str, ChangeTable], new: Collection[str]
) -> tuple[Read, dict[str, ChangeTable]]:
    """Separates tables without columns, which are not applied.

    Args:
        found: the input.
        good: its change tables.
        new: the tables with changes that their targets do not have.

    Returns:
        The input, in which tables without columns are not applied, and the other change tables.

    Raises:
        ApplyError: a table that has a target has only truncates, which do not name its columns.
    """
    bare = {n: "it has no columns but headers" for n, ct in good.items() if not ct.columns}
    if odd := sorted(bare.keys() & (found.partial | found.left_out) & set(new)):
        raise ApplyError(
            f"{', '.join(odd)}: the columns and the key of the changes are unknown",
            where=odd[0],
            hint="apply them together with the files after them, or declare the columns "
            "(SQDR: `tailrace_columns`, Qlik: DFM files)",
        )
    rest = {n: ct for n, ct in good.items() if n not in bare}
    return replace(found, apart={**bare, **found.apart}), rest
