"""What a slot sends again: transactions from its own position to one that LOG has reached.

A slot is behind LOG after a crash between a commit of LOG and its acknowledgement; after a restart of the
server, which does not write each acknowledgement to disk; and if the server was restored from a backup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from ...model.change import Relation
from ...wire.pgmessages import RelationMessage
from ...wire.records import Chunk
from .connect import Session, asking
from .evidence import Moment
from .slot import IN_USE_S
from .stream import SlotStream

_CHUNK_BYTES, _WAIT_S = 16 << 20, 0.2
_THERE = "select 1 from pg_stat_activity where pid = %s"


@contextmanager
def stream(session: Session, url: str, slot: str, publication: str) -> Iterator[SlotStream]:
    """A stream that begins at the slot's own position, and acknowledges nothing. In the end its process at
    the server is gone as well: the next stream may need its place among `max_wal_senders`."""
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
    """What the stream has before an LSN, and maybe some behind it; less once `stopped` returns True."""
    while stream.seen < end and not stopped():
        if (chunk := stream.read(_CHUNK_BYTES, _WAIT_S)) is not None:
            yield chunk
        stream.ping()


def _name_only(message: RelationMessage, moment: Moment, before: Relation | None) -> Relation:
    """No values are read: columns are not looked up."""
    return Relation(message.relid, message.schema, message.name, "")
