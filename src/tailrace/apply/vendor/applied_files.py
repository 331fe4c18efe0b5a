"""The files whose changes `tailrace apply` has applied, and the mappings that it applied them through.

The progress of a target is one number. A change below that number would be skipped without a message when it
arrives later, as it cannot be applied in order. So each call records the files of its tables before it
applies them, and a later call refuses a file with changes below the progress: unless it is a recorded file
that has the same changes up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from urllib.parse import unquote

import pyarrow as pa

from ...errors import ApplyError
from .sequence_stats import FileChanges, Files, SequenceStats
from .table_notes import TableNotes

APPLIED_FILES = "_applied_files"
"""Name of the Delta table of these records.

A row without `file` is about its table. `end` is the progress that its target has after the call, `mapping`
the digest of the mapping, and `restart` says that the earlier rows of the table are no longer valid."""
_VALUES = pa.schema(
    [
        ("end", pa.int64()),
        ("mapping", pa.string()),
        ("restart", pa.bool_()),
        ("file", pa.string()),
        ("changes", pa.int64()),
        ("checksum", pa.int64()),
    ]
)
_MOST_NAMES = 3
_REMOVE = "remove the target and apply everything again"
_SEPARATELY = "apply the new files from a separate folder with another `--name` (Delta targets)"


@dataclass
class _Record:
    """The newest record of one table."""

    end: int
    mapping: str
    files: dict[str, FileChanges] = field(default_factory=dict)


class AppliedFiles:
    """The records of one task, in a Delta table below the folder `root`."""

    def __init__(self, root: str, task: str) -> None:
        self._notes = TableNotes(f"{root.rstrip('/')}/{APPLIED_FILES}", task, _VALUES)
        self._records: dict[str, _Record] = {}
        for table, row in self._notes.rows():
            if row["file"] is not None:
                self._records[table].files[row["file"]] = FileChanges(row["changes"], row["checksum"])
            elif row["restart"]:
                self._records[table] = _Record(row["end"], row["mapping"])
            else:
                self._records[table].end = row["end"]

    def end(self, table: str) -> int:
        """The change number up to which the recorded files of a table are compared; -1 without records."""
        record = self._records.get(table)
        return -1 if record is None else record.end

    def unknown(self, tables: Mapping[str, str]) -> dict[str, str]:
        """Those of `tables` that are not recorded although others are."""
        return {t: why for t, why in tables.items() if self._records and t not in self._records}

    def check_mappings(self, mappings: Mapping[str, str], reached: Mapping[str, int]) -> None:
        """Raises ApplyError for filled targets whose mapping has been edited.

        Args:
            mappings: the digest of the mapping of each table.
            reached: the progress of each target; -1 if nothing was applied.
        """
        edited = [
            table
            for table, record in sorted(self._records.items())
            if reached.get(table, -1) >= 0 and mappings.get(table, record.mapping) != record.mapping
        ]
        if edited:
            raise ApplyError(
                "the mapping has changed since the target was filled: its rows are those of the former one",
                where=", ".join(edited),
                hint=f"{_REMOVE}; or use the former mapping (`--tables`); or {_SEPARATELY}",
            )

    def late(
        self,
        stats: Mapping[str, SequenceStats],
        reached: Mapping[str, int],
        count: Callable[[str, int], Files],
    ) -> dict[str, list[str]]:
        """The names, by table, of files with changes below the progress that the target may not have.

        Args:
            stats: the statistics of each change table; `passed` counts up to `end`.
            reached: the progress of each target; -1 if nothing was applied.
            count: counts the changes of a table up to another number. It is called for a target whose
                progress was moved by another table that is mapped to it.
        """
        found = {}
        for table, one in sorted(stats.items()):
            progress, record = reached[table], self._records.get(table)
            older = [file for file, first in one.first(progress).items() if first <= progress]
            if record is not None and older:
                passed = one.passed if progress <= record.end else count(table, progress)
                older = [f for f in older if f not in record.files or passed.get(f) != record.files[f]]
            if older:
                found[table] = sorted(_label(f, record) for f in older)
        return found

    def record(
        self, stats: Mapping[str, SequenceStats], mappings: Mapping[str, str], reached: Mapping[str, int]
    ) -> None:
        """Writes the records of a call that is about to apply; `mappings` and `reached` as in the checks.

        The earlier records of a table are discarded if its target is new, or has not reached the recorded
        end: which changes of files that are no longer there it has is unknown then.
        """
        rows: list[tuple[str, dict[str, object]]] = []
        for table, one in sorted(stats.items()):
            progress, record = reached[table], self._records.get(table)
            end = max(one.end(progress), progress, 0)
            restart = record is None or progress < record.end
            known = {} if record is None or restart else record.files
            new = {file: part for file, part in one.files.items() if known.get(file) != part}
            if new or (record is not None and end > record.end):
                rows.append((table, {"end": end, "mapping": mappings[table], "restart": restart}))
                rows += [(table, {"file": file, **asdict(part)}) for file, part in sorted(new.items())]
        self._notes.add(rows)


def _label(file: str, record: _Record | None) -> str:
    changed = record is not None and file in record.files
    name = unquote(file).rstrip("/").rpartition("/")[-1] or "its rows"
    return f"{name} ({'changed' if changed else 'new'})"


def refuse_late(late: Mapping[str, Sequence[str]], where: str) -> None:
    """Raises ApplyError if there are late changes."""
    if late:
        raise ApplyError(
            f"changes are older than the progress of their target: {'; '.join(late_files(late))}",
            where=where,
            hint=f"`--on-late skip` skips them; or {_REMOVE}; or, if change numbers restart, {_SEPARATELY}",
        )


def late_files(late: Mapping[str, Sequence[str]]) -> list[str]:
    """One text for each table.

    >>> late_files({"shop.item": ["1.csv (changed)", "2.csv (new)"], "shop.line": ["3.csv (new)"]})
    ['shop.item: 1.csv (changed), 2.csv (new)', 'shop.line: 3.csv (new)']
    """
    texts = []
    for table, files in late.items():
        more = f" and {len(files) - _MOST_NAMES:,} more" if len(files) > _MOST_NAMES else ""
        texts.append(f"{table}: {', '.join(files[:_MOST_NAMES])}{more}")
    return texts
