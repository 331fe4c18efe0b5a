"""Compares source and target of tables: counts and checksums per bucket of keys, then rows where these
differ.

Tasks read both sides from files (`hash_tasks`), one task per slot. They run in Spark if the tables have at
least `spark.driver_limit` rows and the session is ready, otherwise in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from ..errors import TailraceError
from ..execution import Job, executor_of, map_tasks, slots
from .file_rows import FileRows
from .hash_tasks import (
    COPIES,
    HASH,
    BucketSums,
    FirstRows,
    MatchHashes,
    Numbers,
    Piece,
    RowsOfKeys,
    Shape,
    Surplus,
    WriteHashes,
    empty_rows,
    first_rows,
    shape_of,
    sum_buckets,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_R = TypeVar("_R")
PIECE_BYTES = (4 << 20, 32 << 20)
"""The minimum and maximum bytes of files that a task reads."""
PACK_BYTES = 64 << 20
"""The maximum bytes of tables that one job compares together."""
GROUP_ROWS = 2_000_000
"""The number of rows whose hashes one task matches, approximately."""
SAMPLE_LENGTH = 200
"""The maximum number of characters of a sample's value."""
SAMPLE_ROWS = 10_000
"""The minimum number of differing rows from which samples are chosen."""


@dataclass(frozen=True)
class TableResult:
    """Result of validating one table.

    Attributes:
        equal: same columns, same rows.
        source_rows, target_rows: counts at the common position.
        buckets, differing_buckets: the number of buckets of keys that were compared, and of those that
            differ.
        differing_rows: rows on one side only; a changed row counts once per side.
        samples: some of them: {"side": "source" | "target", column: text, ...}; long texts are shortened.
        columns: a message if the columns differ.
        overlaid: whether stored changes had to be applied to the target's version to reach the position.
        as_null: source values that the column's lake type cannot hold. They were compared as NULL, which the
            target has instead (`on_bad_value`).
        not_compared: why the table could not be compared; then it is not `equal`, and nothing is counted.
    """

    table: str
    equal: bool
    source_rows: int
    target_rows: int
    buckets: int
    differing_buckets: int
    differing_rows: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)
    columns: str | None = None
    overlaid: bool = False
    seconds: float = 0.0
    not_compared: str | None = None
    as_null: int = 0


@dataclass(frozen=True)
class TablePair:
    """Both sides of a table.

    Attributes:
        key: the target's key columns; empty for a keyless table.
        overlaid: whether stored changes were applied to the target's version.
    """

    table: str
    key: tuple[str, ...]
    left: FileRows
    right: FileRows
    overlaid: bool = False

    @property
    def rows(self) -> int:
        """The approximate number of rows of the larger side."""
        return max(self.left.rows, self.right.rows)

    @property
    def size(self) -> int:
        """The bytes of both sides."""
        return self.left.size + self.right.size


@dataclass(frozen=True)
class TableSums:
    """The bucket sums of both sides of a table, and the pieces that they come from."""

    shape: Shape
    pieces: Sequence[Piece]
    left: BucketSums
    right: BucketSums

    @property
    def differing(self) -> Numbers:
        """The buckets that differ."""
        return self.left.differing(self.right)

    @property
    def rows_to_match(self) -> int:
        """The number of rows of both sides in these buckets."""
        return int((self.left.rows + self.right.rows)[self.differing].sum())

    @property
    def differing_bytes(self) -> int:
        """The approximate bytes of these rows in memory."""
        every = int((self.left.rows + self.right.rows).sum())
        return self.rows_to_match * (self.left.bytes + self.right.bytes) // max(1, every)


