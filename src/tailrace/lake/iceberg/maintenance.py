"""Maintenance of Iceberg tables: joins small files, expires snapshots, deletes files that no snapshot has.

The newest snapshots stay, one per minute of the last hour, and then one per hour (`lake.thinning`). The
snapshots around an expired one that stay identify the files that only expired snapshots had.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.fs
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table.maintenance import MaintenanceTable
from pyiceberg.table.snapshots import Snapshot

from ...errors import ConcurrentCommitError
from .. import guards
from ..failpoints import reach
from ..parts import AddedFile
from ..storage import filesystem
from ..thinning import ORPHAN_S, Past, delete, kept_versions
from ..tiers import TIERS, due_size
from .commit import PROGRESS, Commit, lineage, summary_of
from .files import local
from .table import IcebergTable
from .tables import IcebergTables

NEWEST = 100
"""The number of newest snapshots that always stay."""
_TARGET_SIZE = "write.target-file-size-bytes"
_SORTED_BYTES = 64 << 20
"""Files of more bytes are joined without being sorted."""
_UNNEEDED = "tailrace-unneeded-"
"""Prefix of the names of lists of files that no snapshot has any more, in the folder for metadata."""


def maintain(tables: IcebergTables, name: str, small_files: int, past: Past) -> None:
    """Maintains a table, see `Target.maintain`."""
    with suppress(ConcurrentCommitError):  # the next round joins the files
        compact(tables.open(name), small_files)
    with suppress(CommitFailedException):
        expire(tables.open(name), past)


def compact(now: IcebergTable, small_files: int) -> bool:
    """Joins small files of a table once it has `small_files` of one tier, up to the table's target file size.
    Returns whether it did.

    Raises:
        ConcurrentCommitError: another process has committed; nothing was written.
    """
    tiers = (*TIERS[:-1], int(now.properties.get(_TARGET_SIZE, TIERS[-1])))
    files = sorted(now.entries.values(), key=lambda one: one.file_size_in_bytes)
    size = due_size((one.file_size_in_bytes for one in files), small_files, tiers)
    if size is None:
        return False
    reach("maintain.compact")
    groups = list(_groups([one for one in files if one.file_size_in_bytes < size], size))
    added = [part for group in groups for part in _joined(now, group)]
    Commit(now.name, now.table, [one for group in groups for one in group], added).run()
    return True


def _groups(files: Sequence[DataFile], size: int) -> Iterator[list[DataFile]]:
    """Yields groups of at least two files of one partition, of about `size` bytes in total."""
    partitions = dict[tuple[Any, ...], list[DataFile]]()
    for one in files:
        values = [one.partition[n] for n in range(len(one.partition))]
        partitions.setdefault((one.spec_id, *values), []).append(one)
    for same in partitions.values():
        group, filled = list[DataFile](), 0
        for one in same:
            if len(group) > 1 and filled + one.file_size_in_bytes > size:
                yield group
                group, filled = [], 0
            group.append(one)
            filled += one.file_size_in_bytes
        if len(group) > 1:
            yield group


def _joined(now: IcebergTable, group: Sequence[DataFile]) -> list[AddedFile]:
    """Writes the rows of files to one part, sorted if the table has an order and they are not too large."""
    part, order = now.files.part(now.schema), now.table.sort_order()
    by = [now.iceberg_schema.find_column_name(one.source_id) for one in order.fields]
    batches = (
        batch for one in group for batch in now.files.batches(now.files.open(one.file_path), now.schema)
    )
    if by and sum(one.file_size_in_bytes for one in group) <= _SORTED_BYTES:
        rows = pa.Table.from_batches(batches, now.schema)
        part.write(rows.sort_by([(str(name), "ascending") for name in by]))
        part.sort_order = order.order_id
        return part.close_all()
    for batch in batches:
        part.write(batch)
    return part.close_all()


def expire(now: IcebergTable, past: Past, *, at: float | None = None) -> int:
    """Expires snapshots that need not stay, and returns their number. Files that only they have are deleted
    after `past.every_s`, because readers may have opened them. Snapshots of branches and tags stay."""
    at = time.time() if at is None else at
    _delete_due(now, at - past.every_s)
    line = {one.sequence_number or 0: one for one in lineage(now.table, now.snapshot)}
    kept = _kept(now, line, past, at) | {now.version}
    protected = {ref.snapshot_id for ref in now.table.metadata.refs.values()}
    gone = {v for v in line.keys() - kept if line[v].snapshot_id not in protected}
    if not gone:
        return 0
    unneeded = _unneeded(now, line, gone)
    guards.check()
    MaintenanceTable(now.table).expire_snapshots().by_ids(
        [line[v].snapshot_id for v in sorted(gone)]
    ).commit()
    reach("maintain.forget")
    fs, folder = filesystem(local(now.table.location_provider().metadata_path))
    with fs.open_output_stream(f"{folder}/{_UNNEEDED}{int(at * 1000)}.json") as out:
        out.write(json.dumps(sorted(unneeded)).encode())
    return len(gone)


def _kept(now: IcebergTable, line: Mapping[int, Snapshot], past: Past, at: float) -> set[int]:
    """Returns the versions that stay: the newest ones, one per minute up to `past.every_s`, and then those
    that `kept_versions` selects. A catalog's metadata has all snapshots, and is written by every commit."""
    times = {version: one.timestamp_ms / 1000 for version, one in line.items()}
    old = sorted(v for v, made in times.items() if made <= at - past.every_s)
    young = sorted(times.keys() - set(old))
    minutes = {int(times[v] // 60): v for v in young}
    kept = {*young[-NEWEST:], *minutes.values(), *past.pinned.intersection(young)}
    if len(old) < 2:
        return kept | set(old)
    sizes = dict[int, dict[str, int]]()

    def files(version: int) -> dict[str, int]:
        if version not in sizes:
            found = now.at(line[version]).entries
            sizes[version] = {path: one.file_size_in_bytes for path, one in found.items()}
        return sizes[version]

    def own_bytes(version: int, later: int) -> int:
        has = files(later)
        return sum(size for path, size in files(version).items() if path not in has)

    def preferred(some: Sequence[int]) -> int:
        ours = (v for v in reversed(some) if any(k.startswith(PROGRESS) for k in summary_of(line[v])))
        return next(ours, some[-1])

    newest = sum(files(old[-1]).values())
    return kept | kept_versions(old, times, past, at, newest, own_bytes, preferred)


def _lists(now: IcebergTable) -> Iterator[tuple[pyarrow.fs.FileSystem, str, float]]:
    """Yields the lists of files that no snapshot has: file system, path, and time."""
    fs, folder = filesystem(local(now.table.location_provider().metadata_path))
    for one in fs.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True)):
        if one.base_name.startswith(_UNNEEDED):
            yield fs, one.path, int(one.base_name.removeprefix(_UNNEEDED).removesuffix(".json")) / 1000


