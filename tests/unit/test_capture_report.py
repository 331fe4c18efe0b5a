"""Whether a check's errors end capture, or are waited for."""

from __future__ import annotations

import pytest

from tailrace.capture.process import report
from tailrace.errors import ConnectionLostError, SourceError
from tailrace.sources.base import Finding, PassingFinding

pytestmark = pytest.mark.unit

READER = PassingFinding("error", "process 7 reads the slot", "server x", "end it")
GONE = Finding("error", "the slot is gone", "server x", "make another")
WARNING = Finding("warning", "odd", "server x", "look")


@pytest.mark.parametrize(
    ("findings", "waits", "kind"),
    [
        ([READER, WARNING], True, ConnectionLostError),
        ([READER], False, SourceError),
        ([READER, GONE], True, SourceError),
        ([GONE], True, SourceError),
    ],
)
def test_only_what_passes_by_itself_is_waited_for(
    findings: list[Finding], waits: bool, kind: type[SourceError]
) -> None:
    with pytest.raises(SourceError) as caught:
        report(findings, waits=waits)
    assert type(caught.value) is kind and findings[0].what in caught.value.what
    assert findings[0].cure in (caught.value.hint or "")


def test_warnings_end_nothing() -> None:
    report([WARNING], waits=True)
