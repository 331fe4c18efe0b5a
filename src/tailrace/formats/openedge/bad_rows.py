"""What is wrong with a change, judged from its tracking row and its image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model import mask
from ..base import WHY
from .both_rows import THERE, TrackedTable, of_image, of_tracking
from .options import OpenEdgeOptions
from .tables import AFTER_UPDATE, BEFORE_UPDATE, GONE, VALUED

if TYPE_CHECKING:
    from pyspark.sql import Column


def bad_rows(
    of: TrackedTable, options: OpenEdgeOptions, code: Column, oper: Column
) -> list[tuple[Column, str | Column]]:
    """What is wrong with a change, judged from both of its rows."""
    from pyspark.sql import functions as F

    tracked, imaged = of_tracking(THERE).isNotNull(), of_image(THERE).isNotNull()
    code_t, code_c = of_tracking("_Operation"), of_image("_Operation")
    number = F.coalesce(of_tracking("_Change-Sequence"), of_image("_Change-Sequence"))
    text = F.coalesce(number.cast("string"), F.lit("?"))
    said, shown = F.coalesce(code_t.cast("string"), F.lit("?")), F.coalesce(code_c.cast("string"), F.lit("?"))
    operation = F.coalesce(code.cast("string"), F.lit("nothing"))
    pair = (code_t == code_c) | ((code_t == AFTER_UPDATE) & (code_c == BEFORE_UPDATE))
    bad: list[tuple[Column, str | Column]] = [
        (of_tracking(WHY).isNotNull(), of_tracking(WHY)),
        (of_image(WHY).isNotNull(), of_image(WHY)),
        (oper.isNull(), F.concat(F.lit("unknown operation "), operation)),
        (number.isNull(), "no _Change-Sequence"),
        (number < 0, F.concat(F.lit("negative _Change-Sequence "), text)),
        (imaged & code_c.isin(*GONE), F.concat(F.lit("change table row of operation "), shown)),
        (
            tracked & imaged & ~F.coalesce(pair, F.lit(False)),
            F.concat_ws("", F.lit("tracking row says operation "), said, F.lit(", change table "), shown),
        ),
        *_field_map_bad(of),
    ]
    if options.partitions == "reject":
        # Partition 0 and tenant 0 are parts of their table like any other; a row with neither was written by
        # tailrace.
        part = [F.coalesce(of_tracking(n), F.lit(0)) for n in ("_Partition-Id", "_Tenant-Id")]
        some = of_tracking("_Partition-Id").isNotNull() | of_tracking("_Tenant-Id").isNotNull()
        words = F.create_map(*[F.lit(x) for pair in GONE.items() for x in pair])[code]
        gone = F.concat_ws("", words, F.lit(" of partition "), part[0], F.lit(", tenant "), part[1])
        said = F.concat(gone, F.lit(": rows not named; if it was the whole table, set partitions=truncate"))
        bad.append((some & (oper == "T"), said))
    if options.orphans == "reject":
        bad += _orphans(of, code, tracked, imaged, text)
    return bad


def _orphans(
    of: TrackedTable, code: Column, tracked: Column, imaged: Column, text: Column
) -> list[tuple[Column, str | Column]]:
    from pyspark.sql import functions as F

    valued = [p for p, level in of.source.levels.items() if level >= VALUED]
    name = of.source.change_table or "a change table"
    lone = ~imaged & code.isin(1, 2, AFTER_UPDATE) & of_tracking("_Policy-Id").isin(*valued)
    return [
        (~tracked, F.concat(F.lit("no tracking row for change "), text)),
        (lone, F.concat(F.lit(f"no row in {name} for change "), text)),
    ]


def _field_map_bad(of: TrackedTable) -> list[tuple[Column, str | Column]]:
    """Bits that no column stands for, where columns are known."""
    from pyspark.sql import functions as F

    if not of.source.columns:
        return []
    field_map = of_tracking("_Change-FieldMap")
    known = {p - 1 for p in of.source.positions.values()}
    words = [F.col(f"_map{k}") for k in range(max(known) // mask.WORD + 1)]
    size = len(words) * mask.WORD
    rest = F.hex(F.substring(field_map, size // 8 + 1, mask.FIELD_MAP_BYTES))
    more = F.when(F.octet_length(field_map) > size // 8, rest.rlike("[1-9A-F]"))
    odd = mask.any_set(words, set(range(size)) - known) | F.coalesce(more, F.lit(False))
    return [
        (odd, "field map has a bit that no column stands for: mask longer than the columns"),
        (
            F.octet_length(field_map) > mask.FIELD_MAP_BYTES,
            f"field map longer than {mask.FIELD_MAP_BYTES} bytes",
        ),
    ]
