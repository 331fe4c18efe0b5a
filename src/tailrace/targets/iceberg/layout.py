"""Layouts of Iceberg targets: create tables, and follow the source's layout by field id.

A column keeps its field id under a new name and in a wider type, and a column that was created again gets a
new one. So adding, renaming, dropping and widening columns are commits of metadata. Files are rewritten only
if earlier rows get values: an added column with a default, or a type that readers do not convert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema

from ...errors import ApplyError, ConcurrentCommitError
from ...lake import retrying
from ...lake.failpoints import reach
from ...lake.iceberg import types
from ...lake.iceberg.commit import Commit
from ...lake.iceberg.files import IcebergFiles
from ...lake.iceberg.partitions import UNPARTITIONED, PhysicalLayout
from ...lake.iceberg.table import IcebergTable
from ...lake.iceberg.tables import IcebergTables
from ...lake.parts import AddedFile
from ...model.change import Relation
from ...model.types import schema_of
from ..lake.layout import extended_layouts, fits, mark
from ..lake.reshape import reshaped_files
from ..rule_columns import RULE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create(
    tables: IcebergTables, name: str, relation: Relation, physical: PhysicalLayout = UNPARTITIONED
) -> None:
    """Creates an empty target if it does not exist. `physical`: its partitions and order."""
    tables.create(name, schema_of(relation.columns), rule_columns=_ruled(relation), physical=physical)


def _ruled(relation: Relation) -> set[str]:
    return {c.name for c in relation.columns if c.kind == RULE}


def alter(
    spark: SparkSession | None,
    tables: IcebergTables,
    name: str,
    before: Relation,
    after: Relation,
    physical: PhysicalLayout,
    *,
    shared: bool,
) -> None:
    """Changes a target from one layout to another, which `lake.layout.refuse_layout` has accepted. Does
    nothing if it has the new layout already. `shared`: columns of other sources stay."""
    if not tables.exists(name):
        create(tables, name, after, physical)
        return

    def once() -> None:
        now = tables.open(name)
        layouts = extended_layouts(now, before, after, shared=shared)
        if not fits(now, *layouts):
            _altered(spark, now, *layouts)

    retrying.retried(once, ConcurrentCommitError)


def _altered(spark: SparkSession | None, now: IcebergTable, before: Relation, after: Relation) -> None:
    fields = {one.name: one for one in now.iceberg_schema.fields}
    names, columns = {c.attnum: c.name for c in before.columns}, schema_of(after.columns)
    have, rewrites = {}, False
    for column, new in zip(after.columns, columns, strict=True):
        old = fields.get(names.get(column.attnum, ""))
        if old is None:
            rewrites |= column.missing is not None
        elif types.promotes(old.field_type, types.iceberg_type(new.type)):
            have[column.name] = old
        else:
            rewrites = True
    schema = types.with_ids(columns, have, now.table.metadata.last_column_id)
    _refuse_lost_partitions(now, schema)
    commit = Commit(
        now.name, now.table, schema=schema, info=mark(after),
        properties=types.properties(schema, columns, _ruled(after)),
    )  # fmt: skip
    if rewrites:
        files = replace(now.files, schema=schema.model_dump_json())
        added = reshaped_files(spark, now, files, before, after)
        reach("delta.rewrite")
        commit = replace(commit, removed=list(now.entries.values()), added=added)
    commit.run()


def _refuse_lost_partitions(now: IcebergTable, schema: Schema) -> None:
    """Raises ApplyError if a table is partitioned or sorted by a column that it would lose."""
    ids = {one.field_id for one in schema.fields}
    spec, order = now.table.spec(), now.table.sort_order()
    sources = [*(one.source_id for one in spec.fields), *(one.source_id for one in order.fields)]
    if lost := [now.iceberg_schema.find_column_name(one) for one in sources if one not in ids]:
        raise ApplyError(
            f"the target {now.name} is partitioned or sorted by {lost[0]}, which its new layout has not",
            where=now.name,
            hint="give the table another partition spec or sort order, then `tailrace resume`; or keep the "
            "column (`ddl: {drop: ignore}`)",
        )


@dataclass(frozen=True)
class Replacement:
    """New columns of a table whose rows are replaced. Picklable.

    Attributes:
        name: the table.
        relation: the layout.
        files: writes the new files.
    """

    name: str
    relation: Relation
    files: IcebergFiles

    @staticmethod
    def of(tables: IcebergTables, name: str, relation: Relation, physical: PhysicalLayout) -> Replacement:
        """Prepares a replacement; creates the table if it does not exist."""
        create(tables, name, relation, physical)
        now = tables.open(name)
        schema = _replaced(now, schema_of(relation.columns))
        _refuse_lost_partitions(now, schema)
        return Replacement(name, relation, replace(now.files, schema=schema.model_dump_json()))

    def commit(self, tables: IcebergTables, added: Sequence[AddedFile], progress: Mapping[str, int]) -> int:
        """Replaces all rows of the table by files, whatever it contains, and returns the version.

        Raises:
            ConcurrentCommitError: another process has changed the columns since the replacement was
                prepared.
        """
        columns, schema = schema_of(self.relation.columns), types.parsed(self.files.schema)

        def once() -> int:
            now = tables.open(self.name)
            if _replaced(now, columns).as_struct() != schema.as_struct():
                raise _OtherColumnsError
            same = now.iceberg_schema.as_struct() == schema.as_struct()
            commit = Commit(
                self.name, now.table, list(now.entries.values()), added, progress, mark(self.relation),
                None if same else schema, types.properties(schema, columns, _ruled(self.relation)),
            )  # fmt: skip
            return commit.run()

        try:
            return retrying.retried(once, ConcurrentCommitError)
        except _OtherColumnsError:
            raise ConcurrentCommitError(
                "another process has changed the columns of the table while its rows were loaded",
                where=self.name,
                hint="nothing was written; the rows are read again",
            ) from None


class _OtherColumnsError(Exception):
    """The table has other columns than a replacement was prepared for."""


def _replaced(now: IcebergTable, columns: pa.Schema) -> Schema:
    """Returns the schema of a table whose rows are replaced. Columns of the same name and type keep their
    ids."""
    have = {
        one.name: one
        for one in now.iceberg_schema.fields
        if one.name in columns.names
        and types.promotes(one.field_type, types.iceberg_type(columns.field(one.name).type))
    }
    return types.with_ids(columns, have, now.table.metadata.last_column_id)
