"""What a preview of changes looks at."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.apply.rules import RulesApplier
from tailrace.apply.vendor.applier import VendorApplier
from tailrace.engine.rules import Rules
from tailrace.model.change import ChangeTable
from tailrace.targets.capabilities import Capabilities

pytestmark = pytest.mark.unit


def test_of_a_suspended_table_nothing_is_looked_at(tmp_path: Path) -> None:
    """Neither its target nor its changes: they may be what it is suspended for."""
    target: Any = SimpleNamespace(capabilities=Capabilities())
    held: Any = SimpleNamespace(reason=lambda table: f"{table} is held")
    rules = RulesApplier(target, Rules.of("strict"), root=str(tmp_path), task="t", suspensions=held)
    applier = VendorApplier(rules, str(tmp_path))
    changes = ChangeTable(cast(Any, None), ["id"], ["id"], name="s.t")
    assert applier.preview(changes).suspended == applier.apply(changes).suspended == "s.t is held"
