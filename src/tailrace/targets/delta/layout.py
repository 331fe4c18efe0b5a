"""Layouts of Delta targets: create, follow the source's layout, keep files in order.

Columns are matched by `attnum`, so a rename is a rename and a column dropped and made again is a new one.
Columns that somebody added to a target belong to neither layout: they stay, with their values.
Added nullable columns are a commit of metadata; everything else is one rewrite of the table in one commit
(column mapping, which would make renames cheap, is beyond delta-rs). Progress stays as it is: it stands in
the log, which an overwrite continues.
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
"""Metadata of columns that rules have added: `RULE`."""
_CHECK = "delta.constraints."
_GENERATED = "delta.generationExpression"
_MARK = "tailrace.layout"
_LOOK_BACK = 50

_TO_TEXT = frozenset({"boolean", "smallint", "int", "bigint", "date", "timestamp_ntz", "timestamp", "binary"})
"""Types whose values are written as text in PostgreSQL's own words; decimals, too."""


def create(path: str, relation: Relation) -> None:
    """Makes an empty target; nothing happens when it is there."""
    lake.create(path, pa.schema(_fields(relation.columns)), PROPERTIES)


def _fields(columns: Sequence[Column]) -> list[pa.Field]:
    """The fields of columns; those that rules add say so."""
    fields = zip(columns, schema_of(columns), strict=True)
    return [f.with_metadata({_ADDED: RULE}) if c.kind == RULE else f for c, f in fields]


def rule_columns(table: DeltaTable) -> set[str]:
    """The columns that rules have added to a target."""
    return {f.name for f in table.schema().fields if f.metadata.get(_ADDED) == RULE}


def refuse_layout(path: str, before: Relation, after: Relation, *, shared: bool = False) -> None:
    """Refuses a layout that a target cannot be given; `shared`: others may feed it, too.

    Raises:
        ApplyError: it takes from them what they have made of the target.
        BaselineNeededError: values of the rows that are there do not tell what they are in it.
    """
    now = DeltaTable(path)
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
    """Two layouts with the columns that somebody added to the target.

    Raises:
        ApplyError: a column of the new layout would replace one of them.
    """
    fields, ruled = {f.name: f.type for f in lake.arrow_schema(now)}, rule_columns(now)
    known, new = {c.name for c in before.columns}, {c.name for c in after.columns}
    more = [_added(path, n, kind, ruled) for n, kind in fields.items() if n not in known | new]
    was, made = (one.with_columns([*one.columns, *more]) for one in (before, after))
    taken = [n for n in fields if n in new - known]
    if taken and not has_mark(now, made) and (full := [n for n in taken if _has_values(now, n)]):
        raise ApplyError(
            f"the target {path} has a column {full[0]!r} already, with values that somebody wrote; the "
            "source has a new column of that name",
            where=after.table,
            hint="drop the column there, or give it another name, then `tailrace resume` the table",
        )
    return was, made


def refuse_lost_columns(path: str, table: DeltaTable, relation: Relation) -> None:
    """Raises ApplyError if a keyless table has values in a column that somebody added: rows that are written
    as copies of each other have none."""
    known = {c.name for c in relation.columns}
    for name in (f.name for f in table.schema().fields if f.name not in known):
        if _has_values(table, name):
            raise ApplyError(
                f"the target {path} has values in the column {name!r} that somebody added; a batch of a "
                "keyless table that is too large for one task would lose them",
                where=relation.table,
                hint="move the column to a table of its own, then `tailrace resume` the table; or give the "
                "table a key",
            )


def _has_values(table: DeltaTable, name: str) -> bool:
    """Whether a column has values; so it seems where only Spark can read the files."""
    return bool(lake.unread(table) or lake.dataset(table).count_rows(filter=pc.field(name).is_valid()))


def _added(path: str, name: str, kind: pa.DataType, ruled: Collection[str]) -> Column:
    """A column that somebody added to a target, as layouts have it.

    Raises:
        ApplyError: tailrace cannot write its type.
    """
    try:
        made = rule_column(name, spark_type(kind))
    except UnsupportedError:
        raise ApplyError(
            f"the target {path} has a column {name!r} of the type {kind}, which somebody added and tailrace "
            "cannot write: a new layout would lose its values",
            where=path,
            hint="move the column to a table of its own, then `tailrace resume` the table",
        ) from None
    return made if name in ruled else replace(made, kind=made.type)


def _layouts_of_shared(
    path: str, now: DeltaTable, before: Relation, after: Relation
) -> tuple[Relation, Relation]:
    """Two layouts of a source with what others have made of the target; the new one takes nothing of it."""
    have = {f.name: spark_type(f.type) for f in lake.arrow_schema(now)}
    made = shared_layouts(before, after, have, rule_columns(now))
    refuse_column_loss(*made, path)
    return made


