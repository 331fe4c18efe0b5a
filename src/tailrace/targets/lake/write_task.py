"""Writes the files of a target that a large batch changes: the resulting images of all shards replace rows,
and new rows become separate parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...engine.columns import KEPT, OP, one
from ...engine.keys import Keys
from ...engine.source import Source
from ...lake import delta as lake
from ...model.change import DELETE
from ..scratch import ScratchFile
from .rewrite import TargetVersion
from .shard_task import ROW, ShardResult
from .target_files import BATCH, PART, PartRewrite, TargetFiles, column_range, other_columns, part_count


@dataclass(frozen=True)
class RowRange:
    """A range of rows in the file of a shard."""

    file: ScratchFile
    start: int
    end: int


@dataclass(frozen=True)
class PartInput:
    """The input of one new part.

    Attributes:
        file: the file of the target that is rewritten; None if the part has new rows only.
        part: the index among the parts that replace the file.
        size: the bytes of the file.
        changed: the images that replace rows of the file.
        new: the rows that are appended.
    """

    file: str | None
    part: int
    size: int
    changed: tuple[RowRange, ...]
    new: tuple[RowRange, ...] = ()

    @property
    def weight(self) -> int:
        """The relative cost of writing the part."""
        return 1 + (min(self.size, PART) if self.file else PART)


def part_inputs(target: TargetVersion, results: Sequence[ShardResult], key: str) -> list[PartInput]:
    """Returns the inputs of all parts that a batch writes. A small number of new rows is appended to the
    rewritten file with the greatest keys."""
    changed: dict[int, list[RowRange]] = {}
    for result in results:
        for number, start, end in result.file_ranges:
            assert result.file is not None  # noqa: S101 - it has rows
            changed.setdefault(number, []).append(RowRange(result.file, start, end))
    inputs, last, greatest = list[PartInput](), -1, None
    for number, rows in sorted(changed.items()):
        file = target.files[number]
        count = part_count(file["size_bytes"])
        inputs += [PartInput(file["path"], part, file["size_bytes"], tuple(rows)) for part in range(count)]
        high = column_range(file, key)[1]
        if greatest is None or (high is not None and high >= greatest):
            last, greatest = len(inputs) - count, high
    return _with_new(inputs, last, [r for r in results if r.file is not None and r.new[1] > r.new[0]])


def _with_new(inputs: list[PartInput], last: int, results: Sequence[ShardResult]) -> list[PartInput]:
    """Adds the new rows of shards to the inputs. They are sorted by key, so each part has neighbouring
    rows."""
    whole = [(r.file, *r.new) for r in results if r.file is not None]
    size = sum(file.bytes * (end - start) // max(1, file.rows) for file, start, end in whole)
    if whole and inputs and size <= lake.SMALL_FILE:
        last_input = inputs[last]
        new = tuple(RowRange(*one) for one in whole)
        inputs[last] = PartInput(last_input.file, last_input.part, last_input.size, last_input.changed, new)
        return inputs
    count = 1 + size // PART if whole else 0
    for n in range(count):
        cuts = [(f, b + (e - b) * n // count, b + (e - b) * (n + 1) // count) for f, b, e in whole]
        inputs.append(PartInput(None, 0, PART, (), tuple(RowRange(*cut) for cut in cuts)))
    return inputs


@dataclass(frozen=True)
class WriteTask:
    """Writes a new part, which is not committed, and returns its files; empty if no row remains.

    Attributes:
        target: the version of the target that is changed.
        key, schema: the key and the columns of the resulting images.
        partial: some images leave columns out.
        memory: the memory that a task may use; None: no limit.
    """

    target: TargetVersion
    key: tuple[str, ...]
    schema: pa.Schema
    partial: bool
    memory: int | None

    def __call__(self, part_input: PartInput) -> list[lake.AddedFile]:
        groups, start, end = None, 0, None
        if part_input.file is not None and part_count(part_input.size) > 1:
            cut = self._files(self._source(self._rows(()))).group_ranges(part_input.file, part_input.size)
            if part_input.part >= len(cut):
                return []
            groups, start, end = cut[part_input.part]
        changed, new = self._rows(part_input.changed), self._rows(part_input.new)
        in_range = pc.greater_equal(changed[ROW], start)
        changed = changed.filter(in_range if end is None else pc.and_(in_range, pc.less(changed[ROW], end)))
        changed = changed.take(pc.sort_indices(changed, [(ROW, "ascending")]))
        rows = np.asarray(one(changed[ROW]).to_numpy(), np.int64) - start
        source = self._source(pa.concat_tables([changed, new]))
        changes = np.arange(changed.num_rows), np.arange(changed.num_rows, changed.num_rows + new.num_rows)
        return self._files(source).write(PartRewrite(part_input.file or "", groups, rows, *changes))

    def _rows(self, some: Sequence[RowRange]) -> pa.Table:
        extra = [pa.field(OP, pa.string()), pa.field(KEPT, pa.string()), pa.field(ROW, pa.int64())]
        wanted = pa.schema([*extra, *self.schema])
        found = [one.file.read(wanted.names, one.start, one.end) for one in some]
        return pa.concat_tables(
            [wanted.empty_table(), *(rows.select(wanted.names).cast(wanted) for rows in found)]
        )

    def _source(self, rows: pa.Table) -> Source:
        """Returns the rows as the source of a merge that reads no rows of the target."""
        rows = rows.combine_chunks()
        keys = Keys([pa.nulls(rows.num_rows, pa.int8())])
        deletes = pc.equal(rows[OP], DELETE).to_numpy()
        return Source(
            rows, self.key, self.schema, self.partial, keys, keys.last, np.asarray(deletes, np.bool_)
        )

    def _files(self, source: Source) -> TargetFiles:
        share = BATCH if self.memory is None else min(BATCH, self.memory // 6)
        return TargetFiles(
            self.target.reader, source, share, other_columns(self.target.columns, self.schema.names)
        )
