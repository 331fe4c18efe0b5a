"""`python -m tailrace.demo FOLDER`: starts the PostgreSQL of an earlier demo again, until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from ..cli.output import out
from ..errors import TailraceError
from .demo_folder import server_of


def main() -> None:
    """Serves the demo in the folder given as the only argument (`demo-data` by default)."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-data")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with server_of(folder) as server:
        out.print(f"{server.tcp_url('demo')} is ready; Ctrl-C stops it", soft_wrap=True)
        stop.wait()


if __name__ == "__main__":
    try:
        main()
    except TailraceError as error:
        sys.exit(f"error: {error}")
