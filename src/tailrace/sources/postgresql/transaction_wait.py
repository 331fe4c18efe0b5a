"""Waits for open transactions when a slot or a window is created, and reports them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count

import psycopg

from ...errors import TailraceError
from . import slot
from .connect import Session, connect

logger = logging.getLogger("tailrace.capture")

AFTER_S, AGAIN_S = 10.0, 60.0
"""Seconds until the first warning, and between warnings."""
STEP_S, LOOK_EACH = 0.5, 4
"""Seconds between checks whether to stop waiting; each fourth check also queries the transactions."""
_WARNING = (
    "%s when the transactions that are open have ended: %s; "
    "end them (pg_terminate_backend, ROLLBACK PREPARED), or wait"
)
_OPEN = """
select what from (
  select format('process %s (%s), since %s', pid,
      concat_ws(', ', usename, nullif(application_name, '')), xact_start) what, xact_start since
  from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()
  union all
  select format('the prepared transaction %L of %s, since %s', gid, owner, prepared), prepared
  from pg_prepared_xacts) every order by since nulls last limit 5
"""


class Waits:
    """Callbacks for waiting for transactions.

    Args:
        url: the server.
        report: called with the transactions as text, and with an empty text afterwards.
        stopped: returns whether to stop waiting.
    """

    def __init__(
        self,
        url: str,
        report: Callable[[str], None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._url, self._report, self.stopped = url, report, stopped

    @contextmanager
    def over(self, what: str, cancel: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Reports, and later logs, the transactions that have to end before `what`, while the block runs.

        `cancel` ends the block's statement when waiting is stopped.
        """
        done, lock, said = threading.Event(), threading.Lock(), False

        def look() -> str:
            nonlocal said
            with suppress(TailraceError, psycopg.Error), closing(connect(self._url)) as session:
                there = "; ".join(open_transactions(session))
                with lock:
                    if there and not done.is_set():
                        said = True
                        self._report(there)
                return there
            return ""

        def tell() -> None:
            warns = time.monotonic() + AFTER_S
            for turn in count():
                if done.wait(STEP_S):
                    return
                if self.stopped():
                    with suppress(psycopg.Error):
                        cancel()
                elif turn % LOOK_EACH == 0 and (there := look()) and time.monotonic() >= warns:
                    warns = time.monotonic() + AGAIN_S
                    logger.warning(_WARNING, what, there)

        teller = threading.Thread(target=tell, name=f"waits: {what}", daemon=True)
        teller.start()
        try:
            yield
        finally:
            with lock:
                done.set()
                if said:
                    self._report("")

    def until_ended(self, session: Session, stopped: Callable[[], bool]) -> None:
        """Waits until all transactions that have written by now have ended, or `stopped` returns True."""
        with self.over("the window of the baseline opens"):
            before = slot.next_transaction(session)
            while not stopped() and slot.oldest_transaction(session) < before:
                time.sleep(0.05)


def open_transactions(session: Session) -> list[str]:
    """Returns the oldest five transactions that have written, as text; times are empty without the rights of
    `pg_read_all_stats`."""
    return [row[0] for row in session.execute(_OPEN).fetchall()]
