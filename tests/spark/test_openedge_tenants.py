"""Tables of several tenants: two of them may have rows with the same identifying fields."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from tailrace.errors import FormatError
from tailrace.formats.openedge import OpenEdgeOptions, read
from tailrace.testing.changes import comparable_rows, reasons

from .test_format_openedge import image, track, vendor

pytestmark = pytest.mark.spark
TENANT = "_Tenant-Id"


def of_tenants(spark: SparkSession, *tenants: int | None) -> dict[str, DataFrame]:
    """A row of CustNum 1 made by each of these tenants."""
    tracked = [track(n, 1, **{TENANT: one}) for n, one in enumerate(tenants, 1)]
    images = [image(n, 1, CustNum=1, Name=f"of {one}") for n, one in enumerate(tenants, 1)]
    return vendor(spark, tracked=tracked, images=images)


@pytest.mark.slow
def test_changes_of_several_tenants_are_read_one_by_one_or_all(spark: SparkSession) -> None:
    tables = of_tenants(spark, 2, 1, None, 1)
    with pytest.raises(
        FormatError, match=r"changes of several tenants, such as 1 and 2(.|\n)*CustNum"
    ) as told:
        read(tables, OpenEdgeOptions())
    assert told.value.where == "PUB.Customer" and "tenant=1" in str(told.value.hint)
    for tenant, names in (
        ("1", ["of 1", "of None", "of 1"]), ("2", ["of 2", "of None"]), ("-3", ["of None"]),
        ("all", ["of 2", "of 1", "of None", "of 1"]),
    ):  # fmt: skip
        found = read(tables, OpenEdgeOptions(tenant=tenant)).changes["PUB.Customer"]
        assert reasons(found) == []
        assert [row[-1][1] for row in comparable_rows(found)] == names


@pytest.mark.slow
def test_one_tenant_for_each_table_is_no_error(spark: SparkSession) -> None:
    """The other table's rows are of tenant 2; a partition that is gone changes no row; a table without key has no rows that could be taken for others."""
    tables = of_tenants(spark, 1, 1)
    gone = vendor(spark, tracked=[track(9, 7, **{TENANT: 3}), track(10, 12, **{TENANT: 4})])
    name = "PUB._Cdc-Change-Tracking"
    tables[name] = tables[name].union(gone[name])
    assert len(read(tables, OpenEdgeOptions(partitions="truncate")).changes) == 2
    several = of_tenants(spark, 1, 2)
    del several["PUB._Cdc-Field-Policy"]
    assert read(several, OpenEdgeOptions()).changes["PUB.Customer"].key == []
