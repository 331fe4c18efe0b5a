"""Changes as the target gets them under rules: without those that are passed over, as rows of an archive, or
with deletes that only mark. What comes out goes through fold and target like any other batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..engine.columns import OPER, SEQ
from ..engine.rules import Rules
from ..errors import ConfigError, TailraceError, from_spark
from ..model import mask
from ..model.change import BEFORE, DELETE, INSERT, PREFIX, UPDATE, ChangeTable, Column, Relation
from .completed import completed, filled, lacking
from .expect import Expected
from .fold import col, refused
from .outcomes import SITUATION, among, small
from .plan import SPECIAL
from .targets.base import Target

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

ARCHIVE = {
    "change_seq": "string",
    "change_oper": "string",
    "timestamp": "timestamp",
    "column_mask": "binary",
}
"""Header columns that an archive has before the data columns: it is a change table itself. The mask says
which columns an image carried, by their place in the archive."""
_ARCHIVING = "archive__"


def relation_of(relation: Relation, rules: Rules) -> Relation:
    """The layout of the target: the changes' own, with the columns that a mode adds.

    Raises:
        ConfigError: the table has a column of that name already.
    """
    names, added = {c.name for c in relation.columns}, added_by(rules)
    if taken := sorted(names & set(added)):
        raise ConfigError(
            f"the table has a column {taken[0]!r} of its own",
            where=relation.table,
            hint="name another column for the mark of deleted rows (`--soft-delete COLUMN`)",
        )
    more = [Column(n, zlib.crc32(n.encode()), kind, kind, kind) for n, kind in added.items()]
    if rules.mode == "archive":
        return relation.with_columns([*more, *[replace(c, key=False) for c in relation.columns]])
    return relation.with_columns([*relation.columns, *more])


def added_by(rules: Rules) -> dict[str, str]:
    """Names and Spark SQL types of the columns that a mode adds to a target.

    >>> added_by(Rules.of("soft_delete", {}, "gone"))
    {'gone': 'string'}
    """
    if rules.mode == "soft_delete":
        return {rules.soft_column: "string"}
    return {PREFIX + name: kind for name, kind in ARCHIVE.items()} if rules.mode == "archive" else {}


def effective(
    changes: ChangeTable,
    expected: Expected,
    rules: Rules,
    counts: Mapping[str, int],
    relation: Relation,
    there: Callable[[], DataFrame],
) -> tuple[ChangeTable, dict[str, int]]:
    """Changes that take part, and what occurs in them, for strict, upsert and soft delete.

    `relation`: their layout; `there` gives the target's rows. Under soft delete the old row stays where it
    is, so a change of key whose image lacks columns has to bring them along.
    """
    if not relation.key:
        # A copy that is not there must not be taken from one that comes later.
        alone = col(SITUATION) == "U0"
        if expected.tally:
            changes = _anti(changes, expected, _passed_over(rules), alone)
        return changes, dict(counts)
    counts = dict(counts) | {"key_changes": expected.moved}
    if rules.mode != "soft_delete":
        return _dropped(changes, expected, rules), counts
    which = _with_old_images(changes, expected, counts)
    if which is not None and lacking(changes, counts):
        whole = completed(changes, relation, rules, counts, there())
        changes = filled(changes, whole.join(which, SEQ, "left_semi"), relation)
    return _soft(_dropped(changes, expected, rules), expected, rules), _soft_counts(counts)


def _with_old_images(changes: ChangeTable, expected: Expected, counts: Mapping[str, int]) -> DataFrame | None:
    """The updates (`SEQ`) whose old image says more than that of a mark: changes of a key, and those that
    insert a missing row. None: there is none."""
    which = None if expected.moves is None else expected.moves.select(SEQ)
    if not (counts.get("absent") and expected.odd is not None and "U0" in expected.tally):
        return which
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    known = changes.df.where(oper == BEFORE).select(seq.alias(SEQ))
    inserting = expected.odd.where(col(SITUATION) == "U0").select(SEQ).join(known, SEQ, "left_semi")
    return inserting if which is None else which.unionByName(inserting)


def taking_part(changes: ChangeTable, expected: Expected, rules: Rules) -> ChangeTable:
    """The changes but those that are passed over, their B rows too."""
    if all(rules.outcome(s).effective for s in expected.tally):
        return changes
    return _anti(changes, expected, _passed_over(rules))


def _passed_over(rules: Rules) -> SparkColumn:
    return among(rules, lambda outcome: not outcome.effective)


def _dropped(changes: ChangeTable, expected: Expected, rules: Rules) -> ChangeTable:
    """The rows that a target is to get."""
    if rules.mode == "soft_delete":
        # Each delete would write its mark; a B whose row is missing has nothing to mark.
        alone = col(SITUATION).isin("K00", "K01")
        return _anti(changes, expected, _passed_over(rules), alone) if expected.tally else changes
    # Deletes that meet nothing do no harm.
    if {s for s in expected.tally if not rules.outcome(s).effective} <= {"D0"}:
        return changes
    return taking_part(changes, expected, rules)


def _anti(
    changes: ChangeTable, expected: Expected, out: SparkColumn, alone: SparkColumn | None = None
) -> ChangeTable:
    """Changes without the odd ones that are `out`, and without the B rows of those that are `alone`."""
    assert expected.odd is not None  # noqa: S101 - there are odd ones
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    gone, before = out, (oper == BEFORE) & (col(OPER) == UPDATE)
    same = ((oper == col(OPER)) | before) & out
    if alone is not None:
        gone, same = out | alone, same | (alone & (oper == BEFORE))
    odd = expected.odd.where(gone).select(SEQ, OPER, SITUATION)
    odd = small(odd, expected.many)
    return changes.with_df(changes.df.join(odd, (seq == col(SEQ)) & same, "left_anti"))


def _soft(changes: ChangeTable, expected: Expected, rules: Rules) -> ChangeTable:
    """Deletes, and the old keys of key changes, as updates of the mark alone; all other images clear it."""
    from pyspark.sql import functions as F

    header = changes.header
    seq, oper = col(header("change_seq")), col(header("change_oper"))
    df, moved = changes.df, F.lit(False)
    if header("column_mask") not in df.columns:
        df = df.withColumn(header("column_mask"), F.lit(None).cast("binary"))
    if expected.moves is not None:
        moves = expected.moves.select(SEQ, F.lit(True).alias("header__moved"))
        df = df.join(small(moves, expected.moved), seq == col(SEQ), "left").drop(SEQ)
        moved = F.coalesce(col("header__moved"), F.lit(False))
    marks = (oper == DELETE) | (moved & (oper == BEFORE))
    names = [c for c in df.columns if c != "header__moved"] + [rules.soft_column]
    key = mask.encode([*[names.index(k) for k in changes.key], len(names) - 1])
    old = col(header("column_mask"))
    whole = F.when(old.isNotNull(), _with_bit(old, len(names) - 1))
    made = {
        rules.soft_column: F.when(marks, seq),
        header("column_mask"): F.when(marks, F.lit(bytearray(key))).otherwise(whole),
        header("change_oper"): F.when(marks, UPDATE).otherwise(oper),
    }
    df = df.where((oper != BEFORE) | moved).select(
        *[made.get(n, col(n) if n in df.columns else F.lit(None)).alias(n) for n in names]
    )
    return replace(changes, df=df, columns=[*changes.columns, rules.soft_column])


def _with_bit(value: SparkColumn, bit: int) -> SparkColumn:
    from pyspark.sql import functions as F

    words = mask.words(value, bit + 1)
    at, inside = divmod(bit, mask.WORD)
    # The highest bit of a word is its sign.
    number = 1 << inside if inside < mask.WORD - 1 else -(1 << inside)
    words[at] = words[at].bitwiseOR(F.lit(number).cast("bigint"))
    return mask.from_words(words)


def _soft_counts(counts: dict[str, int]) -> dict[str, int]:
    marks = counts["D"] + counts["key_changes"]
    absent = counts["absent"] + marks
    return counts | {"U": counts["U"] + marks, "D": 0, "key_changes": 0, "absent": absent}


def archived(
    changes: ChangeTable,
    counts: Mapping[str, int],
    order: Sequence[str],
    beside: Mapping[str, SparkColumn] | None = None,
) -> tuple[ChangeTable, dict[str, int]]:
    """Inserts, updates and deletes as rows to append; `order`: the archive's columns as they stand.

    With `beside`, more columns by name, all changes are there, and whoever gets them chooses.
    """
    from pyspark.sql import functions as F

    header, oper = changes.header, col(changes.header("change_oper"))
    df = changes.df.where(oper.isin(INSERT, UPDATE, DELETE) if beside is None else oper != BEFORE)
    have = set(df.columns)
    kept = {PREFIX + n: col(header(n)) for n in ARCHIVE if header(n) in have}
    if header("column_mask") in have:
        places = {changes.ordinal(c): order.index(c) for c in changes.columns}
        kept[PREFIX + "column_mask"] = mask.move(col(header("column_mask")), places)
    made = df.select(
        col(header("change_seq")).alias(_ARCHIVING + "change_seq"),
        F.lit(INSERT).alias(_ARCHIVING + "change_oper"),
        *[value.alias(n) for n, value in kept.items()],
        *map(col, changes.columns),
        *[value.alias(n) for n, value in (beside or {}).items()],
    )
    rows = sum(counts.get(k, 0) for k in "IUD")
    archive = ChangeTable(made, [], [*kept, *changes.columns], _ARCHIVING, changes.name)
    return archive, dict.fromkeys(SPECIAL, 0) | {"I": rows}


def alter(target: Target, table: str, before: Relation, after: Relation, rules: Rules) -> None:
    """Gives a target a new layout of its changes, and the columns that the mode adds."""
    whole = relation_of(after, rules)
    there = target.columns(table) if target.exists(table) else {}
    added = {c.name for c in whole.columns} - {c.name for c in after.columns}
    made = bool(added) and added <= set(there)
    target.alter(table, relation_of(before, rules) if made else before, whole)


def check_mode(target: Target, name: str, rules: Rules) -> None:
    """Refuses a target that holds what another mode made of it.

    Raises:
        ConfigError: it is an archive and shall be none, or the other way round; it has marked rows.
    """
    have = target.columns(name)
    archive = PREFIX + "change_seq" in have
    if archive != (rules.mode == "archive"):
        raise ConfigError(
            f"the target is {'an' if archive else 'no'} archive",
            where=name,
            hint="use `--mode archive`" if archive else "archive into a folder of its own",
        )
    if rules.mode != "soft_delete" and have.get(rules.soft_column) == "string":
        raise ConfigError(
            f"the target marks deleted rows in {rules.soft_column!r}",
            where=name,
            hint="use `--mode soft_delete`",
        )


def explained(error: Exception, changes: ChangeTable) -> Exception:
    """What a failed batch is reported as: our own errors as they are, others with what they mean."""
    if isinstance(error, TailraceError):
        return error
    return refused(error, changes.name, changes.key) or from_spark(error, where=f"apply {changes.name}")
