"""Reading a source to its end, and what came, in short words."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from tailrace.lake.announced import Announced
from tailrace.model.change import Relation
from tailrace.sources.postgresql.source import PostgresSource
from tailrace.wire.records import RECORDS, Chunk

Make = Callable[..., PostgresSource]


def read_all(source: PostgresSource, limit: int = 1 << 20) -> list[Chunk]:
    """Everything the server has committed by now."""
    end, chunks = source.end_position(), []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        chunk = source.read(limit, 0.05)
        if chunk is not None and chunk.records.num_rows:
            chunks.append(chunk)
        reached = source.reached()
        if chunk is None and reached is not None and reached >= end:
            return chunks
    raise AssertionError("the stream did not arrive at the end")


def table_of(chunks: list[Chunk]) -> pa.Table:
    return pa.Table.from_batches([c.records for c in chunks], RECORDS)


def shape(chunks: list[Chunk]) -> list[tuple[int, int]]:
    """(RECID, ordinal) of all records."""
    table = table_of(chunks)
    ordinals = [int.from_bytes(a[8:16], "big") for a in table["LOGADDR"].to_pylist()]
    return list(zip(table["RECID"].to_pylist(), ordinals, strict=True))


def addresses(chunks: list[Chunk]) -> list[bytes]:
    return table_of(chunks)["LOGADDR"].to_pylist()


def layouts(chunks: list[Chunk], *known: Relation) -> list[Relation]:
    """The announced layouts that the relation history gets, which has the known ones."""
    announced = Announced(lambda: [(one, b"") for one in known])
    told = [(one, c.records["LOGADDR"][index].as_py()) for c in chunks for index, one in c.relations]
    return [one for one, address in told if announced.news(one, address)]
