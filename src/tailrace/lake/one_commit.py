"""One commit to a Delta table, on exactly the version that is open."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction

from . import news
from .objects import Objects
from .opened import after_commit
from .storage import is_remote, join

_ID = "tailrace.commit"


def commit_actions(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    *,
    progress: Iterable[Transaction] = (),
    info: Mapping[str, str] | None = None,
    mode: Literal["append", "overwrite"] = "append",
    schema: Schema | pa.Schema | None = None,
) -> None:
    """Commits actions and progress to an open table as its next version.

    An object store may write a commit and lose its answer; delta-rs tries again then and finds that the
    version exists. So a commit that failed is looked up, and counts as done if it is there.

    Args:
        table: the table, open; it keeps its version.
        actions: files to add and to remove.
        progress: the progress of applications.
        info: more metadata of the commit.
        mode: `overwrite` removes all other files.
        schema: the new schema; None: the same.

    Raises:
        CommitFailedError: another process has committed since the open version.
    """
    mine, address = uuid.uuid4().hex, table.table_uri
    try:
        table.create_write_transaction(
            list(actions),
            mode=mode,
            schema=table.schema() if schema is None else schema,
            commit_properties=CommitProperties(
                app_transactions=list(progress),
                custom_metadata={**(info or {}), **({_ID: mine} if is_remote(address) else {})},
                max_commit_retries=0,
            ),
            post_commithook_properties=after_commit(table),
        )
    except Exception:
        if not is_remote(address) or _id(address, int(table.version()) + 1) != mine:
            raise
    news.tell(address.rstrip("/"))


def _id(address: str, version: int) -> str | None:
    """Returns the id that a version's commit has; None if there is no such version."""
    contents = Objects(join(address, "_delta_log")).read(f"{version:020d}.json")
    for line in (contents or b"").splitlines():
        if (said := json.loads(line).get("commitInfo")) is not None:
            found = said.get(_ID)
            return None if found is None else str(found)
    return None
