"""Looks up the pinned packages in the registry's list of known vulnerabilities, with pip-audit.

    python tools/audit.py [CONSTRAINTS]

Ends with 1 when one of them has a known vulnerability. A registry that is out of reach, or that gives no
advisories, does not fail the check: the output says that nothing was audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMEOUT_S = 120


def verdict(report: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit code and the lines to print for a report of pip-audit (`--format json`).

    >>> verdict({"dependencies": [{"name": "a", "version": "1", "vulns": []}]})
    (0, ['1 packages audited, no known vulnerability'])
    """
    packages = report.get("dependencies", [])
    audited = [p for p in packages if "skip_reason" not in p]
    lines = [
        f"{p['name']} {p['version']}: {v['id']}, fixed in {', '.join(v['fix_versions']) or 'no version yet'}"
        for p in audited
        for v in p["vulns"]
    ]
    if lines:
        return 1, lines
    if not audited:
        return 0, ["not audited: the registry in use answers with no advisories"]
    skipped = [p["name"] for p in packages if "skip_reason" in p]
    more = [f"without an answer: {', '.join(skipped)}"] if skipped else []
    return 0, [f"{len(audited)} packages audited, no known vulnerability", *more]


def main(constraints: str = "constraints.txt") -> int:
    """Audits a constraints file; gives the exit code."""
    pins = [line.split("#")[0].strip() for line in Path(constraints).read_text().splitlines()]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "-r", file.name, "--no-deps", "--disable-pip"]
        try:
            ran = subprocess.run(
                [*command, "--format", "json", "--progress-spinner", "off"],
                capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"not audited: no answer from the registry within {TIMEOUT_S} s\n")
            return 0
    try:
        code, lines = verdict(json.loads(ran.stdout))
    except ValueError:  # no report: the registry was not reached, or pip-audit itself failed
        reached = "ConnectionError" in ran.stderr or "ServiceError" in ran.stderr
        code = 0 if reached else 1
        lines = ["not audited: the registry was not reached" if reached else ran.stderr.strip()]
    sys.stdout.write("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
