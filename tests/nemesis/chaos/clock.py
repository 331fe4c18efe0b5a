"""A clock that is set back, for a process and those that it starts; where there is a C compiler.

Only the time of day is: clocks that nobody can set go on, as they do on a machine whose clock is set.
(libfaketime changes the deadlines of sleeps on those too, which then fail.)
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

BY = "CHAOS_CLOCK_SECONDS"
SOURCE = f"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long by(void) {{ const char *text = getenv("{BY}"); return text ? atol(text) : 0; }}
int clock_gettime(clockid_t id, struct timespec *at) {{
  int failed = syscall(SYS_clock_gettime, id, at);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec -= by();
  return failed;
}}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {{
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
  return 0;
}}
time_t time(time_t *at) {{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}}
"""


@cache
def _library() -> str | None:
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="tailrace-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # the server is another user's
    made = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(made)]
    done = subprocess.run(command, input=SOURCE, text=True, capture_output=True, check=False)
    return None if done.returncode else str(made)


def set_back(seconds: int) -> Mapping[str, str]:
    """What the environment gets for a clock that is so far behind; nothing without a compiler."""
    made = _library()
    return {} if made is None else {"LD_PRELOAD": made, BY: str(seconds)}


@contextmanager
def behind(seconds: int) -> Iterator[bool]:
    """Processes that this one starts meanwhile have such a clock; whether they do."""
    added = set_back(seconds)
    os.environ.update(added)
    try:
        yield bool(added)
    finally:
        for name in added:
            del os.environ[name]
