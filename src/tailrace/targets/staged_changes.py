"""Change rows that Spark SQL computes, written to files from which they are merged like other batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import DETAIL, NATIVE_OF, RAW_OF, WHY, typed
from ..execution import map_partitions
from ..formats.sqdr import writer as sqdr_writer
from ..formats.sqdr.tables import KEPT, KEYLOG_TABLE
from ..model.change import BEFORE, NATIVE, PREFIX, UPDATE, ChangeTable, Relation
from ..model.types import arrow_type, spark_type
from ..wire.keylog_values import KeyLogField
from .images import col
from .scratch import ScratchFile, ScratchWriter

if TYPE_CHECKING:
    from pyspark.sql import Column

_SEQ, _OPER, _MASK, _AT = (PREFIX + n for n in ("change_seq", "change_oper", "column_mask", "timestamp"))
_COMPUTED = (
    "run_id", "group_id", "subscription_id", "action_taken", "result_row_count", "result_error",
    "flagged_count", "before_key", "after_key", "keylog_sort", "keylog_ts", "insert_ts",
)  # fmt: skip
_NATIVE = [c.name for c in KEYLOG_TABLE.columns if c.name in KEPT and c.name not in _COMPUTED]
"""Key log columns whose values stay the same if the changes were read from a key log."""
_MORE = tuple(one.format("") for one in (NATIVE_OF, RAW_OF))


@dataclass(frozen=True)
class StagedChanges:
    """Changes in files.

    Attributes:
        files: the files; their columns are those of `schema`.
        names: all columns of their change table, whose positions are the bits of masks.
        counts: rows by kind, as in `ChangeBatch.counts`.
    """

    files: tuple[ScratchFile, ...]
    schema: pa.Schema
    names: tuple[str, ...]
    counts: Counter[str]

    @property
    def more(self) -> list[str]:
        """The names of further engine columns, besides headers and data, see `engine.columns`."""
        return [name for name in self.schema.names if name in (WHY, DETAIL) or name.startswith(_MORE)]

    @property
    def bytes(self) -> int:
        """The memory that the changes need."""
        return sum(one.bytes for one in self.files)

    def reads_target(self, key: Sequence[str]) -> bool:
        """Whether the changes have to be compared with rows of a target that has this key."""
        return bool(key) or any(self.counts[kind] for kind in "UDT")

    def logged_as(self, field: KeyLogField) -> KeyLogField:
        """Returns the key log field of a column, in the type that the changes have."""
        raw = RAW_OF.format(field.name)
        if raw not in self.schema.names:
            return field
        return replace(field, type=spark_type(self.schema.field(raw).type))


@dataclass(frozen=True)
class _StageTask:
    """Writes the rows of a partition to a file."""

    folder: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> tuple[ScratchFile | None, Counter[str]]:
        file, counts = ScratchWriter(self.folder, self.schema), Counter[str]()
        for batch in batches:
            rows = typed(batch, self.schema)
            counts += _kinds(rows)
            file.write(pa.Table.from_batches([rows]))
        return file.close(), counts


def _kinds(rows: pa.RecordBatch) -> Counter[str]:
    found = {one["values"]: one["counts"] for one in pc.value_counts(rows[_OPER]).to_pylist()}
    counts = Counter({kind: found.get(kind, 0) for kind in "IUDT"})
    counts["key_changes"] = found.get(BEFORE, 0)
    if _MASK in rows.schema.names:
        absent = pc.and_(pc.equal(rows[_OPER], UPDATE), rows[_MASK].is_valid())
        counts["absent"] = pc.sum(absent).as_py() or 0
    return counts


def stage(changes: ChangeTable, relation: Relation, folder: str, *, ordered: bool = False) -> StagedChanges:
    """Writes changes to files of a folder, in one job, in the columns and types of a relation.

    The files also have the headers that a key log records. If the changes were validated, they have the error
    of each change (`WHY`); values that do not fit the type are then NULL, and are kept in separate columns.

    Args:
        changes: the changes.
        relation: the columns and types.
        folder: the folder of the files.
        ordered: write the changes in their order.
    """
    columns = _headers(changes) | _data(changes, relation)
    rows = changes.df.select(*[value.alias(name) for name, value in columns.items()])
    if ordered:
        rows = rows.orderBy(_SEQ, _OPER)
    schema = pa.schema([(f.name, arrow_type(f.dataType.simpleString())) for f in rows.schema])
    found = map_partitions(rows, _StageTask(folder, schema))
    files = tuple(file for file, _ in found if file is not None)
    counts = reduce(add, (counts for _, counts in found), Counter[str]())
    return StagedChanges(files, schema, tuple(changes.df.columns), counts)


def _data(changes: ChangeTable, relation: Relation) -> dict[str, Column]:
    from pyspark.sql import functions as F

    have = {f.name: f.dataType.simpleString() for f in changes.df.schema}
    validated = WHY in have
    columns: dict[str, Column] = {}
    for c in relation.columns:
        value = col(c.name) if c.name in have else F.lit(None)
        columns[c.name] = value.try_cast(c.type) if validated else value.cast(c.type)
        if validated and have.get(c.name, c.type) != c.type:
            columns[RAW_OF.format(c.name)] = value
    return columns


def _headers(changes: ChangeTable) -> dict[str, Column]:
    header, have = changes.header, set(changes.df.columns)
    columns = {_SEQ: col(header("change_seq")), _OPER: col(header("change_oper"))}
    if header("column_mask") in have:
        columns[_MASK] = col(header("column_mask"))
    if header("timestamp") in have:
        columns[_AT] = col(header("timestamp")).cast("timestamp")
    if WHY in have:
        columns[WHY] = col(WHY)
    if any(sqdr_writer.has(changes, h) for h in ("user_name", "recid")):
        columns[DETAIL] = sqdr_writer.detail(changes)
    for name in _NATIVE:  # the key log of another product has finer codes
        if sqdr_writer.has(changes, NATIVE + name):
            columns[NATIVE_OF.format(name)] = col(header(NATIVE + name))
    transaction = header("transaction_id")
    if transaction in have:
        columns[PREFIX + "transaction_id"] = col(transaction).cast("string")
    return columns