@dataclass(frozen=True)
class Comparison:
    """Compares tables by tasks.

    Attributes:
        session: the Spark session that may run the tasks; None for this process.
        scratch: a folder that all tasks can read and write.
        kind: `validate` or `repair`, the kind of the jobs.
    """

    session: SparkSession | None
    scratch: str
    kind: str = "validate"

    def compare(
        self,
        pairs: Sequence[TablePair],
        buckets: int,
        samples: int,
        now: Callable[[str], None] = lambda _: None,
    ) -> Iterator[tuple[TablePair, TableResult | TailraceError]]:
        """Yields each table with its result, or with the error that prevents its comparison.

        `now` is called with a message before each job.
        """
        for pack in group_small_tables(pairs):
            began = time.monotonic()
            now("comparing " + ", ".join(pair.table for pair in pack))
            sums = self.sums(pack, buckets)
            for pair, one in zip(pack, sums, strict=True):
                if isinstance(one, TailraceError):
                    yield pair, one
                else:
                    yield pair, self._result(pair, one, samples, began)

    def _result(self, pair: TablePair, sums: TableSums, samples: int, began: float) -> TableResult:
        _, words = shape_of(pair.left.schema, pair.right.schema, pair.key, 1)
        count, some = self._samples(pair, sums, samples) if len(sums.differing) else (0, [])
        return TableResult(
            pair.table,
            not len(sums.differing) and not words,
            int(sums.left.rows.sum()),
            int(sums.right.rows.sum()),
            int(np.count_nonzero(sums.left.rows + sums.right.rows)),
            len(sums.differing),
            count,
            some,
            "; ".join(words) or None,
            pair.overlaid,
            round(time.monotonic() - began, 3),
        )

    def sums(self, pairs: Sequence[TablePair], buckets: int) -> list[TableSums | TailraceError]:
        """Returns the sums of tables, computed by one job."""
        shapes = [shape_of(p.left.schema, p.right.schema, p.key, buckets)[0] for p in pairs]
        most = self._piece_bytes(pairs)
        cut: list[list[Piece]] = []
        for pair, shape in zip(pairs, shapes, strict=True):
            sides = enumerate((pair.left, pair.right) if shape.schema else ())
            cut.append(
                [Piece(at, rows, size, shape) for at, side in sides for rows, size in side.pieces(most)]
            )
        every = [piece for pieces in cut for piece in pieces]
        rows = sum(pair.rows for pair in pairs)
        name = pairs[0].table if len(pairs) == 1 else f"{len(pairs)} tables"
        job = Job(self.kind, f"{self.kind} {name}: {rows:,} rows, {len(every)} parts", rows)
        weights = [piece.size for piece in every] if len(pairs) > 1 else None
        found = iter(map_tasks(sum_buckets, every, session=self.session, job=job, weights=weights))
        return [
            _add_up(shape, pieces, [next(found) for _ in pieces])
            for shape, pieces in zip(shapes, cut, strict=True)
        ]

    def _piece_bytes(self, pairs: Sequence[TablePair]) -> int:
        """Returns the bytes of a piece, so that there are several pieces per slot."""
        session = executor_of(self.session, sum(pair.rows for pair in pairs))
        least, most = PIECE_BYTES
        return min(most, max(least, sum(pair.size for pair in pairs) // (4 * slots(session))))

    def surplus(self, pair: TablePair, sums: TableSums, groups: int) -> tuple[list[Surplus], list[Piece]]:
        """Returns the rows on one side only, per group of keys, and the pieces that may contain them."""
        work = WriteHashes(self.scratch, sums.differing, groups)
        files = self._run(pair, "hashes of rows that may differ", work, sums.pieces)
        near = [(piece, file) for piece, file in zip(sums.pieces, files, strict=True) if file is not None]
        left, right = (tuple(file for piece, file in near if piece.side == side) for side in (0, 1))
        found = self._run(
            pair, "rows on one side only", MatchHashes(self.scratch, (left, right)), range(groups)
        )
        return found, [piece for piece, _ in near]

    def rows_of_keys(self, pair: TablePair, file: str, pieces: Sequence[Piece]) -> tuple[pa.Table, pa.Table]:
        """Returns all rows of both sides with the keys of a group's `Surplus`: `HASH`, then the columns as
        c0, ..."""
        found, none = (
            self._run(pair, "rows that differ", RowsOfKeys(file), pieces),
            empty_rows(pieces[0].shape),
        )
        left, right = (
            pa.concat_tables([none, *(t for p, t in zip(pieces, found, strict=True) if p.side == side)])
            for side in (0, 1)
        )
        return left, right

    def _samples(self, pair: TablePair, sums: TableSums, most: int) -> tuple[int, list[dict[str, Any]]]:
        """Returns the number of rows on one side only, and some of them.

        For a row on both sides, its surplus copies count. The samples are the first by key, unless there are
        more than `SAMPLE_ROWS` rows.
        """
        found, pieces = self.surplus(pair, sums, max(1, -(-sums.rows_to_match // GROUP_ROWS)))
        files: list[str] = []
        chosen = 0
        for one in found:
            if one.file is not None and chosen < max(most, SAMPLE_ROWS):
                files.append(one.file)
                chosen += one.different
        count = sum(one.count for one in found)
        if not most or not files:
            return count, []
        some = self._run(pair, "samples of the rows that differ", FirstRows(tuple(files), most), pieces)
        rows = first_rows(some, sums.shape, most).drop_columns([HASH])
        return count, [
            _sample(row) for row in rows.rename_columns([COPIES, *sums.shape.schema.names]).to_pylist()
        ]

    def _run(self, pair: TablePair, what: str, task: Callable[[Any], _R], inputs: Sequence[Any]) -> list[_R]:
        job = Job(self.kind, f"{self.kind} {pair.table}: {what}", pair.rows, counts=False)
        return map_tasks(task, inputs, session=self.session, job=job)


def group_small_tables(pairs: Sequence[TablePair]) -> Iterator[list[TablePair]]:
    """Yields groups of small tables, and large tables alone."""
    pack: list[TablePair] = []
    filled = 0
    for pair in pairs:
        size = pair.size
        if pack and filled + size > PACK_BYTES:
            yield pack
            pack, filled = [], 0
        pack.append(pair)
        filled += size
    if pack:
        yield pack


def _add_up(
    shape: Shape, pieces: Sequence[Piece], found: Sequence[BucketSums | TailraceError]
) -> TableSums | TailraceError:
    sides = BucketSums.none(shape.buckets), BucketSums.none(shape.buckets)
    for piece, sums in zip(pieces, found, strict=True):
        if isinstance(sums, TailraceError):
            return sums
        sides[piece.side].add(sums)
    return TableSums(shape, pieces, *sides)


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    side = "source" if row.pop(COPIES) > 0 else "target"
    return {"side": side, **{n: None if v is None else _shortened(str(v)) for n, v in row.items()}}


def _shortened(text: str) -> str:
    """Returns a value as text; a long one as its start, its length and a digest that identifies it."""
    if len(text) <= SAMPLE_LENGTH:
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{text[: SAMPLE_LENGTH // 2]}... ({len(text):,} characters, SHA-256 {digest})"
