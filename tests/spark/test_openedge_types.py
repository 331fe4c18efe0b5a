"""Values as text: the unknown value; columns that OpenEdge has no type for."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace import formats
from tailrace.errors import UnsupportedError
from tailrace.formats import convert
from tailrace.formats.openedge import OpenEdgeOptions, read
from tailrace.formats.openedge import tables as oe
from tailrace.model.change import ChangeTable
from tailrace.testing.changes import comparable_rows, reasons

from .test_format_openedge import field, image, table, track, vendor

pytestmark = pytest.mark.spark


def test_a_struct_is_refused(spark: SparkSession) -> None:
    row = "repeat('1', 35) header__change_seq, 'I' header__change_oper, 1 id, named_struct('a', 1) odd"
    changes = ChangeTable(spark.sql(f"select {row}"), ["id"], ["id", "odd"], name="s.t")
    form = formats.get("openedge")
    with pytest.raises(UnsupportedError, match="OpenEdge has no type for struct<a:int>") as told:
        form.write({"s.t": changes}, form.options())
    assert "s.t, column odd" in str(told.value)


@pytest.mark.parametrize("nothing", [" ? ", None])
def test_an_unknown_value_that_an_update_does_not_carry_is_absent(
    spark: SparkSession, nothing: str | None
) -> None:
    array = None if nothing is None else "?"
    fields = [field(60, "CustNum", 9, "integer"), field(60, "Price", 10, "decimal"), field(60, "Phones", 11, "integer", 2)]  # fmt: skip
    images = [
        image(4, 3, CustNum="1", Price=nothing, Phones=array),
        image(4, 4, CustNum="1", Price=nothing, Phones=array and "?;?"),
        image(5, 4, CustNum="1", Price=nothing, Phones=array),
        image(6, 4, CustNum="1", Price="1", Phones="?;3"),
    ]
    tables = vendor(spark, tracked=[track(4, 4, [1]), track(5, 4, [2, 3]), track(6, 4, [1])])
    tables["_Field"] = table(spark, oe.FIELD_TABLE, [field(50, "CustNum", 2, "integer"), *fields])
    texts = dict.fromkeys(("CustNum", "Price", "Phones"), "string")
    tables["PUB.CDC_Customer"] = table(spark, oe.CHANGE, images, texts)
    found = read(tables, OpenEdgeOptions(arrays="array")).changes["PUB.Customer"]
    assert reasons(found) == []
    rows = [
        (oper, changed, carried, values) for _, oper, changed, carried, _, values in comparable_rows(found)
    ]
    assert rows == [
        ("B", (), ("CustNum",), (1, "(absent)", "(absent)")),
        ("U", ("CustNum",), ("CustNum",), (1, "(absent)", "(absent)")),
        # Its bit is set: it became NULL.
        ("U", ("Price", "Phones"), None, (1, None, array and [None])),
        # A value that is known counts, whatever its bit says.
        ("U", ("CustNum",), None, (1, 1, [None, 3])),
    ]


def test_fields_of_source_tables_say_types_and_a_note_says_what_they_do_not(spark: SparkSession) -> None:
    tables = vendor(spark, tracked=[track(1, 1)])
    tables["_Field"] = tables["_Field"].filter("`_File-Recid` in (50, 150, 160)")
    one = image(1, 1, CustNum="1", Name="a", Note="n", Phones="1;2")
    texts = dict.fromkeys(("CustNum", "Name", "Note", "Phones"), "string")
    tables["PUB.CDC_Customer"] = table(spark, oe.CHANGE, [one], texts)
    found = read(tables, OpenEdgeOptions(arrays="columns"))
    assert found.notes == (
        "PUB.Customer: _Field has no rows of PUB.CDC_Customer: bits of field maps are counted in order of its "
        "columns, which is wrong if there are gaps; give _Field of the change table",
    )
    changes = found.changes["PUB.Customer"]
    assert [r[-1] for r in comparable_rows(changes)] == [(1, "a", "n", "1", "2", None)]


@pytest.mark.slow
def test_floating_point_comes_back_from_text(spark: SparkSession, tmp_path: Path) -> None:
    """ABL has decimals only; OpenEdge SQL has more types."""
    made = """select concat('2026010112000100', lpad(1, 19, '0')) header__change_seq, 'I' header__change_oper, 1 id,
        -1e300D x, 0.1F y, double('NaN') n, array(1.5D, null) a"""
    changes = ChangeTable(spark.sql(made), ["id"], ["id", "x", "y", "n", "a"], name="s.t")
    form = formats.get("openedge")
    assert form.save is not None
    form.save(form.write({"s.t": changes}, form.options()), str(tmp_path / "out"), "csv", form.options())
    side = convert.side("openedge", str(tmp_path / "out"), {"arrays": "array"})
    found = convert.read(spark, side).changes["s.t"]
    kinds = {f.name: f.dataType.simpleString() for f in found.df.schema if f.name in found.columns}
    assert kinds == {"id": "int", "x": "double", "y": "float", "n": "double", "a": "array<double>"}
    row = found.df.selectExpr("x", "string(y) y", "string(n) n", "a").first()
    assert row is not None
    assert row.asDict() == {"x": -1e300, "y": "0.1", "n": "NaN", "a": [1.5, None]}
