"""Commits of written parts to Delta tables."""

from __future__ import annotations

import json
import time
from typing import Any

from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from ...errors import AGAIN, ConcurrentCommitError, OvertakenError
from ...lake import delta as lake
from ...lake import guards, written
from ...lake.failpoints import reach
from ...lake.one_commit import commit_actions


def append(
    path: str, files: list[lake.AddedFile], app_id: str, end: int, start: int, info: dict[str, str]
) -> int:
    """Adds files to a table, whatever other files it has, and returns the version.

    Args:
        path: the table.
        files: the files.
        app_id: the application id of the progress.
        end: the progress after the commit.
        start: the progress before the commit; -1 if there is no progress.
        info: commit info.

    Raises:
        ConcurrentCommitError: the table's progress is not `start` any more; nothing was written.
    """
    try:
        version = lake.commit(
            path, files, progress={app_id: end}, info=info, after={app_id: None if start < 0 else start}
        )
    except OvertakenError as error:
        raise ConcurrentCommitError(error.what, where=path, hint=AGAIN) from error
    assert version is not None  # noqa: S101 - the progress was `start`, which is lower than `end`
    return version


def exchange(
    table: DeltaTable,
    removed: list[dict[str, Any]],
    parts: list[lake.AddedFile],
    app_id: str,
    end: int,
    info: dict[str, str],
) -> None:
    """Replaces files of a table by parts, in one commit on exactly the open version.

    Args:
        table: the table, open.
        removed: the removed files (flattened add actions).
        parts: the added files.
        app_id: the application id of the progress.
        end: the progress after the commit.
        info: commit info.

    Raises:
        CommitFailedError: another process has committed since that version.
    """
    now = int(time.time() * 1000)
    reach("delta.local")
    guards.check()
    commit_actions(
        table,
        [
            *[RemoveAction(f["path"], True, now, f["size_bytes"], {}) for f in removed],
            *[AddAction(p.path, p.size, {}, p.modified, True, p.stats) for p in parts],
        ],
        progress=[Transaction(app_id, end)],
        info=info,
    )
    written.add(table.table_uri, [p.size for p in parts])


def info(**values: object) -> dict[str, str]:
    """Returns commit info: the values as JSON under the name `tailrace`."""
    return {"tailrace": json.dumps(values)}