def alter(spark: SparkSession, path: str, before: Relation, after: Relation, *, shared: bool = False) -> None:
    """Brings a target from one layout to another, which `refuse_layout` lets be; nothing happens when it has
    that one already. `shared`: what other sources have made of it stays."""
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
    """Gives the version with the new layout; None when somebody else committed before it."""
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
    """Whether the target has the new layout already (a crash came between the layout and its first batch)."""
    wanted = {c.name: arrow_type(c.type) for c in after.columns}
    if have != wanted:
        return False
    numbers = {c.name: c.attnum for c in before.columns}
    if all(numbers.get(c.name, c.attnum) == c.attnum for c in after.columns):
        return True
    return has_mark(table, after)  # the names alone do not tell


def _rewrite(
    spark: SparkSession, path: str, table: DeltaTable, before: Relation, after: Relation
) -> int | None:
    files = parts(spark, path, table, before, after)
    reach("delta.rewrite")
    now, schema = table.version(), _schema_of(table, before, after)
    return lake.overwrite(path, files, schema=schema, progress={}, only_after=now, info=mark(after))


def _schema_of(table: DeltaTable, before: Relation, after: Relation) -> pa.Schema:
    """The schema of a new layout; columns that stay demand what they have demanded, and those that nothing
    happens to keep their metadata."""
    names = {c.attnum: c.name for c in before.columns}
    had, have = {f.name: f for f in table.schema().fields}, lake.arrow_schema(table)
    made = []
    for one, new in zip(after.columns, _fields(after.columns), strict=True):
        was = had.get(names.get(one.attnum, ""))
        said = dict(new.metadata or {})
        if was and was.name == new.name and arrow_type(one.type) == have.field(new.name).type:
            said |= {key: str(text) for key, text in was.metadata.items()}
        elif was and INVARIANT in was.metadata:
            said[INVARIANT] = str(was.metadata[INVARIANT])
        made.append(pa.field(new.name, new.type, was is None or was.nullable, said))
    return pa.schema(made)


def maintain_distributed(spark: SparkSession, path: str, small_files: int, vacuum_after: float) -> None:
    """The same by Spark, which knows deletion vectors; it writes its log checkpoints by itself."""
    guards.check()
    sizes = actions(DeltaTable(path))["size_bytes"].to_pylist()
    mine = spark_io.merge_session(spark)
    if sum(size < lake.SMALL_FILE for size in sizes) >= max(small_files, 2):
        mine.sql(f"OPTIMIZE delta.{quoted(path)}").collect()
    if DeltaTable(path).metadata().configuration.get(DURATION) == lake.PROPERTIES[DURATION]:
        # Spark deletes the files of removals that the log remembers, and reads no version from before them.
        text = f"interval {lake.hours(vacuum_after) + 24} hours"
        mine.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('{DURATION}' = '{text}')")
    mine.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # VACUUM cuts its listing into that many tasks; the default of 10,000 takes a minute for one folder.
    mine.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "8")
    mine.sql(f"VACUUM delta.{quoted(path)} RETAIN {lake.hours(vacuum_after)} HOURS")


def accepts_files(table: DeltaTable) -> bool:
    """Whether whole files may be added to a table: they have all of its columns (values of partitions are in
    the log alone), and it demands nothing of their rows."""
    return not table.metadata().partition_columns and not constraints(table)


def constraints(table: DeltaTable) -> Constraints:
    """NOT NULL, CHECKs, invariants and generated columns that a table has."""
    words = table.metadata().configuration
    checks = {k.removeprefix(_CHECK): v for k, v in words.items() if k.startswith(_CHECK) and v is not None}
    for one in table.schema().fields:
        if invariant := one.metadata.get(INVARIANT):
            checks[f"of {one.name}"] = str(json.loads(str(invariant))["expression"]["expression"])
        if made := one.metadata.get(_GENERATED):
            checks[f"of {one.name}"] = f"{quoted(one.name)} <=> ({made})"
    return Constraints(frozenset(f.name for f in table.schema().fields if not f.nullable), checks)


def mark(relation: Relation) -> dict[str, str]:
    """Commit info for a layout.

    >>> one = Relation(1, "s", "t", "d", ())
    >>> mark(one) == mark(Relation(2, "s", "t", "d", ())), list(mark(one))
    (True, ['tailrace.layout'])
    """
    words = json.dumps([[c.attnum, c.name, c.type] for c in relation.columns])
    return {_MARK: hashlib.sha256(words.encode()).hexdigest()[:16]}


def is_marked(info: Mapping[str, object]) -> bool:
    """Whether a commit, by its info, gives the whole target a layout.

    >>> is_marked(mark(Relation(1, "s", "t", "d", ()))), is_marked({"operation": "WRITE"})
    (True, False)
    """
    return _MARK in info


def has_mark(table: DeltaTable, relation: Relation) -> bool:
    """Whether the newest mark of a target is that of a layout."""
    marks = [h[_MARK] for h in table.history(_LOOK_BACK) if is_marked(h)]
    return bool(marks) and marks[0] == mark(relation)[_MARK]
