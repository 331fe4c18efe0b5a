"""Who writes to a Delta table: the app ids whose progress its log has."""

from __future__ import annotations

import json

import pyarrow.fs
import pyarrow.parquet as pq

from .parts import filesystem

_CHECKPOINT = ".checkpoint"


def applications(table: str, after: int = -1) -> set[str]:
    """The app ids that have made progress in a table; none if it is not there. `after`: only those of later
    versions, and then only as far as the newest checkpoint."""
    fs, folder = filesystem(table)
    listed = fs.get_file_info(pyarrow.fs.FileSelector(f"{folder}/_delta_log", allow_not_found=True))
    log = {one.path: one.base_name.partition(".") for one in listed if one.base_name[:20].isdigit()}
    versions = {path: int(name) for path, (name, _, _) in log.items()}
    whole = [path for path, (_, _, end) in log.items() if f".{end}".startswith(_CHECKPOINT)]
    newest = max((versions[path] for path in whole), default=-1)
    found = set[str]()
    for path in whole:
        if after < 0 and versions[path] == newest and path.endswith(".parquet"):
            with fs.open_input_file(path) as file:
                found |= _of_checkpoint(pq.ParquetFile(file))
    for path, (_, _, end) in log.items():
        if end == "json" and versions[path] > max(newest, after):
            with fs.open_input_stream(path) as stream:
                found |= _of_commit(stream.read())
    return found


def _of_checkpoint(file: pq.ParquetFile) -> set[str]:
    if "txn" not in file.schema_arrow.names:
        return set()
    rows = file.read(["txn"]).column("txn").drop_null().to_pylist()
    return {row["appId"] for row in rows if row["appId"]}


def _of_commit(text: bytes) -> set[str]:
    actions = (json.loads(line) for line in text.splitlines() if line.startswith(b'{"txn"'))
    return {action["txn"]["appId"] for action in actions}
