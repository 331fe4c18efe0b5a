"""The applications that have recorded progress in a Delta table, from its log."""

from __future__ import annotations

import pyarrow.fs
import pyarrow.parquet as pq

from ...lake import log_retention
from ...lake.storage import filesystem
from ...model.positions import order_key


def applications(table: str, after: int | None = None) -> set[str]:
    """Returns the application ids that have recorded progress in a table; empty without a table.

    `after` selects those of later versions, searched back to the newest checkpoint; None: those of all.
    """
    fs, folder = filesystem(table)
    listed = fs.get_file_info(pyarrow.fs.FileSelector(f"{folder}/_delta_log", allow_not_found=True))
    if not listed:
        return set()
    checkpoints = [one for one in listed if ".checkpoint." in one.base_name and one.extension == "parquet"]
    newest = max((int(one.base_name[:20]) for one in checkpoints), default=-1)
    found = set[str]()
    for one in checkpoints if after is None else ():
        if int(one.base_name[:20]) == newest:
            with fs.open_input_file(one.path) as file:
                found |= _of_checkpoint(pq.ParquetFile(file))
    for version in log_retention.versions(table):
        if version > max(newest, order_key(after)):
            found |= log_retention.commit_progress(table, version).keys()
    return found


def _of_checkpoint(file: pq.ParquetFile) -> set[str]:
    if "txn" not in file.schema_arrow.names:
        return set()
    rows = file.read(["txn"]).column("txn").drop_null().to_pylist()
    return {row["appId"] for row in rows if row["appId"]}
