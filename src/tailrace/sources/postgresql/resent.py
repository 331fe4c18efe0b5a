"""Reads the transactions that a slot sends again: from its position to one that LOG has reached.

A slot is behind LOG after a crash between a commit of LOG and its acknowledgement, after a restart of the
server (which does not write each acknowledgement to disk), and after a restore from a backup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from ...model.change import Relation
from ...wire.pgmessages import RelationMessage
from ...wire.records import Chunk
from .column_identity import Moment
from .connect import Session, asking
from .slot import IN_USE_S
from .stream import SlotStream

_CHUNK_BYTES, _WAIT_S = 16 << 20, 0.2
_THERE = "select 1 from pg_stat_activity where pid = %s"


@contextmanager
def stream(session: Session, url: str, slot: str, publication: str) -> Iterator[SlotStream]:
    """Yields a stream that begins at the slot's position and acknowledges nothing.

    At the end, its process at the server has ended as well, because the next stream may need its slot in
    `max_wal_senders`.
    """
    made = SlotStream(url, slot, publication, _name_only)
    with closing(made):
        made.start(None, ())
        process = made.process
        yield made
    end = time.monotonic() + IN_USE_S
    with asking(made.where):
        while session.execute(_THERE, (process,)).fetchone() and time.monotonic() < end:
            time.sleep(0.02)


def chunks(stream: SlotStream, end: int, stopped: Callable[[], bool]) -> Iterator[Chunk]:
    """Yields the stream's chunks before an LSN, and possibly later ones; ends early once `stopped` returns
    True."""
    while stream.seen < end and not stopped():
        if (chunk := stream.read(_CHUNK_BYTES, _WAIT_S)) is not None:
            yield chunk
        stream.ping()


def _name_only(message: RelationMessage, moment: Moment, before: Relation | None) -> Relation:
    """Returns a layout without columns, because no values are read."""
    return Relation(message.relid, message.schema, message.name, "")
