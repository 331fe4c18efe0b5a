"""Changes that threads of one process share: read once, and given to all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from tailrace.apply.targets.delta.staged import SharedChanges
from tailrace.engine.columns import OP
from tailrace.engine.keys import Places
from tailrace.engine.source import Source

pytestmark = pytest.mark.unit
_SCHEMA = pa.schema([("id", pa.int64())])


@dataclass
class Counting:
    """Two changes of one table; counts how often their keys are read."""

    folder: str = "here"
    key: tuple[str, ...] = ("id",)
    reads: list[str] = field(default_factory=list)
    fits: bool = True

    def keys(self) -> Source | None:
        self.reads.append("keys")
        rows = pa.table({OP: ["U", "U"], "id": [7, 8]})
        return Source.of(rows, self.key, _SCHEMA, partial=False) if self.fits else None

    def rows(self, wanted: Places) -> Source | None:
        self.reads.append(f"rows {wanted.tolist()}")
        return None


@pytest.mark.parametrize("fits", [True, False])
def test_threads_read_the_keys_once(fits: bool) -> None:
    changes = Counting(fits=fits)
    shared = SharedChanges(changes)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: shared.keys(), range(8)))
    assert changes.reads == ["keys"]
    assert all(one is found[0] for one in found)
    assert (found[0] is not None) == fits
