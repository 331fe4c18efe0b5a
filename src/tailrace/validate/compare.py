"""Compares source and target of tables, both in files: counts and checksums per bucket of keys, and row by
row where these differ.

Tasks read the files (`hash_tasks`), as many at once as there are slots: in Spark if the tables have at least
`spark.driver_limit` rows and its session is ready, otherwise in this process.
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
"""A piece that a task reads has at least and at most about so many bytes of files."""
PACK_BYTES = 64 << 20
"""Tables are compared by one job up to so many bytes of files together."""
GROUP_ROWS = 2_000_000
"""A task brings the hashes of about so many rows together."""
LONG = 200
"""Characters from which on a sample's value is shortened."""
SAMPLED = 10_000
"""Samples are chosen from at least so many of the differing rows."""


@dataclass(frozen=True)
class TableResult:
    """Result of validating one table.

    Attributes:
        equal: same columns, same rows.
        source_rows, target_rows: counts at the common position.
        buckets, differing_buckets: how many buckets of keys were compared, and how many differ.
        differing_rows: rows on one side only (a changed row counts once on each side).
        samples: some of them: {"side": "source" | "target", column: text, ...}; long texts are shortened.
        columns: a sentence when the columns differ.
        overlaid: whether stored changes had to be laid over the target's version to reach the position.
        as_null: values of the source that the column's lake type cannot hold: they were compared as NULL,
            which the target has in their place (`on_bad_value`).
        not_compared: why the table could not be compared; it is not `equal` then, and nothing is counted.
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
class Pair:
    """Both sides of a table.

    Attributes:
        key: the target's key columns; none: a keyless table.
        overlaid: whether stored changes were laid over the target's version.
    """

    table: str
    key: tuple[str, ...]
    left: FileRows
    right: FileRows
    overlaid: bool = False

    @property
    def rows(self) -> int:
        """About how many rows the larger side has."""
        return max(self.left.rows, self.right.rows)

    @property
    def size(self) -> int:
        """The bytes of both."""
        return self.left.size + self.right.size


@dataclass(frozen=True)
class TableSums:
    """The sums of both sides of a table, and the pieces that they are of."""

    shape: Shape
    pieces: Sequence[Piece]
    left: BucketSums
    right: BucketSums

    @property
    def differing(self) -> Numbers:
        """The buckets that differ."""
        return self.left.differing(self.right)

    @property
    def near(self) -> int:
        """How many rows of both sides are in these buckets."""
        return int((self.left.rows + self.right.rows)[self.differing].sum())

    @property
    def near_bytes(self) -> int:
        """About how many bytes these rows take in memory."""
        every = int((self.left.rows + self.right.rows).sum())
        return self.near * (self.left.bytes + self.right.bytes) // max(1, every)


@dataclass(frozen=True)
class Comparison:
    """Compares tables by tasks.

    Attributes:
        session: whose tasks may work; None: this process does.
        scratch: a folder that all tasks can write to and read.
        kind: `validate` or `repair`, of the jobs.
    """

    session: SparkSession | None
    scratch: str
    kind: str = "validate"

    def compare(
        self, pairs: Sequence[Pair], buckets: int, samples: int, now: Callable[[str], None] = lambda _: None
    ) -> Iterator[tuple[Pair, TableResult | TailraceError]]:
        """The result of each table, or why it cannot be compared; `now` is called before each job."""
        for pack in packed(pairs):
            began = time.monotonic()
            now("comparing " + ", ".join(pair.table for pair in pack))
            sums = self.sums(pack, buckets)
            for pair, one in zip(pack, sums, strict=True):
                if isinstance(one, TailraceError):
                    yield pair, one
                else:
                    yield pair, self._result(pair, one, samples, began)

    def _result(self, pair: Pair, sums: TableSums, samples: int, began: float) -> TableResult:
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

    def sums(self, pairs: Sequence[Pair], buckets: int) -> list[TableSums | TailraceError]:
        """The sums of tables, by one job."""
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
            _together(shape, pieces, [next(found) for _ in pieces])
            for shape, pieces in zip(shapes, cut, strict=True)
        ]

    def _piece_bytes(self, pairs: Sequence[Pair]) -> int:
        """Bytes of a piece: such that there are several for each slot."""
        session = executor_of(self.session, sum(pair.rows for pair in pairs))
        least, most = PIECE_BYTES
        return min(most, max(least, sum(pair.size for pair in pairs) // (4 * slots(session))))

    def surplus(self, pair: Pair, sums: TableSums, groups: int) -> tuple[list[Surplus], list[Piece]]:
        """The rows on one side only, a group of keys after the other; and the pieces that may have them."""
        work = WriteHashes(self.scratch, sums.differing, groups)
        files = self._run(pair, "hashes of rows that may differ", work, sums.pieces)
        near = [(piece, file) for piece, file in zip(sums.pieces, files, strict=True) if file is not None]
        left, right = (tuple(file for piece, file in near if piece.side == side) for side in (0, 1))
        found = self._run(
            pair, "rows on one side only", MatchHashes(self.scratch, (left, right)), range(groups)
        )
        return found, [piece for piece, _ in near]

    def rows_of_keys(self, pair: Pair, file: str, pieces: Sequence[Piece]) -> tuple[pa.Table, pa.Table]:
        """All rows of both sides with the keys of a group's `Surplus`: `HASH`, then the columns as c0, ..."""
        found, none = (
            self._run(pair, "rows that differ", RowsOfKeys(file), pieces),
            empty_rows(pieces[0].shape),
        )
        left, right = (
            pa.concat_tables([none, *(t for p, t in zip(pieces, found, strict=True) if p.side == side)])
            for side in (0, 1)
        )
        return left, right

    def _samples(self, pair: Pair, sums: TableSums, most: int) -> tuple[int, list[dict[str, Any]]]:
        """How many rows are on one side only (for a row on both sides, the surplus copies), and some of them:
        the first by key, unless there are more than `SAMPLED`."""
        found, pieces = self.surplus(pair, sums, max(1, -(-sums.near // GROUP_ROWS)))
        files: list[str] = []
        chosen = 0
        for one in found:
            if one.file is not None and chosen < max(most, SAMPLED):
                files.append(one.file)
                chosen += one.different
        count = sum(one.count for one in found)
        if not most or not files:
            return count, []
        some = self._run(pair, "samples of the rows that differ", FirstRows(tuple(files), most), pieces)
        rows = first_rows(some, sums.shape, most).drop_columns([HASH])
        return count, [
            _shown(row) for row in rows.rename_columns([COPIES, *sums.shape.schema.names]).to_pylist()
        ]

    def _run(self, pair: Pair, what: str, task: Callable[[Any], _R], inputs: Sequence[Any]) -> list[_R]:
        job = Job(self.kind, f"{self.kind} {pair.table}: {what}", pair.rows, counts=False)
        return map_tasks(task, inputs, session=self.session, job=job)


def packed(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Small tables together, large ones alone."""
    pack: list[Pair] = []
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


def _together(
    shape: Shape, pieces: Sequence[Piece], found: Sequence[BucketSums | TailraceError]
) -> TableSums | TailraceError:
    sides = BucketSums.none(shape.buckets), BucketSums.none(shape.buckets)
    for piece, sums in zip(pieces, found, strict=True):
        if isinstance(sums, TailraceError):
            return sums
        sides[piece.side].add(sums)
    return TableSums(shape, pieces, *sides)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    side = "source" if row.pop(COPIES) > 0 else "target"
    return {"side": side, **{n: None if v is None else _shortened(str(v)) for n, v in row.items()}}


def _shortened(text: str) -> str:
    """The text of a value; of a long one its beginning, its length and a digest, which tells two apart."""
    if len(text) <= LONG:
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{text[: LONG // 2]}... ({len(text):,} characters, SHA-256 {digest})"
