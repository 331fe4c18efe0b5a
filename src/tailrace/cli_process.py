"""What holds for the process of every command: who may read what it writes, and what ends it."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from typing import NoReturn

from rich.markup import escape

from .cli_out import err
from .errors import ConfigError, TailraceError, full, spark_lost
from .exit_codes import FAILED

UMASK = "TAILRACE_UMASK"
"""The variable that says, as `--umask` does, who may read what is written."""


def keep_private(wanted: str | None) -> str | None:
    """Sets the umask of this process and of all that it starts: what they write is for its owner only."""
    if wanted is None:
        return None
    if not re.fullmatch("0{1,2}[0-7]{2}", wanted):
        raise ConfigError(
            f"{wanted!r} is no umask that lets the owner read and write",
            where=f"--umask, {UMASK}",
            hint="write 077, 027 or 022",
        )
    os.umask(int(wanted, 8))
    os.environ[UMASK] = wanted
    return wanted


def ended(error: Exception) -> NoReturn:
    """Ends the process with code 1 and an error of ours; raises it again when it is a defect."""
    place = getattr(error, "filename", None) or tempfile.gettempdir()
    told = error if isinstance(error, TailraceError) else full(error, where=place)
    if (told := told or spark_lost(error, where="this command")) is None:
        raise error
    err.print(f"[red]error:[/] {escape(str(told))}", soft_wrap=True)
    sys.exit(FAILED)


def stop_with_parent(stop: threading.Event, parent: int) -> None:
    # The number comes from the parent itself: asked for here, it may be too late already.
    def watch() -> None:
        while os.getppid() == parent:
            if stop.wait(0.5):
                return
        stop.set()

    threading.Thread(target=watch, daemon=True, name="parent").start()
