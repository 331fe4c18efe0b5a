"""Applies change tables that others made: vendors' tables, read by a format, to a target; no capture, no
task.

Each change table is one batch, and its greatest change number the target's progress: the same tables again
change nothing, and newer files of the same vendor go on where the last call ended.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import FormatError
from ...model.change import BEFORE, UPDATE, ChangeTable, Column, Relation
from ...model.positions import ChangeRange, order_key
from ...model.sequence import NUMBER_DIGITS, TIME_DIGITS, WIDTH
from ...targets import keyless as whole_rows
from ...targets.base import Target
from ...targets.change_batch import ChangeBatch
from ...targets.merge_result import ApplyOutcome
from ...targets.merge_rows import merge_rows
from ...targets.plans import SPECIAL

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Incoming:
    """What a change table holds: the layout it is applied with, its greatest change number, rows by kind, its
    least change number (-1: no rows); of a table without key the first change that does not say which row it
    is about, and why (None: all do)."""

    relation: Relation
    upto: int
    counts: dict[str, int]
    least: int = -1
    wrong: tuple[str, str] | None = None


def relation_of(changes: ChangeTable) -> Relation:
    """The layout of a change table that no source described: columns are known by their names alone, so a
    renamed column is a new one."""
    schema, _, table = changes.name.rpartition(".")
    columns = []
    for name in changes.columns:
        kind = changes.df.schema[name].dataType.simpleString()
        columns.append(Column(name, zlib.crc32(name.encode()), kind, kind, kind, key=name in changes.key))
    # Identity f: what images lack is told by `column_mask`, row by row.
    return Relation(zlib.crc32(changes.name.encode()), schema, table, "f", tuple(columns))


def look(changes: ChangeTable) -> Incoming:
    """Counts a change table in one pass (columns of its header only).

    Raises:
        FormatError: a change sequence is not 35 digits, or its number is beyond 64 bits.
    """
    from pyspark.sql import functions as F

    seq = F.col(changes.header("change_seq"))
    number = F.substring(seq, TIME_DIGITS + 1, NUMBER_DIGITS).try_cast("bigint")
    wrong = number.isNull() | (F.length(seq) != WIDTH)
    found = changes.df.agg(
        F.max(number).alias("upto"),
        F.min(number).alias("least"),
        F.max(F.when(wrong, F.coalesce(seq, F.lit("NULL")))).alias("wrong"),
        *(F.count_if(counts).alias(kind) for kind, counts in kinds(changes).items()),
        *([] if changes.key else whole_rows.aggregates(changes)),
    ).first()
    assert found is not None  # noqa: S101 - an aggregate without groups has one row
    if found["wrong"] is not None:
        raise FormatError(
            f"{found['wrong']!r} is no change sequence of {WIDTH} digits",
            where=changes.name,
            hint="`tailrace inspect` shows what a format makes of the table",
        )
    counts = {kind: int(found[kind]) for kind in SPECIAL}
    upto, least = (-1 if found[n] is None else int(found[n]) for n in ("upto", "least"))
    unclear = None if changes.key else whole_rows.first_wrong(changes, found)
    return Incoming(relation_of(changes), upto, counts, least, unclear)


def kinds(changes: ChangeTable) -> dict[str, SparkColumn]:
    """Which rows of a change table count as what: the names of `SPECIAL`, and a condition for each."""
    from pyspark.sql import functions as F

    oper, mask = (F.col(changes.header(h)) for h in ("change_oper", "column_mask"))
    # B rows may hold old keys; whether they do is found while folding.
    special = {"absent": mask.isNotNull() & (oper == UPDATE), "key_changes": oper == BEFORE}
    return {kind: oper == kind for kind in SPECIAL if kind not in special} | special


def apply(target: Target, changes: Mapping[str, ChangeTable], folder: str) -> dict[str, ApplyOutcome]:
    """Applies change tables, one batch each. Returns by table what was done; `folder`: as of `merge_rows`.

    Raises:
        FormatError: see `look`.
        ApplyError: changes that cannot be applied; tables before it in alphabetical order are applied.
    """
    done = {}
    for name, table in sorted(changes.items()):
        done[name] = apply_one(target, table, look(table), folder)
    return done


def apply_one(target: Target, changes: ChangeTable, found: Incoming, folder: str) -> ApplyOutcome:
    """Applies one change table that `look` has counted.

    One that the target has passed changes nothing, the layout included: it may be an older one.

    Raises:
        ApplyError: a table without key, and a change that does not say which row it is about.
    """
    if not is_new(target, found):
        return ApplyOutcome()
    refuse_unclear(target, changes, found)
    lay_out(target, found.relation)
    batch = ChangeBatch(
        found.relation.table, found.relation, ChangeRange(None, found.upto), counts=found.counts
    )
    return merge_rows(target, changes, batch, folder)


def is_new(target: Target, found: Incoming) -> bool:
    """Whether a change table has a change that the target has not passed."""
    return found.upto > reached(target, found.relation.table)


def reached(target: Target, table: str) -> int:
    """The last change number of a target; -1 if nothing was applied."""
    return order_key(target.progress(table)) if target.exists(table) else -1


def refuse_unclear(target: Target, changes: ChangeTable, found: Incoming) -> None:
    """Raises ApplyError for a change of a table without key that does not say which row it is about, if the
    target has not passed it already."""
    if found.wrong is not None:
        fresh = newer(changes, reached(target, changes.name))
        whole_rows.refuse(changes.name, look(fresh).wrong)


def lay_out(target: Target, coming: Relation, *, dry_run: bool = False) -> None:
    """Gives a target the layout of the changes, columns known by name; errors, and `dry_run`, as
    `Target.alter`."""
    target.alter(coming.table, _present(target, coming), coming, dry_run=dry_run)


def _present(target: Target, coming: Relation) -> Relation:
    """The layout that the target has now."""
    there = target.columns(coming.table) if target.exists(coming.table) else {}
    columns = [
        Column(n, zlib.crc32(n.encode()), kind, kind, kind, key=n in coming.key) for n, kind in there.items()
    ]
    return coming.with_columns(columns)


def newer(changes: ChangeTable, after: int, upto: int | None = None) -> ChangeTable:
    """The changes with numbers above `after` (up to `upto`); sequences that are none stay, to be refused."""
    from pyspark.sql import functions as F

    if after < 0 and upto is None:
        return changes
    seq = F.col(changes.header("change_seq"))
    number = F.substring(seq, TIME_DIGITS + 1, NUMBER_DIGITS)
    wanted = number > f"{after:019d}" if after >= 0 else F.lit(True)
    if upto is not None:
        wanted = wanted & (number <= f"{upto:019d}")
    odd = seq.isNull() | (F.length(seq) != WIDTH)
    return changes.with_df(changes.df.where(odd | wanted))


def story(changes: ChangeTable, key: Mapping[str, Any]) -> DataFrame:
    """One row's life: its images in order, with what the masks say.

    Columns: `change_seq`, `change_oper` (string), `changed` (array<string>: names in the change mask), then
    the data columns.
    """
    from pyspark.sql import functions as F

    from ...model import mask

    rows = changes.df
    for name, value in key.items():
        rows = rows.where(F.col(name) == F.lit(value))
    places = {changes.ordinal(c): c for c in changes.columns}
    headers = [F.col(changes.header(h)).alias(h) for h in ("change_seq", "change_oper")]
    changed = mask.names(F.col(changes.header("change_mask")), places).alias("changed")
    return rows.select(*headers, changed, *changes.columns).orderBy("change_seq", "change_oper")
