"""A small disk for a task's home: a tmpfs, which only root can mount; without it nothing is ever full."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import time
from pathlib import Path

ROOM = 2 << 30
FULL = "no space left on the device"
"""What our error says."""
DONE = "the disk was full"
"""What the fault says."""


class Disk:
    """The folder that a round's task has everything in.

    Args:
        folder: it is made.
        small: mount a file system there that can be full.
    """

    def __init__(self, folder: Path, *, small: bool) -> None:
        self.folder = folder
        folder.mkdir()
        self.small = small and os.geteuid() == 0 and self._mount(f"size={ROOM}", "-t", "tmpfs", "tailrace")
        atexit.register(self.close)

    def fill(self, seconds: float) -> bool:
        """No room for so long; False when this disk cannot be full."""
        if not self.small:
            return False
        for more in (64 << 10, 8 << 20):  # less than is used by now is refused
            if self._mount(f"remount,size={self._used() + more}"):
                break
        else:
            return False
        time.sleep(seconds)
        return self._mount(f"remount,size={ROOM}")

    def close(self) -> None:
        """What was on it is in the folder."""
        atexit.unregister(self.close)
        if not self.small:
            return
        kept = self.folder.with_suffix(".kept")
        shutil.copytree(self.folder, kept, dirs_exist_ok=True)
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
        self.folder.rmdir()
        kept.rename(self.folder)
        self.small = False

    def _used(self) -> int:
        at = os.statvfs(self.folder)
        return (at.f_blocks - at.f_bfree) * at.f_frsize

    def _mount(self, options: str, *more: str) -> bool:
        command = ["mount", "-o", options, *more, str(self.folder)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
