"""Layouts of Delta targets: create tables, follow the source's layout, compact files.

`attnum` identifies a column, so a renamed column stays, and a column that was dropped and created again is
new. Columns that another process added to a target belong to neither layout; they stay with their values.
Adding nullable columns is a commit of metadata. Any other change rewrites the table in one commit (delta-rs
has no column mapping, which would make renames cheap). The progress stays in the log, which an overwrite
continues.

A commit that replaces all rows, by a new layout or a baseline, has a mark of the layout. If names of columns
were exchanged, or a column was created again, only the newest mark identifies the layout that the target has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ...errors import ApplyError, UnsupportedError
from ...lake import delta as lake
from ...lake import guards
from ...lake.failpoints import reach
from ...lake.opened import open_table
from ...lake.vacuum import DURATION
from ...model.change import Column, Relation
from ...model.quoting import quoted
from ...model.types import arrow_type, plain_schema, schema_of, spark_type
from ..base import Constraints
from ..layout_changes import refuse_new_key, refuse_retype
from ..multi_source import refuse_column_loss, shared_layouts
from ..rule_columns import RULE, rule_column
from . import spark_io
from .reshape import parts
from .table_info import INVARIANT, actions, refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROPERTIES = {"delta.enableDeletionVectors": "false"}
_ADDED = "tailrace.addedBy"
"""Metadata key of columns that rules have added; the value is `RULE`."""
_CHECK = "delta.constraints."
_GENERATED = "delta.generationExpression"
_MARK = "tailrace.layout"
_MARK_COMMITS = 50
"""The number of newest commits among which a mark is searched."""

_TO_TEXT = frozenset({"boolean", "smallint", "int", "bigint", "date", "timestamp_ntz", "timestamp", "binary"})
"""Types whose values are converted to text as PostgreSQL does; so are decimals."""


def create(path: str, relation: Relation) -> None:
    """Creates an empty target if it does not exist."""
    lake.create(path, pa.schema(_fields(relation.columns)), PROPERTIES)


def _fields(columns: Sequence[Column]) -> list[pa.Field]:
    """Returns the fields of columns, with metadata on columns that rules add."""
    fields = zip(columns, schema_of(columns), strict=True)
    return [f.with_metadata({_ADDED: RULE}) if c.kind == RULE else f for c, f in fields]


def rule_columns(table: DeltaTable) -> set[str]:
    """Returns the columns that rules have added to a target."""
    return {f.name for f in table.schema().fields if f.metadata.get(_ADDED) == RULE}


def refuse_layout(path: str, before: Relation, after: Relation, *, shared: bool = False) -> None:
    """Refuses a layout that a target cannot get; `shared`: other sources may write to the target.

    Raises:
        ApplyError: columns of other sources would be removed or replaced.
        BaselineNeededError: the values of existing rows cannot be converted.
    """
    now = open_table(path)
    if shared:
        refuse_column_loss(before, after, path)
    old = {c.attnum: c for c in before.columns}
    for c in after.columns:
        if c.attnum in old:
            was = old[c.attnum]
            plain = was.type in _TO_TEXT or was.type.startswith("decimal")
            refuse_retype(before.table, was, c, as_text=plain)
    refuse_new_key(before, after)
    refuse(now, path)
    if shared:
        _layouts_of_shared(path, now, before, after)
    else:
        _layouts_with_added(path, now, before, after)


def _layouts_with_added(
    path: str, now: DeltaTable, before: Relation, after: Relation
) -> tuple[Relation, Relation]:
    """Returns two layouts extended by the columns that another process added to the target.

    Raises:
        ApplyError: a column of the new layout would replace an added column.
    """
    fields, ruled = {f.name: f.type for f in lake.arrow_schema(now)}, rule_columns(now)
    known, new = {c.name for c in before.columns}, {c.name for c in after.columns}
    more = [_added(path, n, kind, ruled) for n, kind in fields.items() if n not in known | new]
    old_layout, new_layout = (one.with_columns([*one.columns, *more]) for one in (before, after))
    taken = [n for n in fields if n in new - known]
    if taken and not has_mark(now, new_layout) and (full := [n for n in taken if _has_values(now, n)]):
        raise ApplyError(
            f"the target {path} already has a column {full[0]!r} with values that another process wrote; the "
            "source has a new column of that name",
            where=after.table,
            hint="drop the column in the target, or rename it, then `tailrace resume` the table",
        )
    return old_layout, new_layout


def refuse_lost_columns(path: str, table: DeltaTable, relation: Relation) -> None:
    """Raises ApplyError if a keyless table has values in a column that another process added, because the
    rewritten copies of rows would lose them."""
    known = {c.name for c in relation.columns}
    for name in (f.name for f in table.schema().fields if f.name not in known):
        if _has_values(table, name):
            raise ApplyError(
                f"the target {path} has values in the column {name!r} that another process added; a batch "
                "of a keyless table that is too large for one task would lose them",
                where=relation.table,
                hint="move the column to another table, then `tailrace resume` the table; or give the table "
                "a key",
            )


def _has_values(table: DeltaTable, name: str) -> bool:
    """Whether a column has values; also true if only Spark can read the files."""
    return bool(lake.unread(table) or lake.dataset(table).count_rows(filter=pc.field(name).is_valid()))


def _added(path: str, name: str, kind: pa.DataType, ruled: Collection[str]) -> Column:
    """Returns a column that another process added to a target, for use in a layout.

    Raises:
        ApplyError: tailrace cannot write its type.
    """
    try:
        column = rule_column(name, spark_type(kind))
    except UnsupportedError:
        raise ApplyError(
            f"the target {path} has a column {name!r} of the type {kind}, which another process added and "
            "tailrace cannot write: a new layout would lose its values",
            where=path,
            hint="move the column to another table, then `tailrace resume` the table",
        ) from None
    return column if name in ruled else replace(column, kind=column.type)


def _layouts_of_shared(
    path: str, now: DeltaTable, before: Relation, after: Relation
) -> tuple[Relation, Relation]:
    """Returns two layouts of a source extended by the changes of other sources of the target.

    Raises:
        ApplyError: the new layout would remove or replace columns.
    """
    have = {f.name: spark_type(f.type) for f in lake.arrow_schema(now)}
    layouts = shared_layouts(before, after, have, rule_columns(now))
    refuse_column_loss(*layouts, path)
    return layouts


def alter(spark: SparkSession, path: str, before: Relation, after: Relation, *, shared: bool = False) -> None:
    """Changes a target from one layout to another, which `refuse_layout` has accepted. Does nothing if it has
    the new layout already. `shared`: columns of other sources stay."""
    if not lake.exists(path):
        create(path, after)
        return

    def once(now: DeltaTable) -> int | None:
        layouts = (_layouts_of_shared if shared else _layouts_with_added)(path, now, before, after)
        return _altered(spark, path, now, *layouts)

    lake.on_newest(path, once)


def _altered(
    spark: SparkSession, path: str, table: DeltaTable, before: Relation, after: Relation
) -> int | None:
    """Returns the version with the new layout; None if another process committed first."""
    old = {c.attnum: c for c in before.columns}
    have = {f.name: f.type for f in plain_schema(pa.schema(table.schema().to_arrow()))}
    if _fits(table, have, before, after):
        return int(table.version())
    new = [c for c in after.columns if c.attnum not in old]
    stays = [c for c in after.columns if c.attnum in old]
    same = {c.name: arrow_type(c.type) for c in stays} == have
    renamed = any(old[c.attnum].name != c.name for c in stays)
    if same and not renamed and all(c.missing is None and c.name not in have for c in new):
        lake.add_columns(path, _fields(new))
        return lake.version(path)
    return _rewrite(spark, path, table, before, after)


def _fits(table: DeltaTable, have: dict[str, pa.DataType], before: Relation, after: Relation) -> bool:
    """Whether the target has the new layout already, after a crash between the layout and its first batch."""
    wanted = {c.name: arrow_type(c.type) for c in after.columns}
    if have != wanted:
        return False
    numbers = {c.name: c.attnum for c in before.columns}
    if all(numbers.get(c.name, c.attnum) == c.attnum for c in after.columns):
        return True
    return has_mark(table, after)  # the names alone do not identify the layout


def _rewrite(
    spark: SparkSession, path: str, table: DeltaTable, before: Relation, after: Relation
) -> int | None:
    files = parts(spark, path, table, before, after)
    reach("delta.rewrite")
    now, schema = table.version(), _schema_of(table, before, after)
    return lake.overwrite(path, files, schema=schema, progress={}, only_after=now, info=mark(after))


def _schema_of(table: DeltaTable, before: Relation, after: Relation) -> pa.Schema:
    """Returns the schema of a new layout. Columns that stay keep their constraints; unchanged ones keep all
    of their metadata."""
    names = {c.attnum: c.name for c in before.columns}
    old_fields, have = {f.name: f for f in table.schema().fields}, lake.arrow_schema(table)
    fields = []
    for one, new in zip(after.columns, _fields(after.columns), strict=True):
        old = old_fields.get(names.get(one.attnum, ""))
        metadata = dict(new.metadata or {})
        if old and old.name == new.name and arrow_type(one.type) == have.field(new.name).type:
            metadata |= {key: str(text) for key, text in old.metadata.items()}
        elif old and INVARIANT in old.metadata:
            metadata[INVARIANT] = str(old.metadata[INVARIANT])
        fields.append(pa.field(new.name, new.type, old is None or old.nullable, metadata))
    return pa.schema(fields)


def maintain_distributed(spark: SparkSession, path: str, small_files: int, vacuum_after: float) -> None:
    """Compacts and vacuums a table with deletion vectors by Spark, which also writes log checkpoints."""
    guards.check()
    sizes = actions(open_table(path))["size_bytes"].to_pylist()
    session = spark_io.merge_session(spark)
    if sum(size < lake.SMALL_FILE for size in sizes) >= max(small_files, 2):
        session.sql(f"OPTIMIZE delta.{quoted(path)}").collect()
    if open_table(path).metadata().configuration.get(DURATION) == lake.PROPERTIES[DURATION]:
        # Spark deletes the removed files that are in the log, and cannot read versions before their removal.
        text = f"interval {lake.hours(vacuum_after) + 24} hours"
        session.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('{DURATION}' = '{text}')")
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # The number of tasks in which VACUUM lists files; the default of 10,000 takes a minute for one folder.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "8")
    session.sql(f"VACUUM delta.{quoted(path)} RETAIN {lake.hours(vacuum_after)} HOURS")


def accepts_files(table: DeltaTable) -> bool:
    """Whether complete files may be added to a table: it has no partitions, whose values are only in the log,
    and no constraints on rows."""
    return not table.metadata().partition_columns and not constraints(table)


def constraints(table: DeltaTable) -> Constraints:
    """Returns the NOT NULLs, CHECKs, invariants and generated columns of a table."""
    properties = table.metadata().configuration
    checks = {
        k.removeprefix(_CHECK): v for k, v in properties.items() if k.startswith(_CHECK) and v is not None
    }
    for one in table.schema().fields:
        if invariant := one.metadata.get(INVARIANT):
            checks[f"of {one.name}"] = str(json.loads(str(invariant))["expression"]["expression"])
        if expression := one.metadata.get(_GENERATED):
            checks[f"of {one.name}"] = f"{quoted(one.name)} <=> ({expression})"
    return Constraints(frozenset(f.name for f in table.schema().fields if not f.nullable), checks)


def mark(relation: Relation) -> dict[str, str]:
    """Returns the commit info with the mark of a layout.

    >>> one = Relation(1, "s", "t", "d", ())
    >>> mark(one) == mark(Relation(2, "s", "t", "d", ())), list(mark(one))
    (True, ['tailrace.layout'])
    """
    columns = json.dumps([[c.attnum, c.name, c.type] for c in relation.columns])
    return {_MARK: hashlib.sha256(columns.encode()).hexdigest()[:16]}


def is_marked(info: Mapping[str, object]) -> bool:
    """Whether the info of a commit has the mark of a layout.

    >>> is_marked(mark(Relation(1, "s", "t", "d", ()))), is_marked({"operation": "WRITE"})
    (True, False)
    """
    return _MARK in info


def has_mark(table: DeltaTable, relation: Relation) -> bool:
    """Whether the newest mark of a target is that of a layout."""
    marks = [h[_MARK] for h in table.history(_MARK_COMMITS) if is_marked(h)]
    return bool(marks) and marks[0] == mark(relation)[_MARK]
