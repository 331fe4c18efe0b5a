"""Notes about key log files, which a database target stores in the transaction of a batch.

After a crash between this transaction and the commit of the key log, the files are committed from the notes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..lake import delta as lake
from ..lake.delta import AddedFile
from .key_log import KeyLog


def note_of(
    subscription: str, end: int, *, flagged: int, files: Sequence[Any], path: str, life: str, sort: int
) -> str:
    """Returns a note: the key log files with the rows of a subscription up to the change number `end`, and
    the greatest `keylog_sort` of these rows."""
    log = {"path": path, "life": life, "sort": sort, "files": [f.to_json() for f in files]}
    return json.dumps({**log, "subscription": subscription, "end": end, "flagged": flagged})


def recover(notes: Sequence[str], log: KeyLog) -> None:
    """Commits the files of a key log whose changes the target has and that were not committed because of a
    crash. Ignores notes about other key logs, such as that of a dropped task."""
    for text in notes:
        note = json.loads(text)
        files = [AddedFile.from_json(f) for f in note["files"]]
        if note["life"] != log.life if note.get("life") else not _exist(log.path, files):
            continue
        progress = log.state(note["subscription"]).progress
        if note["path"] != log.path or progress is None or progress >= note["end"]:
            continue
        log.adopt(note["subscription"], note["end"], flagged=note["flagged"], files=files, sort=note["sort"])
    log.flush()


def _exist(path: str, files: Sequence[AddedFile]) -> bool:
    fs, folder = lake.filesystem(path)
    found = fs.get_file_info([f"{folder}/{one.path}" for one in files])
    return all(one.is_file for one in found)
