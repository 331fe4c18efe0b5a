"""Every vendor's tables as another's: what is written is good for its reader, and changes keep their order.

Each vendor to the next one, and the last to tailrace: the rest of the pairs meet in the canonical form.
"""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from tailrace import formats
from tailrace.formats.base import FILE, RAW, ROW, WHY
from tailrace.model.change import ChangeTable
from tests.spark import test_format_openedge, test_format_qlik, test_format_soliddb, test_format_sqdr

pytestmark = pytest.mark.spark
SUITES = {
    "qlik": test_format_qlik.TestConformance,
    "openedge": test_format_openedge.TestOpenEdge,
    "sqdr": test_format_sqdr.TestSqdr,
    "soliddb": test_format_soliddb.TestSolidDB,
}


def events(ct: ChangeTable) -> tuple[list[str], list[str]]:
    """Operations in order, and reasons of bad rows."""
    seq, oper = ct.header("change_seq"), ct.header("change_oper")
    why = F.col(WHY) if WHY in ct.df.columns else F.lit(None).cast("string")
    found = sorted(ct.df.select(seq, oper, why).collect(), key=lambda r: r[:2])
    return [r[1] for r in found], [r[2] for r in found if r[2]]


@pytest.mark.slow
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
    for name in (after, "tailrace") if source == names[-1] else (after,):
        other = formats.get(name)
        asked = SUITES[name]().options(good) if name in SUITES else other.options()
        asked = suite.vendor_options() if name == source else asked  # they name the keys
        back = other.read(other.write(good, asked), asked).changes
        for table, ct in good.items():
            want = ct
            for gap in other.gaps(ct, asked):
                want = gap.erase(want)
            left, _ = events(want)
            if left:
                assert events(back[table]) == (left, []), f"{source} -> {name}: {table}"
