"""Log records as sources give them and LOG keeps them: their columns, their kinds, a chunk of them."""

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
"""Columns of a chunk of log records. LOGADDR: 20 bytes, ascending within a task; COMMIT_TIME: the same for
all records of a transaction. Columns that the source cannot know (RECNAME, CHANGE_SEQ) are added by LOG."""

TRX_START, COMMIT, INSERT, UPDATE, DELETE, DDL, MESSAGE = 7, 12, 1, 3, 4, 13, 100
"""RECIDs (solidDB's numbers, spec/soliddb.md §2; 100 is tailrace's). DDL means a truncate."""
FLAG_DATA = 1
"""FLAGS bit 0: the record carries DATA (spec/soliddb.md §3)."""


@dataclass(frozen=True)
class Chunk:
    """A piece of the log, as returned by one `read`.

    Attributes:
        records: log records (`RECORDS`), in commit order; a transaction may go on in the next chunk.
        relations: (index, layout): from that record on this layout is in force; only new or changed layouts
            of tables that records speak of.
        complete: number of leading records that end with a whole transaction.
        position: the position after the last whole transaction; None when the chunk ends none. A chunk
            without records has one when the source idles: nothing of interest happened up to there.
    """

    records: pa.RecordBatch
    relations: list[tuple[int, Relation]]
    complete: int
    position: bytes | None
