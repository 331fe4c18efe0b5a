"""Log records as sources return them and LOG stores them: columns, kinds, and chunks."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ..model.change import Relation

RECORDS = pa.schema(
    [
        ("RECID", pa.int32()),
        ("TRXID", pa.int64()),
        ("STMTTRXID", pa.int64()),
        ("RELID", pa.int64()),
        ("FLAGS", pa.int32()),
        ("LOGADDR", pa.binary()),
        ("DATA", pa.binary()),
        ("COMMIT_TIME", pa.timestamp("us", "UTC")),
    ]
)
"""Columns of a chunk of log records. LOGADDR has 20 bytes and ascends within a task. COMMIT_TIME is the same
for all records of a transaction. LOG adds the columns that the source does not know (RECNAME, CHANGE_SEQ)."""

TRX_START, COMMIT, INSERT, UPDATE, DELETE, DDL, MESSAGE = 7, 12, 1, 3, 4, 13, 100
"""RECIDs (solidDB's numbers, spec/soliddb.md §2; 100 is tailrace's). DDL means a truncate."""
FLAG_DATA = 1
"""FLAGS bit 0: the record carries DATA (spec/soliddb.md §3)."""


@dataclass(frozen=True)
class Chunk:
    """A piece of the log, as returned by one `read`.

    Attributes:
        records: log records (`RECORDS`), in commit order; a transaction may continue in the next chunk.
        relations: (index, layout): the layout valid from that record on; only new or changed layouts of
            tables in the records.
        complete: the number of leading records that end with a whole transaction.
        position: the position after the last whole transaction; None if the chunk completes none. A chunk
            without records has one if the source is idle: no relevant record exists up to there.
    """

    records: pa.RecordBatch
    relations: list[tuple[int, Relation]]
    complete: int
    position: bytes | None
