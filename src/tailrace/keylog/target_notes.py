"""Notes about parts of a key log that a target which is a database keeps in the transaction of a batch.

They replace a commit of the key log that a crash has prevented.
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
    """Returns a note: the files of a key log with the rows of a subscription up to the change number `end`,
    and their greatest `keylog_sort`."""
    words = {"path": path, "life": life, "sort": sort, "files": [f.to_json() for f in files]}
    return json.dumps({**words, "subscription": subscription, "end": end, "flagged": flagged})


def recover(notes: Sequence[str], log: KeyLog) -> None:
    """Makes files of a key log visible that a crash has kept from it after the target had the changes. Notes
    about another key log, as that of a task that was dropped, are ignored."""
    for text in notes:
        words = json.loads(text)
        files = [AddedFile.from_json(f) for f in words["files"]]
        if words["life"] != log.life if words.get("life") else not _exist(log.path, files):
            continue
        at = log.standing(words["subscription"]).reached
        if words["path"] != log.path or at is None or at >= words["end"]:
            continue
        log.adopt(
            words["subscription"], words["end"], flagged=words["flagged"], files=files, sort=words["sort"]
        )
    log.flush()


def _exist(path: str, files: Sequence[AddedFile]) -> bool:
    fs, folder = lake.filesystem(path)
    found = fs.get_file_info([f"{folder}/{one.path}" for one in files])
    return all(one.is_file for one in found)
