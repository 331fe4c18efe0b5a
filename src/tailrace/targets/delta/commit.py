"""Commits of written parts to Delta tables."""

from __future__ import annotations

import json
import time
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from ...errors import AGAIN, ConcurrentCommitError, OvertakenError
from ...lake import delta as lake
from ...lake import guards, written
from ...lake.failpoints import reach


def append(
    path: str, files: list[lake.AddedFile], app_id: str, upto: int, follows: int, words: dict[str, str]
) -> int:
    """Adds parts, made of the changes behind `follows`, to whatever a table has; gives the version.

    Raises:
        ConcurrentCommitError: the table's progress is not `follows` any more; nothing was written.
    """
    try:
        done = lake.commit(
            path, files, progress={app_id: upto}, info=words, after={app_id: None if follows < 0 else follows}
        )
    except OvertakenError as error:
        raise ConcurrentCommitError(error.what, where=path, hint=AGAIN) from error
    assert done is not None  # noqa: S101 - progress that has not moved is behind `upto`
    return done


def exchange(
    table: DeltaTable,
    gone: list[dict[str, Any]],
    parts: list[lake.AddedFile],
    app_id: str,
    upto: int,
    info: dict[str, str],
) -> None:
    """Commits on exactly the version that is open: files out (add actions, flattened), parts in, progress.

    Raises:
        CommitFailedError: somebody else committed since.
    """
    now = int(time.time() * 1000)
    reach("delta.local")
    guards.check()
    table.create_write_transaction(
        [
            *[RemoveAction(f["path"], True, now, f["size_bytes"], {}) for f in gone],
            *[AddAction(p.path, p.size, {}, p.modified, True, p.stats) for p in parts],
        ],
        mode="append",
        schema=table.schema(),
        commit_properties=CommitProperties(
            custom_metadata=info, app_transactions=[Transaction(app_id, upto)], max_commit_retries=0
        ),
        post_commithook_properties=lake.after_commit(table),
    )
    written.add(table.table_uri, [p.size for p in parts])


def info(**words: object) -> dict[str, str]:
    """Commit info: words about the commit under the one name `tailrace`."""
    return {"tailrace": json.dumps(words)}
