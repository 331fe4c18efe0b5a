"""Writes the files of a target that a large batch changes: what remains of the changes of all shards replaces
their rows, and new rows become parts of their own."""

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
    """Some rows of the file of a shard."""

    file: ScratchFile
    begin: int
    end: int


@dataclass(frozen=True)
class PartInput:
    """A piece to write.

    Attributes:
        file: the file of the target that it replaces, which of its pieces it is, and its bytes; None: new
            rows alone.
        met: rows that replace some of the file.
        new: rows that come at the end.
    """

    file: str | None
    part: int
    size: int
    changed: tuple[RowRange, ...]
    new: tuple[RowRange, ...] = ()

    @property
    def weight(self) -> int:
        """Its relative cost."""
        return 1 + (min(self.size, PART) if self.file else PART)


def part_inputs(target: TargetVersion, results: Sequence[ShardResult], key: str) -> list[PartInput]:
    """The pieces that a batch writes; few new rows go to the end of the file with the greatest keys, as far
    as files are written."""
    changed: dict[int, list[RowRange]] = {}
    for result in results:
        for number, begin, end in result.spans:
            assert result.file is not None  # noqa: S101 - it has rows
            changed.setdefault(number, []).append(RowRange(result.file, begin, end))
    made, last, greatest = list[PartInput](), -1, None
    for number, rows in sorted(changed.items()):
        file = target.files[number]
        many = part_count(file["size_bytes"])
        made += [PartInput(file["path"], part, file["size_bytes"], tuple(rows)) for part in range(many)]
        high = column_range(file, key)[1]
        if greatest is None or (high is not None and high >= greatest):
            last, greatest = len(made) - many, high
    return _with_new(made, last, [r for r in results if r.file is not None and r.new[1] > r.new[0]])


def _with_new(made: list[PartInput], last: int, results: Sequence[ShardResult]) -> list[PartInput]:
    """The pieces, with the new rows of shards. They are in order of the key, so those of one piece are
    neighbours."""
    whole = [(r.file, *r.new) for r in results if r.file is not None]
    size = sum(file.bytes * (end - begin) // max(1, file.rows) for file, begin, end in whole)
    if whole and made and size <= lake.SMALL_FILE:
        last_piece = made[last]
        new = tuple(RowRange(*one) for one in whole)
        made[last] = PartInput(last_piece.file, last_piece.part, last_piece.size, last_piece.changed, new)
        return made
    many = 1 + size // PART if whole else 0
    for n in range(many):
        cuts = [(f, b + (e - b) * n // many, b + (e - b) * (n + 1) // many) for f, b, e in whole]
        made.append(PartInput(None, 0, PART, (), tuple(RowRange(*cut) for cut in cuts)))
    return made


@dataclass(frozen=True)
class WriteTask:
    """Writes a piece to a new part, which nothing refers to yet. Returns None when no row remains.

    Attributes:
        target: the version of the target that is changed.
        key, schema: of the rows that remain of changes.
        partial: some of their images leave columns out.
        memory: what a task may hold.
    """

    target: TargetVersion
    key: tuple[str, ...]
    schema: pa.Schema
    partial: bool
    memory: int | None

    def __call__(self, piece: PartInput) -> lake.AddedFile | None:
        groups, begin, end = None, 0, None
        if piece.file is not None and part_count(piece.size) > 1:
            cut = self._files(self._source(self._rows(()))).group_ranges(piece.file, piece.size)
            if piece.part >= len(cut):
                return None
            groups, begin, end = cut[piece.part]
        changed, new = self._rows(piece.changed), self._rows(piece.new)
        mine = pc.greater_equal(changed[ROW], begin)
        changed = changed.filter(mine if end is None else pc.and_(mine, pc.less(changed[ROW], end)))
        changed = changed.take(pc.sort_indices(changed, [(ROW, "ascending")]))
        rows = np.asarray(one(changed[ROW]).to_numpy(), np.int64) - begin
        source = self._source(pa.concat_tables([changed, new]))
        changes = np.arange(changed.num_rows), np.arange(changed.num_rows, changed.num_rows + new.num_rows)
        return self._files(source).write(PartRewrite(piece.file or "", groups, rows, *changes))

    def _rows(self, some: Sequence[RowRange]) -> pa.Table:
        extra = [pa.field(OP, pa.string()), pa.field(KEPT, pa.string()), pa.field(ROW, pa.int64())]
        wanted = pa.schema([*extra, *self.schema])
        found = [one.file.read(wanted.names, one.begin, one.end) for one in some]
        return pa.concat_tables(
            [wanted.empty_table(), *(rows.select(wanted.names).cast(wanted) for rows in found)]
        )

    def _source(self, rows: pa.Table) -> Source:
        """The rows as a merge writes them; nothing looks them up."""
        rows = rows.combine_chunks()
        keys = Keys([pa.nulls(rows.num_rows, pa.int8())])
        deletes = pc.equal(rows[OP], DELETE).to_numpy()
        return Source(
            rows, self.key, self.schema, self.partial, keys, keys.last, np.asarray(deletes, np.bool_)
        )

    def _files(self, source: Source) -> TargetFiles:
        share = BATCH if self.memory is None else min(BATCH, self.memory // 6)
        return TargetFiles(
            self.target.path, source, share, other_columns(self.target.columns, self.schema.names)
        )
