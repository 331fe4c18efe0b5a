"""TRACKING: one row per change over all tables, in OpenEdge's shape (spec/openedge.md §2).

Written last: if a tracking row is visible, so are its change-table rows. `_Change-Sequence` is the change
number of the task; `change_seq` is tailrace's addition, all 35 digits.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..lake import log
from ..model import sequence

SCHEMA = pa.schema(
    [
        ("_Policy-Id", pa.string()), ("_Tran-Id", pa.int64()), ("_Time-Stamp", pa.timestamp("us", "UTC")),
        ("_Change-Sequence", pa.int64()), ("_Operation", pa.int32()), ("_Change-FieldMap", pa.binary()),
        ("_Recid", pa.int64()), ("_Source-Table-Number", pa.int64()), ("_Partition-Id", pa.int32()),
        ("_Tenant-Id", pa.int32()), ("_Version", pa.int32()), ("_User-Misc", pa.string()),
        ("_User-Name", pa.string()), ("_Misc", pa.string()), ("change_seq", pa.string()),
    ]
)  # fmt: skip
CREATE, DELETE, UPDATE, TRUNCATE = 1, 2, 4, 7
_OPERATION = {log.INSERT: CREATE, log.DELETE: DELETE, log.UPDATE: UPDATE, log.DDL: TRUNCATE}
VERSION = 1


def rows(
    records: pa.RecordBatch,
    changes: np.ndarray[tuple[int], np.dtype[np.int64]],
    field_maps: pa.Array | None,
    policy: str,
) -> pa.RecordBatch:
    """Returns the tracking rows of log records of one table, given their change numbers; `policy` is the
    table's name."""
    n = records.num_rows
    kinds = records["RECID"].to_numpy()
    operation = np.select([kinds == k for k in _OPERATION], list(_OPERATION.values())).astype(np.int32)
    known = {
        "_Policy-Id": pa.repeat(policy, n),
        "_Tran-Id": records["TRXID"],
        "_Time-Stamp": records["COMMIT_TIME"],
        "_Change-Sequence": pa.array(changes),
        "_Operation": pa.array(operation),
        "_Change-FieldMap": field_maps if field_maps is not None else pa.nulls(n, pa.binary()),
        "_Source-Table-Number": records["RELID"],
        "_Version": pa.array(np.full(n, VERSION, np.int32)),
        "change_seq": records["CHANGE_SEQ"],
    }
    arrays = [known[f.name] if f.name in known else pa.nulls(n, f.type) for f in SCHEMA]
    return pa.record_batch(arrays, schema=SCHEMA)


def numbers(seqs: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the change numbers of an array of change sequences (text, 35 digits each)."""
    return sequence.numbers_of(sequence.matrix(seqs))
