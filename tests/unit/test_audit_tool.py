"""What the check of known vulnerabilities makes of pip-audit's report."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

_spec = importlib.util.spec_from_file_location("audit", Path(__file__).parents[2] / "tools" / "audit.py")
assert _spec is not None and _spec.loader is not None
audit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(audit)

FINE = {"name": "numpy", "version": "2.4.6", "vulns": []}
BAD = {"name": "pyyaml", "version": "5.3", "vulns": [{"id": "CVE-2020-14343", "fix_versions": ["5.4"]}]}
SKIPPED = {"name": "rich", "skip_reason": "not found"}


def test_a_known_vulnerability_fails_and_names_the_version_that_mends_it() -> None:
    report = {"dependencies": [FINE, BAD, SKIPPED]}
    assert audit.verdict(report) == (1, ["pyyaml 5.3: CVE-2020-14343, fixed in 5.4"])


def test_packages_without_an_answer_are_named() -> None:
    report = {"dependencies": [FINE, SKIPPED]}
    lines = ["1 packages audited, no known vulnerability", "without an answer: rich"]
    assert audit.verdict(report) == (0, lines)


def test_a_registry_without_advisories_says_that_nothing_was_audited() -> None:
    report = {"dependencies": [SKIPPED]}
    assert audit.verdict(report) == (0, ["not audited: the registry in use answers with no advisories"])