def _listed(fs: pyarrow.fs.FileSystem, path: str) -> list[str]:
    with fs.open_input_stream(path) as file:
        return list(json.loads(file.read()))


def _delete_due(now: IcebergTable, limit: float) -> None:
    """Deletes the files of lists that were written before a time, and the lists."""
    for fs, path, made in _lists(now):
        if made <= limit:
            _delete(_listed(fs, path))
            delete(fs, path)


def _unneeded(now: IcebergTable, line: Mapping[int, Snapshot], gone: set[int]) -> set[str]:
    """Returns the files that expired snapshots have and no other one has. A file that neither the snapshot
    before nor the one after has is in no other one either."""
    neighbours = {
        one
        for pair in pairwise(sorted(line))
        for one in pair
        if one not in gone and not gone.isdisjoint(pair)
    }
    heads = {ref.snapshot_id for ref in now.table.metadata.refs.values()}
    others = [line[v] for v in neighbours] + [s for s in now.table.snapshots() if s.snapshot_id in heads]
    known = dict[str, set[str]]()
    return _files(now, [line[v] for v in gone], known) - _files(now, others, known)


def _files(now: IcebergTable, snapshots: Iterable[Snapshot], known: dict[str, set[str]]) -> set[str]:
    """Returns the data files, manifests and manifest lists of snapshots; `known`: the data files of manifests
    that were read."""
    found = set[str]()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(now.table.io):
            path = manifest.manifest_path
            if path not in known:
                entries = manifest.fetch_manifest_entry(now.table.io, discard_deleted=True)
                known[path] = {one.data_file.file_path for one in entries}
            found |= {path} | known[path]
    return found


def _delete(paths: Sequence[str]) -> None:
    for path in paths:
        fs, full = filesystem(local(path))
        delete(fs, full)


def sweep(now: IcebergTable, *, at: float | None = None) -> int:
    """Deletes files in the table's folders for data and metadata that no snapshot has, once they are three
    days old, and returns their number."""
    table, limit = now.table, (time.time() if at is None else at) - ORPHAN_S
    places = table.location_provider()
    old = {
        one.path: fs
        for folder in (places.data_path, places.metadata_path)
        for fs, path in [filesystem(local(folder))]
        for one in fs.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=True))
        if one.type == pyarrow.fs.FileType.File
        and one.extension in ("parquet", "avro", "json")
        and one.mtime.timestamp() < limit
        and not one.base_name.startswith(_UNNEEDED)
    }
    if not old:
        return 0
    named = {table.metadata_location, *(one.metadata_file for one in table.metadata.metadata_log)}
    named |= _files(now, table.snapshots(), {})
    named |= {file for fs, path, _ in _lists(now) for file in _listed(fs, path)}  # deleted when they are due
    known = {filesystem(local(one))[1] for one in named}
    orphans = [path for path in old if path not in known]
    for path in orphans:
        delete(old[path], path)
    return len(orphans)
