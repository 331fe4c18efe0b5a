"""What tables without a key ask of their changes: whole images, and the old row of each update and delete.

Without a key a row is known by all of its values. An update without its B row, or an image that leaves
columns out, does not say which row it is about: the batch is refused before anything is written.
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
"""What `aggregates` finds: the first `change_seq` of an image that leaves columns out (NULL: none does);
whether B rows and updates are not those of the same changes."""
NAME_KEY = "`--option key=...`; of OpenEdge and solidDB `--option keys=...`"
"""How a command is told the key of a table."""
HINT = (
    f"name the table's key ({NAME_KEY}), have the source write whole before images, or archive the changes "
    "(`--mode archive`)"
)


def aggregates(changes: ChangeTable) -> list[Column]:
    """Looks for images that do not name their row, in the one pass that counts a change table."""
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    partial = oper.isin(UPDATE, BEFORE, DELETE) & _leaves_columns_out(changes)
    # Each change_seq is there once an operation. Two different sets of as many have the same sum of 64-bit
    # hashes (and the same of those shifted) by no chance that counts.
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
    """The first change that does not name its row, and what is wrong with it; None: all do. A second pass, of
    batches that are refused alone."""
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
            f"{what}, and the table has no key: which row is meant is not told",
            where=f"{name}, change_seq {seq}",
            hint=f"{HINT}; nothing of the batch is applied",
        )


def refuse_soft_delete(name: str, rules: Rules) -> None:
    """Raises ConfigError for rules that a table without key cannot have."""
    if rules.mode == "soft_delete":
        raise ConfigError(
            "soft delete marks rows by their key, and the table has none",
            where=name,
            hint=f"name its key ({NAME_KEY}; of a task's table at the source), or choose another mode; "
            "if its key was only moved at the source, `tailrace resync` the task's table",
        )
