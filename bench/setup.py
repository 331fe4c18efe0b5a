"""Makes the peer's own virtual environment, `bench/.venv`: Debezium's embedded engine, pinned.

It is kept apart because Debezium brings 200 MB of jars and a JVM bridge that tailrace has no use for.
Run alone (`python bench/setup.py`) or by `bench/run.py` when it is missing or its pins changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE / ".venv"
PINS = HERE / "constraints-peer.txt"
MARK = FOLDER / "pins.txt"


def peer_python() -> Path:
    """The interpreter of the peer's environment, which is made first when it is not as pinned."""
    python = FOLDER / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if python.exists() and MARK.exists() and MARK.read_text() == PINS.read_text():
        return python
    print(f"making {FOLDER.name} with Debezium (200 MB, once)", file=sys.stderr, flush=True)
    venv.create(FOLDER, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "-q", "--no-input", "-c", str(PINS), "-r", str(PINS)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    MARK.write_text(PINS.read_text())
    return python


if __name__ == "__main__":
    print(peer_python())
