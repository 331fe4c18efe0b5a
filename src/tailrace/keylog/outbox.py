"""Key logs of targets that are databases: what a batch's transaction says of its rows of the key log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..lake import delta as lake
from ..lake.delta import AddedFile
from ..targets.base import Target
from .change_range import ChangeRange
from .key_log import KeyLog


def note_of(files: list[Any], one: ChangeRange, path: str, life: str, sort: int) -> str:
    """A note that names a range's parts of a key log, with its `life`, and up to where their `keylog_sort`
    goes."""
    words = {"path": path, "life": life, "sort": sort, "files": [f.to_json() for f in files]}
    return json.dumps({**words, **vars(one)})


def recover(target: Target, log: KeyLog) -> None:
    """Makes visible what a crash kept from a key log after the target had it, by the target's notes; those of
    an earlier key log, of a task that was dropped, mean nothing."""
    if (kept := target.capabilities.notes) is None:
        return
    for _, _, text in kept.notes():
        words = json.loads(text)
        files = [AddedFile.from_json(f) for f in words["files"]]
        if words["life"] != log.life if words.get("life") else not _there(log.path, files):
            continue
        one = ChangeRange(words["subscription"], words["after"], words["upto"], words["flagged"])
        standing = log.standing(one.subscription)
        if words["path"] != log.path or standing.reached is None or standing.reached >= one.upto:
            continue
        log.adopt(files, one, words["sort"])
    log.flush()


def _there(path: str, files: Sequence[AddedFile]) -> bool:
    fs, folder = lake.filesystem(path)
    found = fs.get_file_info([f"{folder}/{one.path}" for one in files])
    return all(one.is_file for one in found)
