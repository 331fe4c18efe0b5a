"""Resources of this machine, or of the container that this process runs in."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

DRIVER_LIMIT = 500
"""Steps with fewer changes run in the driver: the default of `spark.driver_limit`."""


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def one_machine(master: str) -> bool:
    """Whether a Spark master runs its tasks inside the driver's own machine and process tree, as threads.

    >>> one_machine("local[2]"), one_machine("local-cluster[2,1,1024]"), one_machine("spark://there:7077")
    (True, False, False)
    """
    return master == "local" or master.startswith("local[")


def memory_bytes() -> int:
    """Bytes of memory of the machine, or of the container if that is less; 4 GiB if unknown."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 4 << 30
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(physical, int(text)) if text.isdigit() else physical


def cache_folder() -> Path:
    """The user's cache folder for tailrace, created; without a writable home one of this process alone."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    folder = Path(base) / "tailrace"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # a service account without a home: then every process makes its own
    made = tempfile.mkdtemp(prefix="tailrace-cache-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
