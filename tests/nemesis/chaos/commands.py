"""Commands of tailrace that a round gives besides its lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PYTHON = [sys.executable, "-m", "tailrace"]


def tailrace(action: str, file: Path, *more: str, seconds: float = 900) -> subprocess.CompletedProcess[str]:
    """What became of `tailrace ACTION FILE ...`; code 124 when it took too long."""
    command = [*PYTHON, action, str(file), *more]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"still at work after {seconds:.0f} s")


def plain(text: str) -> str:
    """What was said, without the line ends that a narrow screen gives it."""
    return " ".join(text.split())
