"""Tables of very many columns go through every format: no expression is as deep as there are columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace import formats
from tailrace.apply.vendor import upsert
from tailrace.formats import convert
from tailrace.formats.base import RAW, WHY
from tailrace.formats.openedge.split_records import join_halves
from tailrace.model.change import ChangeTable
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.changes import Image, change_table, comparable_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]
WIDE = 1000


def wide(spark, many: int = WIDE) -> ChangeTable:
    names = ["id", *(f"c{n}" for n in range(many - 1))]
    kinds = dict(zip(names, ["int", *("string", "timestamp", "decimal(12,2)") * WIDE], strict=False))
    kinds = {n: k if k != "timestamp" else "int" for n, k in kinds.items()}
    values = {n: 1 if kinds[n] == "int" else "x" if kinds[n] == "string" else None for n in names}
    changed = values | {
        "c0": "y",
        "c63": None,
        f"c{many - 3}": "z" if kinds[f"c{many - 3}"] == "string" else 2,
    }
    images = [Image(1, "I", values), Image(2, "B", values), Image(2, "U", changed), Image(3, "D", changed)]
    return change_table(spark, images, columns=kinds)


@pytest.mark.parametrize("name", list(formats.OURS))
def test_there_and_back(spark, name):
    ct, form = wide(spark), formats.get(name)
    types = ", ".join(f"{c} {ct.df.schema[c].dataType.simpleString()}" for c in ct.columns)
    given = {k: v for k, v in (("key", "id"), ("columns", types)) if k in form.options.model_fields}
    options = formats.options(form, given)
    rows, _ = convert.observed(ct, form.gaps(ct), fail=False)
    written = form.write({ct.name: ct.with_df(rows)}, options)
    back = form.read(written, options).changes[ct.name]
    want = ct
    for gap in form.gaps(ct):
        want = gap.erase(want)
    found = comparable_rows(back, headers=["operation"])
    assert [(r[1], r[-1]) for r in found] == [
        (r[1], r[-1]) for r in comparable_rows(want, headers=["operation"])
    ]
    assert back.columns == ct.columns


def test_a_table_without_key(spark, tmp_path):
    """Its rows are known by all of their columns, whose comparisons are no chain."""
    ct = replace(wide(spark, 500), key=[])
    target = DeltaTarget(spark, str(tmp_path), app_id="t")
    done = upsert.apply(target, {ct.name: ct}, str(tmp_path))[ct.name]
    assert (done.inserted, done.missing) == (0, 0)


def test_split_records(spark):
    from pyspark.sql import functions as F

    names = [f"c{n}" for n in range(WIDE)]
    meta = [
        "_Tran-Id",
        "_Time-Stamp",
        "_Change-Sequence",
        "_Continuation-Position",
        "_ArrayIndex",
        "_Fragment",
    ]
    halves = spark.range(2).select(
        *[F.lit(1).alias(m) for m in meta if m not in ("_Continuation-Position", "_Fragment")],
        F.when(F.col("id") == 0, 8 + WIDE // 2).otherwise(8 + WIDE).alias("_Continuation-Position"),
        F.when(F.col("id") == 0, 1).otherwise(0).alias("_Fragment"),
        F.lit(4).alias("_Operation"),
        *[F.concat(F.lit("v"), F.col("id").cast("string")).alias(n) for n in names],
        F.lit(None).cast("string").alias(WHY),
        F.lit("{}").alias(RAW),
    )
    (one,) = join_halves(halves, {n: 9 + i for i, n in enumerate(names)}, {}).collect()
    at = WIDE // 2
    assert [one[n] for n in (names[at - 1], names[at], names[at + 1])] == ["v0", "v0v1", "v1"]
