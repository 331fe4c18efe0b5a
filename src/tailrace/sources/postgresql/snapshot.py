"""Snapshots that match a slot: all tables at one position of the log, for readers in any process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager

from ...errors import SourceError
from ..base import Snapshot
from .connect import asking, connect, lsn, position_at, quoted
from .slot import MOST
from .transaction_wait import Waits


class SlotSnapshot:
    """A new slot, and the snapshot exported by its creation, which is valid until this connection is closed.

    Args:
        url: the server.
        slot: its name.
        waits: callbacks while the server waits for transactions.
        temporary: drops the slot with the connection.
        where: the location for error messages.

    Raises:
        ConnectionLostError: the server does not answer, or waiting was stopped.
    """

    def __init__(
        self, url: str, slot: str, waits: Waits, *, temporary: bool = False, where: str = ""
    ) -> None:
        self._session = connect(url, replication="database")
        kind = "TEMPORARY " if temporary else ""
        export = "(SNAPSHOT 'export')" if self._session.info.server_version >= 150000 else "EXPORT_SNAPSHOT"
        try:
            with asking(where), waits.over(f"the server makes the slot {slot}", self._session.cancel_safe):
                row = self._session.execute(
                    f"CREATE_REPLICATION_SLOT {quoted(slot)} {kind}LOGICAL pgoutput {export}"
                ).fetchone()
        except BaseException:
            self._session.close()
            raise
        if row is None:
            raise SourceError("the server did not create a slot", where=where, hint="see the server's log")
        self.snapshot = Snapshot(row[2], position_at(lsn(row[1])))

    def close(self) -> None:
        """Releases the snapshot, and the slot if it is temporary."""
        self._session.close()


@contextmanager
def temporary_snapshot(url: str, slot: str, waits: Waits, where: str) -> Iterator[Snapshot]:
    """Yields a snapshot at a position of the log, by a slot that exists only within the context."""
    suffix = f"_tmp_{secrets.token_hex(4)}"
    made = SlotSnapshot(url, slot[: MOST - len(suffix)] + suffix, waits, temporary=True, where=where)
    with closing(made):
        yield made.snapshot
