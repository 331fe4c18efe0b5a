"""Changes of an open window, some of them in the target's rows already: in the end all is as at the source."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.merge_rows import merge_rows
from tailrace.testing.images import batch_of, change_table, merge_images

from .literal_tables import rows_at
from .test_apply_histories import LANES, RELATION, STEPS, Model, Row, held

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Still(Model):
    """Images may lack columns, but no row changes its key: the two together are not applied tolerantly."""

    def update(self, old: tuple[int, str], new: tuple[int, str]) -> None:
        super().update(old, old)


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True], ids=["absent", "full"])
def test_rows_read_at_any_moment_of_the_window_end_in_the_models_state(
    spark: SparkSession, tmp_path: Path, full: bool
) -> None:
    seed = random.randrange(10**6)
    model, dice = (Model if full else Still)(seed, full), random.Random(seed)
    for _ in range(STEPS):
        for lane in range(LANES):
            model.step(lane)
    model.images, began = [], model.number
    read: list[Row] = []
    moments = [dice.randrange(STEPS) for _ in range(LANES)]  # each lane stands for a table read at its own
    for step in range(STEPS):
        for lane in range(LANES):
            if moments[lane] == step:
                read += [dict(row) for key, row in model.rows.items() if key[0] == lane]
            model.step(lane)
    target = DeltaTarget(spark, str(tmp_path), app_id="t", local_limit_bytes=1 << 30 if full else 0)
    merge_images(spark, target, RELATION, [(n, "I", row) for n, row in enumerate(read, 1)], began)
    middle = began + dice.randrange(1, STEPS * LANES)
    for low, high in ((began, middle), (middle, model.number)):
        images = [i for i in model.images if low < i[0] <= high]
        dice.shuffle(images)
        batch = replace(batch_of(RELATION, images, high), open_window=True)
        merge_rows(target, change_table(spark, RELATION, images), batch, str(tmp_path))
    rows = held(rows_at(spark, target.path(RELATION.table)), RELATION)
    assert rows == model.state(), f"seed {seed}, cut at {middle}"
