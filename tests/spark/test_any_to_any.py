"""Every vendor's tables as another's: what is written is good for its reader, and changes keep their order.

Each vendor to the next one and to tailrace, and the first to all: the rest of the pairs meet in the canonical form.
"""

from __future__ import annotations

import pytest

from tailrace import formats
from tailrace.change import ChangeTable
from tailrace.formats.base import FILE, RAW, ROW, WHY
from tailrace.testing.changes import reasons
from tests.spark import test_format_openedge, test_format_qlik, test_format_soliddb, test_format_sqdr

pytestmark = pytest.mark.spark
SUITES = {
    "qlik": test_format_qlik.TestConformance,
    "openedge": test_format_openedge.TestOpenEdge,
    "sqdr": test_format_sqdr.TestSqdr,
    "soliddb": test_format_soliddb.TestSolidDB,
}


def events(ct: ChangeTable) -> list[tuple[str, ...]]:
    """Operations in order."""
    order = [ct.header("change_seq"), ct.header("change_oper")]
    return [tuple(r) for r in ct.df.orderBy(*order).select(ct.header("change_oper")).collect()]


@pytest.mark.parametrize("source", list(SUITES))
def test_handed_on(spark, source):
    suite = SUITES[source]()
    read = suite.format.read(suite.vendor(spark), suite.vendor_options())
    good = {
        n: ct.with_df(ct.df.filter(f"{WHY} IS NULL").drop(WHY, FILE, ROW, RAW))
        for n, ct in read.changes.items()
    }
    names = list(SUITES)
    after = names[(names.index(source) + 1) % len(names)]
    for name in formats.OURS if source == names[0] else ("tailrace", after):
        other = formats.get(name)
        asked = SUITES[name]().options(good) if name in SUITES else other.options()
        asked = suite.vendor_options() if name == source else asked  # they name the keys
        if name == "openedge":  # a full load has no change numbers
            asked = asked.model_copy(update={"sequence": "rank"})
        back = other.read(other.write(good, asked), asked).changes
        for table, ct in good.items():
            want = ct
            for gap in other.gaps(ct):
                want = gap.erase(want)
            if not (left := events(want)):
                continue
            df = back[table].df.cache()
            assert events(back[table].with_df(df)) == left, f"{source} -> {name}: {table}"
            assert not reasons(back[table].with_df(df)), f"{source} -> {name}: {table}"
            df.unpersist()
