"""Why a new slot takes long: the server waits for the transactions that were open when it began."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg

from ...errors import TailraceError
from .connect import Session, connect

logger = logging.getLogger("tailrace.capture")

AFTER_S, AGAIN_S = 10.0, 60.0
"""When it is said for the first time, and how often then."""
_OPEN = """
select what from (
  select format('process %s (%s), since %s', pid,
      concat_ws(', ', usename, nullif(application_name, '')), xact_start) what, xact_start since
  from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()
  union all
  select format('the prepared transaction %L of %s, since %s', gid, owner, prepared), prepared
  from pg_prepared_xacts) every order by since nulls last limit 5
"""


@contextmanager
def waits_told(url: str, slot: str) -> Iterator[None]:
    """Warns, while the block takes long, of the transactions for which the server waits."""
    done = threading.Event()

    def tell() -> None:
        rest = AFTER_S
        while not done.wait(rest):
            rest = AGAIN_S
            with suppress(TailraceError, psycopg.Error), closing(connect(url)) as session:
                if there := open_transactions(session):
                    logger.warning(
                        "the server makes the slot %s when the transactions that are open have ended: %s; "
                        "end them (pg_terminate_backend, ROLLBACK PREPARED), or wait",
                        slot,
                        "; ".join(there),
                    )

    teller = threading.Thread(target=tell, name=f"{slot} waits", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()


def open_transactions(session: Session) -> list[str]:
    """The oldest five transactions that have written, in words; times are empty without the rights of
    `pg_read_all_stats`."""
    return [row[0] for row in session.execute(_OPEN).fetchall()]
