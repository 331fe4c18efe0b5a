"""A task under load for an hour or more: nothing may grow but the changes that are kept.

    python bench/soak.py [--minutes 60] [--folder FOLDER]

Exits with 1 if memory, descriptors, threads, files or disk space of the task grow from the second third of the
time on, or if the targets are not equal at the end. Targets keep all versions of an hour: until then, files and
disk space may grow in proportion to the time. Samples go to FOLDER/soak.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import load
import steady
from measure import say
from tailrace.runtime.java import ensure_java

SHORT = {
    "retention": {"keep": "5m"},
    "maintenance": {
        "every": "1m",
        "keep_log": "1m",
        "keep_ledger": "5m",
        "keep_commits": "5m",
        "keep_versions": "5m",
    },
}
SLACK = {"rss": 1.05, "descriptors": 1.1, "threads": 1.1, "files": 1.1, "disk": 1.1}
"""The factor by which the median of the last sixth may exceed that of the second half of the second third."""


def main() -> int:
    """Runs the load; 1 if something grew or differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--folder", help="where to work, kept afterwards; a temporary folder by default")
    asked = parser.parse_args()
    ensure_java()
    folder = Path(asked.folder or tempfile.mkdtemp(prefix="tailrace-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    samples: list[steady.Sample] = []
    with (
        load.server(folder / "pg") as server,
        steady.database(server, "soak", folder) as url,
        steady.running(folder, "soak", url, **SHORT) as task,
    ):
        made = steady.Load(url, folder / "soak.sql")
        end = time.monotonic() + asked.minutes * 60
        try:
            while time.monotonic() < end:
                steady.settle(task, 20)
                samples.append(task.sample())
                (folder / "soak.json").write_text(json.dumps([asdict(one) for one in samples]))
        finally:
            made.stop()
        steady.settle(task, 30)
        equal = _equal(folder / "soak.yaml")
    grown = _grown(samples)
    for what, (before, after) in grown.items():
        say(f"{what}: {before:,.0f} in the second third, {after:,.0f} at the end")
    say("all tables are equal" if equal else "tables differ")
    hours = min(asked.minutes * 11 / 12, 60) / min(asked.minutes * 7 / 12, 60)  # at the medians of both
    allowed = {what: most * (hours if what in ("files", "disk") else 1) for what, most in SLACK.items()}
    wrong = [what for what, (before, after) in grown.items() if after > before * allowed[what]]
    if wrong:
        say(f"grown: {', '.join(wrong)}; samples are in {folder / 'soak.json'}")
    return int(bool(wrong) or not equal)


def _grown(samples: list[steady.Sample]) -> dict[str, tuple[float, float]]:
    """By what: its median in the second half of the second third, and in the last sixth."""
    many = len(samples)
    middle, last = samples[many // 2 : many * 2 // 3], samples[-max(many // 6, 1) :]
    return {
        what: tuple(statistics.median(getattr(one, what) for one in part) for part in (middle, last))
        for what in SLACK
    }  # type: ignore[return-value]


def _equal(file: Path) -> bool:
    command = [sys.executable, "-m", "tailrace", "validate", str(file)]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
