"""The two sides of a repair: a target's current rows, and what they should be at that change number.

Both have the columns that the target makes of its source: mapped, DDL that is ignored left out. Rows that are
marked as deleted count as gone, and the mark is no column of either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ..apply.loading import CHANGED, loaded, made_with
from ..apply.plan import SPECIAL
from ..apply.reading import read_changes
from ..apply.route import Routes
from ..apply.segment import Segment
from ..apply.shared import own_rows
from ..apply.table_map import place_of, task_map
from ..apply.targets import delta_spark
from ..config.task import Task
from ..lake import delta as lake
from ..lake import log
from ..model.change import Relation
from ..query.state import state_at
from ..state import ledger
from ..state.ledger import Baseline
from ..state.orders import of_task, target_names
from ..state.totals import batches_of
from .mapped import Made
from .postgresql_side import hold
from .rules import living
from .sides import rows_of_files
from .tables import Difference, readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DDL = "its target does not follow every DDL statement of the source: `tailrace resync` rebuilds it"


def there(task: Task, spark: SparkSession, table: str, scratch: str) -> tuple[DataFrame, int]:
    """A table's rows in its target (only its own in a shared target, without marked rows), and the change
    number that they have reached. `scratch`: a folder for rows that are read from a database."""
    with hold(task, [table]) as held:
        if held is not None:
            found = held.tables[table]
            with readers(task.baseline.workers, found.parts) as pool:
                files = held.files(table, scratch, pool)
            return living(task, table, rows_of_files(spark, found.layout, files)), found.upto
    place = place_of(task_map(task, table), target_names(of_task(task.orders_path, {})))
    path, app = task.target_path(place.target), task.apply_app
    rows = own_rows(delta_spark.rows_of(spark, path, DeltaTable(path)), place.partition)
    reached = lake.progress(path, f"{app}/{table}" if place.partition else app)
    return living(task, table, rows), max(reached, taken_of(task, table).after)


def wanted(
    task: Task, spark: SparkSession, one: Difference, upto: int, have: list[str]
) -> tuple[DataFrame, Relation] | str:
    """What the target's rows should be at a change number, in which layout; or why that is unknown.

    `have`: the columns of the rows that are there.
    """
    table = one.result.table
    stored, gone = batches_of(task.control_path("stored"), table)
    if why := _refusal(task, one) or _waits(stored, upto) or _forgotten(stored, gone, one.position):
        return why
    relation = layout_of(task, table, one.made)
    names = {c.name for c in relation.columns}
    if not one.made.whole or not names == set(one.source.columns) == set(have):
        return _DDL
    before = max((b.upto for b in stored if b.position < one.position), default=-1)
    # A batch may contain changes from before and after the position: `before` is never too late.
    source = one.made.source
    later = Segment(before, upto, one.position, source, source)
    found = read_changes(spark, task.changes_path(table), later) if upto > before else None
    if found is None:
        return one.source, relation
    counts = {k: sum(b.tables[table].get(k, 0) for b in stored if b.upto > before) for k in SPECIAL}
    route = Routes.of(task, spark, record=False).route(table, source, one.made.follows, one.made.follows)
    changes, mine = route.through(found, counts)
    return state_at(one.source, changes, relation, mine), relation


def layout_of(task: Task, table: str, made: Made) -> Relation:
    """The target's layout, under the name by which the table was first known."""
    first = taken_of(task, table).relation
    return replace(made.relation, schema=first.schema, name=first.name)


def taken_of(task: Task, table: str) -> Baseline:
    """A table's baseline."""
    return ledger.read_baselines(task.control_path("baselines"))[table]


def _refusal(task: Task, one: Difference) -> str | None:
    """Why a table cannot be repaired at all."""
    table = one.result.table
    if one.result.columns:
        return f"its columns differ: {one.result.columns}"
    if task.table(table).rule_mode == "archive":
        return "its target is an archive, not a copy of the source"
    digest, found = task_map(task, table).digest, loaded(task.control_path("mapped"))
    if not made_with(digest, taken_of(task, table), found):
        return CHANGED
    seen = log.history(task.relations_path).get(table, [])
    if any(h.from_position.hex().upper() >= one.position for h in seen):
        return "its layout has changed since the snapshot: run the repair again"
    return None


def _forgotten(stored: list[ledger.Stored], gone: int, position: str) -> str | None:
    if gone >= 0 and not any(b.position < position for b in stored):
        return "the records of its batches at that position have been removed (`maintenance.keep_ledger`)"
    return None


def _waits(stored: list[ledger.Stored], upto: int) -> str | None:
    if any(b.upto > upto for b in stored):
        return "it has changes that are not applied yet (is it paused, or suspended?): apply them first"
    return None
