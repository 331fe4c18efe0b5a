"""OpenEdge's option `tenant`, and what footers say about tenants."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.errors import ConfigError
from tailrace.formats import get, options
from tailrace.formats.openedge import OpenEdgeOptions
from tailrace.formats.openedge.shares import TENANT, is_one

pytestmark = pytest.mark.unit


def test_footers_tell_that_thereis_one_tenant(tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.parquet" for n in range(3)]
    for file, tenants in zip(files, ([1, 1, None], [None], [2]), strict=True):
        pq.write_table(pa.table({TENANT: pa.array(tenants, pa.int32())}), file)
    assert is_one(files[:2], TENANT)
    assert not is_one(files, TENANT)
    pq.write_table(pa.table({TENANT: [1]}), files[0], write_statistics=False)
    assert not is_one(files[:1], TENANT)


def test_what_is_no_tenant() -> None:
    assert OpenEdgeOptions(tenant="-1").chosen == -1
    with pytest.raises(ConfigError, match="'ann' is neither the number of a tenant nor all"):
        options(get("openedge"), {"tenant": "ann"})
