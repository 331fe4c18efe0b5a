"""Statistics of a change table of another product: its layout, its last change number, its rows by kind."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import FormatError
from ...model import mask
from ...model.change import BEFORE, UPDATE, ChangeTable, Column, Relation
from ...model.sequence import NUMBER_DIGITS, TIME_DIGITS, WIDTH
from ...targets import keyless
from ...targets.plans import SPECIAL

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ChangeStats:
    """Statistics of a change table.

    Attributes:
        relation: the layout that its changes are applied with.
        end: its greatest change number; -1 if it has no rows.
        counts: its rows by kind.
        unidentified: in a keyless table, the first change that does not identify its row, and why.
    """

    relation: Relation
    end: int
    counts: dict[str, int]
    unidentified: tuple[str, str] | None = None


def relation_of(changes: ChangeTable) -> Relation:
    """The layout of a change table that no source described.

    Columns are identified by their names alone, so a renamed column is a new one.
    """
    schema, _, table = changes.name.rpartition(".")
    columns = []
    for name in changes.columns:
        kind = changes.df.schema[name].dataType.simpleString()
        columns.append(Column(name, zlib.crc32(name.encode()), kind, kind, kind, key=name in changes.key))
    # Identity f (full): `column_mask` says for each row which columns its image has.
    return Relation(zlib.crc32(changes.name.encode()), schema, table, "f", tuple(columns))


def scan(changes: ChangeTable) -> ChangeStats:
    """Counts a change table in one pass over its headers.

    Raises:
        FormatError: a change sequence is not 35 digits, or its number is beyond 64 bits.
    """
    from pyspark.sql import functions as F

    seq = F.col(changes.header("change_seq"))
    number = F.substring(seq, TIME_DIGITS + 1, NUMBER_DIGITS).try_cast("bigint")
    invalid = number.isNull() | (F.length(seq) != WIDTH)
    found = changes.df.agg(
        F.max(number).alias("end"),
        F.max(F.when(invalid, F.coalesce(seq, F.lit("NULL")))).alias("invalid"),
        *(F.count_if(counts).alias(kind) for kind, counts in counted_kinds(changes).items()),
        *([] if changes.key else keyless.aggregates(changes)),
    ).first()
    assert found is not None  # noqa: S101 - an aggregate without groups has one row
    if found["invalid"] is not None:
        raise FormatError(
            f"{found['invalid']!r} is not a change sequence of {WIDTH} digits",
            where=changes.name,
            hint="`tailrace inspect` shows how a format reads the table",
        )
    counts = {kind: int(found[kind]) for kind in SPECIAL}
    unidentified = None if changes.key else keyless.first_wrong(changes, found)
    end = -1 if found["end"] is None else int(found["end"])
    return ChangeStats(relation_of(changes), end, counts, unidentified)


def counted_kinds(changes: ChangeTable) -> dict[str, SparkColumn]:
    """The kinds of `SPECIAL`, each with the condition of the rows that count as it."""
    from pyspark.sql import functions as F

    oper, images = (F.col(changes.header(h)) for h in ("change_oper", "column_mask"))
    # B rows may hold old keys; whether they do is found while folding.
    special = {"absent": images.isNotNull() & (oper == UPDATE), "key_changes": oper == BEFORE}
    return {kind: oper == kind for kind in SPECIAL if kind not in special} | special


def newer(changes: ChangeTable, start: int, end: int | None = None) -> ChangeTable:
    """The changes with numbers above `start`, up to `end`, and those with invalid sequences."""
    from pyspark.sql import functions as F

    if start < 0 and end is None:
        return changes
    seq = F.col(changes.header("change_seq"))
    number = F.substring(seq, TIME_DIGITS + 1, NUMBER_DIGITS)
    wanted = number > f"{start:019d}" if start >= 0 else F.lit(True)
    if end is not None:
        wanted = wanted & (number <= f"{end:019d}")
    invalid = seq.isNull() | (F.length(seq) != WIDTH)
    return changes.with_df(changes.df.where(invalid | wanted))


def row_history(changes: ChangeTable, key: Mapping[str, Any]) -> DataFrame:
    """The images of one row in order, with the names in their change mask.

    Columns: `change_seq`, `change_oper` (string), `changed` (array<string>), then the data columns.
    """
    from pyspark.sql import functions as F

    rows = changes.df
    for name, value in key.items():
        rows = rows.where(F.col(name) == F.lit(value))
    ordinals = {changes.ordinal(c): c for c in changes.columns}
    headers = [F.col(changes.header(h)).alias(h) for h in ("change_seq", "change_oper")]
    changed = mask.names(F.col(changes.header("change_mask")), ordinals).alias("changed")
    return rows.select(*headers, changed, *changes.columns).orderBy("change_seq", "change_oper")
