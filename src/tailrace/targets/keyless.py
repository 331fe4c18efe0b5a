"""Requirements of keyless tables on their changes: complete images, and a before image for each update.

Without a key, a row is identified by all of its values. An update without its before image, or an image that
leaves columns out, does not identify a row. Such a batch is refused before anything is written.
"""

from __future__ import annotations

from operator import and_
from typing import TYPE_CHECKING

from ..engine.rules import Rules
from ..errors import ApplyError, ConfigError
from ..model import mask
from ..model.change import BEFORE, DELETE, UPDATE, ChangeTable
from .images import col

if TYPE_CHECKING:
    from pyspark.sql import Column, Row

PARTIAL, UNPAIRED = "header__partial", "header__unpaired"
"""Results of `aggregates`: the first `change_seq` of an image that leaves columns out (NULL: no image does);
whether before images and updates belong to different changes."""
NAME_KEY = "`--option key=...`; of OpenEdge and solidDB `--option keys=...`"
"""Command line options that name the key of a table."""
HINT = (
    f"name the table's key ({NAME_KEY}), have the source write whole before images, or archive the changes "
    "(`--mode archive`)"
)


def aggregates(changes: ChangeTable) -> list[Column]:
    """Returns aggregates that find images that do not identify a row, for the pass that counts the
    changes."""
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    partial = oper.isin(UPDATE, BEFORE, DELETE) & _leaves_columns_out(changes)
    # Each change_seq occurs once per operation. The probability that two different sets of the same size have
    # the same XOR of 64-bit hashes is negligible.
    hashed = F.xxhash64(seq)
    sums = [F.bit_xor(F.when(oper == kind, hashed)) for kind in (BEFORE, UPDATE)]
    many = [F.count_if(oper == kind) for kind in (BEFORE, UPDATE)]
    return [
        F.min(F.when(partial, seq)).alias(PARTIAL),
        ((many[0] != many[1]) | ~sums[0].eqNullSafe(sums[1])).alias(UNPAIRED),
    ]


def _leaves_columns_out(changes: ChangeTable) -> Column:
    """Whether an image leaves a data column out."""
    given = col(changes.header("column_mask"))
    bits = mask.bits(given, [changes.ordinal(c) for c in changes.columns])
    return given.isNotNull() & ~mask.balanced(bits, and_)


def first_wrong(changes: ChangeTable, found: Row) -> tuple[str, str] | None:
    """Returns the first change that does not identify a row, and the reason; None if all do. It needs a
    second pass, which only refused batches get."""
    from pyspark.sql import functions as F

    wrong = []
    if found[PARTIAL] is not None:
        wrong.append((str(found[PARTIAL]), "an image leaves columns out"))
    if found[UNPAIRED]:
        seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
        pairs = changes.df.groupBy(seq.alias("seq")).agg(
            F.count_if(oper == BEFORE).alias("old"), F.count_if(oper == UPDATE).alias("new")
        )
        row = pairs.where("old <> new").orderBy("seq").first()
        if row is not None:
            what = "an update has no before image" if row["new"] else "a before image has no update"
            wrong.append((str(row["seq"]), what))
    return min(wrong, default=None)


def refuse(name: str, wrong: tuple[str, str] | None) -> None:
    """Raises ApplyError for a change that `first_wrong` has found."""
    if wrong is not None:
        seq, what = wrong
        raise ApplyError(
            f"{what}, and the table has no key: the change does not identify a row",
            where=f"{name}, change_seq {seq}",
            hint=f"{HINT}; nothing of the batch is applied",
        )


def refuse_soft_delete(name: str, rules: Rules) -> None:
    """Raises ConfigError if rules mark deleted rows of a keyless table."""
    if rules.mode == "soft_delete":
        raise ConfigError(
            "soft delete marks rows by their key, and the table has none",
            where=name,
            hint=f"name its key ({NAME_KEY}; of a task's table at the source), or choose another mode; "
            "if its key was only moved at the source, `tailrace resync` the task's table",
        )
