"""How `apply` reads vendors' tables: under the names, and with the columns, that their targets have."""

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
    """A side whose tables keep the names that they had before."""
    if (option := side.form.ids_option) is None:
        return side
    known = names.of(getattr(side.options, option))
    return replace(side, options=side.options.model_copy(update={option: known}))


def read(
    spark: SparkSession, side: convert.Side, passed: LateChanges
) -> tuple[Read, Read, dict[str, Numbers]]:
    """What is read, the same with change tables in order, and their change numbers.

    Raises:
        ApplyError: it is not known which target's changes some of them are.
    """
    found = convert.read(spark, side)
    refuse_unnamed(passed.strange(found.unnamed), side.form.ids_option, side.path)
    numbers = {n: numbering.look(ct, passed.upto(n)) for n, ct in found.changes.items()}
    ordered = {n: checks.in_order(ct) if numbers[n].unclear else ct for n, ct in found.changes.items()}
    return found, replace(found, changes=ordered), numbers


def with_kept(
    target: Target, changes: Mapping[str, ChangeTable], found: Read, rules: Rules
) -> dict[str, ChangeTable]:
    """The change tables, with the columns that stay in their targets, as these spell them."""
    changes = {n: spelling.spelled(target, n, ct) for n, ct in changes.items()}
    some = found.partial | found.left_out
    return {
        n: kept_columns.kept(target, n, ct, rules, absent=n in found.partial) if n in some else ct
        for n, ct in changes.items()
    }


class WholeFiles:
    """The files of a side: whether each has as many rows as its metadata says. They are looked at before they
    are read, because one that is whole then is whole when it is read; once more if others have come since."""

    def __init__(self, spark: SparkSession, side: convert.Side, *, fail: bool) -> None:
        self._spark, self._side, self._fail = spark, side, fail
        self._there = self._names()
        self.notes = self._odd()

    def again(self) -> None:
        """To be called when they were read.

        Raises:
            FormatError: some are not whole, if that is a failure.
        """
        if self._names() != self._there:
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
    """What `incoming.look` would find, of the tables whose `rows` are still those `now` of which the numbers
    tell: no mapping, no column of the target and no other numbers have made others of them."""
    return {
        n: found
        for n, ct in now.items()
        if ct.df is rows[n] and not numbers[n].unclear and (found := numbers[n].incoming) is not None
    }


def with_columns(
    found: Read, good: Mapping[str, ChangeTable], new: Collection[str]
) -> tuple[Read, dict[str, ChangeTable]]:
    """What was read, with the tables without columns among those that no target takes; the other tables.

    Args:
        found: what was read.
        good: its change tables.
        new: those that have changes which their targets lack.

    Raises:
        ApplyError: rows, truncates alone, do not say which columns a table has that has a target.
    """
    bare = {n: "it has no columns but headers" for n, ct in good.items() if not ct.columns}
    if odd := sorted(bare.keys() & (found.partial | found.left_out) & set(new)):
        raise ApplyError(
            f"{', '.join(odd)}: nothing says which columns and which key the changes are of",
            where=odd[0],
            hint="apply them together with the files after them, or declare the columns "
            "(SQDR: `tailrace_columns`, Qlik: DFM files)",
        )
    rest = {n: ct for n, ct in good.items() if n not in bare}
    return replace(found, apart={**bare, **found.apart}), rest
