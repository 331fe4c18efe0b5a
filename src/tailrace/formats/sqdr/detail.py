"""`change_row_log_detail` of a key log: the log entry of a change, as columns.

Source: spec/sqdr.md §5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import text as sqdr_text

if TYPE_CHECKING:
    from pyspark.sql import Column

_WORDS = {
    "receiver": ("receiver_library", "receiver_name"),
    "job": ("job_name", "job_user", "job_number"),
    "type": ("journal_code", "entry_type"),
}
"""Elements with several words -> the columns of the words."""
COLUMNS = (
    "receiver_library", "receiver_name", "user", "job_name", "job_user", "job_number", "journal_code",
    "entry_type", "sequence", "rrn", "program",
)  # fmt: skip
"""The fields of `detail`, in the vendor's order."""


def detail(text: Column) -> Column:
    """The fields of a `<detail>` as a struct of strings (`COLUMNS`); NULL for NULL, missing fields are NULL.
    `sequence` keeps its zeros; line breaks between words are ignored."""
    from pyspark.sql import functions as F

    made = {}
    for element, names in _WORDS.items():
        words = F.split(F.trim(F.regexp_replace(part(text, element), r"\s+", " ")), " ", len(names))
        for i, name in enumerate(names):
            made[name] = F.get(words, F.lit(i))
    for element in ("user", "sequence", "rrn", "program"):
        made[element] = part(text, element)
    return F.when(text.isNotNull(), F.struct(*[made[n].alias(n) for n in COLUMNS]))


def part(text: Column, element: str) -> Column:
    """The text of one element, without the five escapes; NULL if it is missing."""
    from pyspark.sql import functions as F

    start, end = f"<{element}>", f"</{element}>"
    inside = F.substring_index(F.substring_index(text, end, 1), start, -1)
    return F.when(text.contains(start) & text.contains(end), sqdr_text.unescaped(inside))


def written(user: str | None, rrn: str | None) -> Column:
    """A `<detail>` with what other formats know: SQL of the user and of the row's number; NULL if there is
    neither."""
    from pyspark.sql import functions as F

    parts = [("user", user), ("rrn", rrn)]
    made = [
        F.concat(F.lit(f"<{n}>"), F.expr(sqdr_text.named_escapes(v)), F.lit(f"</{n}>"))
        for n, v in parts
        if v is not None
    ]
    inside = F.concat_ws(" ", *made) if made else F.lit("")
    return F.when(inside != "", F.concat(F.lit("<detail> "), inside, F.lit(" </detail>")))
