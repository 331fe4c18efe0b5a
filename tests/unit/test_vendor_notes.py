"""What `tailrace apply` says in addition to what it did."""

from __future__ import annotations

import pytest

from tailrace import formats
from tailrace.formats import convert
from tailrace.formats.base import Read
from tailrace.formats.report import ConversionReport, TableReport
from tailrace.operate import vendor_notes
from tailrace.targets.keyless import NAME_KEY

pytestmark = pytest.mark.unit


def test_a_key_that_is_not_known_is_said_once_with_what_holds() -> None:
    found = Read({}, notes=("odd",), keyless={"PUB.Item": "no identifying fields", "PUB.Log": "archived"})
    report = ConversionReport({"PUB.Item": TableReport(1)})
    ends = f"so rows are identified by all of their values; name the key, if there is one ({NAME_KEY})"
    assert vendor_notes.notes(found, ["PUB.Item", "PUB.Other"], {}, report, "in") == [
        "odd",
        f"PUB.Item: no identifying fields, {ends}",
        f"PUB.Other: no key is known, {ends}",
    ]
    assert convert.key_notes(found, formats.get("openedge"))[:1] == [
        "PUB.Item: no identifying fields; name the key with the option keys"
    ]
    assert convert.key_notes(found, formats.get("qlik"))[0].endswith("with the option key")
