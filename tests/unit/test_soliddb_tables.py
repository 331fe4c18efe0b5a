"""What SYS_TABLES and SYS_COLUMNS say of DATA, and rows made up for tables solidDB does not know."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace import formats
from tailrace.engine.null_keys import null_key
from tailrace.errors import ApplyError, ConfigError, FormatError, UnsupportedError
from tailrace.formats.base import Read
from tailrace.formats.soliddb import tables
from tailrace.formats.soliddb.options import SolidOptions
from tailrace.operate.vendor_notes import explain_null_key
from tailrace.wire.soliddb import RowField

pytestmark = pytest.mark.unit


def table(relid: int, name: str, **more: Any) -> dict[str, Any]:
    known = {"ID": relid, "TABLE_NAME": name, "TABLE_SCHEMA": "S", "TABLE_TYPE": "BASE TABLE"}
    return {c.name: None for c in tables.SYS_TABLES.columns} | known | more


def column(
    relid: int, place: int, name: str, sql: int | None = 4, family: int | None = None, **more: Any
) -> dict[str, Any]:
    known = {"REL_ID": relid, "COLUMN_NAME": name, "COLUMN_NUMBER": place, "SQL_DATA_TYPE_NUM": sql}
    return {c.name: None for c in tables.SYS_COLUMNS.columns} | known | {"DATA_TYPE_NUMBER": family} | more


@pytest.mark.parametrize(
    ("row", "want"),
    [
        (column(1, 1, "c", 4, 1), RowField("c", "INTEGER", "int")),
        (column(1, 1, "c", 5), RowField("c", "INTEGER", "int")),
        (column(1, 1, "c", -6), RowField("c", "INTEGER", "smallint")),
        (column(1, 1, "c", -7), RowField("c", "INTEGER", "boolean")),
        (column(1, 1, "c", 7, 2), RowField("c", "DOUBLE", "float")),
        (column(1, 1, "c", 12, 7), RowField("c", "UNICODE", "string")),  # the family says how it is stored
        (column(1, 1, "c", 4, 8), RowField("c", "BIGINT", "bigint")),
        (
            column(1, 1, "c", 3, 5, NUMERIC_PRECISION=38, NUMERIC_SCALE=10),
            RowField("c", "DFLOAT", "decimal(38,10)"),
        ),
        (column(1, 1, "c", 3, 5, NUMERIC_PRECISION=52, NUMERIC_SCALE=0), RowField("c", "DFLOAT", "string")),
        (column(1, 1, "c", 2, 5), RowField("c", "DFLOAT", "string")),
        (column(1, 1, "c", 10, 4), RowField("c", "DATE", "string")),
        (column(1, 1, "c", None, 4), RowField("c", "DATE", "timestamp_ntz")),
        (column(1, 1, "c", None, None, DATA_TYPE="varchar(20)"), RowField("c", "CHAR", "string")),
        (column(1, 1, "c", 999, None, DATA_TYPE="POINT"), RowField("c", "BINARY", "binary")),
        (column(1, 1, "c", 11, 4, REMARKS="tailrace type=timestamp"), RowField("c", "DATE", "timestamp")),
        (column(1, 1, "c", 11, 4, REMARKS="tailrace type=int"), RowField("c", "DATE", "timestamp_ntz")),
        (column(1, 1, "c", 11, 4, REMARKS="type=timestamp"), RowField("c", "DATE", "timestamp_ntz")),
    ],
)
def test_fields(row: dict[str, Any], want: RowField) -> None:
    assert tables.field(row) == want


def test_layouts_over_time_and_names() -> None:
    here = [
        table(1, "OLD"), table(1, "T", FROM_LOGADDR=b"\5"), table(2, "T2", TABLE_CATALOG="A"),
        table(3, "T2", TABLE_CATALOG="B"), table(4, "V", TABLE_TYPE="VIEW"), table(5, "X", TABLE_SCHEMA="_SYSTEM"),
    ]  # fmt: skip
    columns = [
        column(1, 2, "b"), column(1, 1, "a"), column(1, 3, "hidden", ATTR_TYPE=1),
        column(1, 1, "a", -5, FROM_LOGADDR=b"\5"), column(2, 1, "x"), column(3, 1, "x"), column(4, 1, "v"),
        column(5, 1, "s"), column(9, 1, "nobody's"),
    ]  # fmt: skip
    found = tables.layouts(here, columns, {"S.T": ["a"]})
    assert [(x.relid, x.start, x.table, [f.name for f in x.fields], x.key) for x in found] == [
        (1, b"", "S.T", ["a", "b"], ("a",)),
        (1, b"\5", "S.T", ["a"], ("a",)),
        (2, b"", "A.S.T2", ["x"], ()),
        (3, b"", "B.S.T2", ["x"], ()),
    ]
    assert tables.union(found[:2]) == [("a", "bigint"), ("b", "int")]


def names(*catalogs: str | None, given: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """What the tables S.T of catalogs are called."""
    here = [table(n, "T", TABLE_CATALOG=c) for n, c in enumerate(catalogs, 1)]
    found = tables.layouts(here, [column(n, 1, "id") for n, _ in enumerate(here, 1)], {}, given)
    return [(x.table, x.known_by) for x in found]


def test_a_table_keeps_its_name_when_another_catalog_gets_or_loses_one() -> None:
    given = {"DBA.S.T": "S.T"}
    assert names("DBA") == [("S.T", "DBA.S.T")]
    assert names("DBA", "TEST") == [("DBA.S.T", "DBA.S.T"), ("TEST.S.T", "TEST.S.T")]
    assert names("DBA", "TEST", given=given) == [("S.T", "DBA.S.T"), ("TEST.S.T", "TEST.S.T")]
    assert names("TEST", given=given) == [("TEST.S.T", "TEST.S.T")]  # S.T is the other one's
    both = {"DBA.S.T": "DBA.S.T", "TEST.S.T": "TEST.S.T"}
    assert names("DBA", given=both) == [("DBA.S.T", "DBA.S.T")]
    assert names("DBA", "DBA", given=given) == [("S.T", "DBA.S.T")] * 2  # made again
    assert names(None) == [("S.T", "")]
    with pytest.raises(FormatError, match=r"DBA\.S\.T and S\.T would both be S\.T") as told:
        names("DBA", None, given=given)
    assert told.value.hint is not None and "names=DBA.S.T=" in told.value.hint


def test_a_key_names_columns_that_there_are() -> None:
    columns = [
        column(1, 1, "ID"),
        column(1, 1, "ID", FROM_LOGADDR=b"\5"),
        column(1, 2, "POS", FROM_LOGADDR=b"\5"),
    ]
    later, *_ = tables.layouts([table(1, "T")], columns, {"S.T": ["ID", "POS"]})
    assert later.key == ("ID", "POS")  # one of them came later
    with pytest.raises(FormatError, match=r"S.T has no column IDX\n.*option keys\n.*did you mean ID\?"):
        tables.layouts([table(1, "T")], columns, {"S.T": ["ID", "IDX"]})


def test_tables_that_options_name_and_that_are_not_there() -> None:
    there = ["SHOP.ITEM", "SHOP.LINE", "HR.STAFF"]
    assert SolidOptions(keys="SHOP.ITEM=ID", tables="SHOP.*").unknown_tables(there) == []
    assert SolidOptions(keys="shop.item=ID", tables="SHOP.*, HR.STAF").unknown_tables(there) == [
        "option keys: there is no table shop.item; did you mean SHOP.ITEM or SHOP.LINE?",
        "option tables: there is no table HR.STAF; did you mean HR.STAFF?",
    ]
    assert SolidOptions(tables="SHOP.ITEMS").unknown_tables(there) == [
        "option tables: there is no table SHOP.ITEMS; did you mean SHOP.ITEM or SHOP.LINE?"
    ]
    assert len(SolidOptions(tables="SHOP.ITEMS").unknown_tables([])) == 1  # no SYS_TABLES: nothing is known


def test_made_up_rows_come_back() -> None:
    kinds = [*(k for k in tables.MADE if k != "decimal"), "decimal(12,2)", "decimal(38,0)"]
    spec = ("shop.item", tuple((f"c{i}", k) for i, k in enumerate(kinds)), ("c3", "c0"))
    odd = ("no schema", (("id", "int"),), ())
    dotted = ("a.b.c", (("id", "int"),), ("id",))
    found = {x.table: x for x in tables.layouts(*tables.generated_rows([spec, odd, dotted]), {})}
    assert sorted(found) == ["a.b.c", "no schema", "shop.item"]
    assert [f.type for f in found["shop.item"].fields] == kinds
    assert found["shop.item"].key == ("c3", "c0")
    assert tables.same(*[tables.generated_rows([spec])[1]] * 2, tables.SYS_COLUMNS)
    with pytest.raises(UnsupportedError, match="no type for array"):
        tables.generated_rows([("t", (("a", "array<int>"),), ())])


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [("int", "int", "int"), ("smallint", "int", "int"), ("double", "float", "double"), ("date", "int", "string"),
     ("decimal(38,0)", "decimal(38,10)", "string")],
)  # fmt: skip
def test_wider(a: str, b: str, want: str) -> None:
    assert tables.wider(a, b) == tables.wider(b, a) == want


def test_options() -> None:
    form = formats.get("soliddb")
    given = formats.options(form, {"logaddr_bytes": "28", "tables": "S.*, T.A", "trailing_nul": "false"})
    assert isinstance(given, SolidOptions)
    assert (given.logaddr_bytes, given.style().trailing_nul) == (28, False)
    assert form.ids_option == "names" and given.names == {}
    assert SolidOptions.model_validate({"names": "DBA.S.T=S.T"}).names == {"DBA.S.T": "S.T"}
    assert [given.wants(t) for t in ("S.X", "T.A", "T.B")] == [True, True, False]
    with pytest.raises(ConfigError, match="logaddr_bytes"):
        formats.options(form, {"logaddr_bytes": "24"})
    with pytest.raises(ConfigError, match="did you mean 'row_layout'"):
        try:
            formats.options(form, {"rowlayout": "A"})
        except ConfigError as error:
            raise ConfigError(str(error)) from None


def test_knows() -> None:
    form = formats.get("soliddb")
    assert [form.knows([c.name.lower() for c in t.columns]) for t in form.tables] == [1.0, 1.0, 1.0]
    assert form.knows(["RECID", "LOGADDR", "CHANGE_SEQ", "COMMIT_TIME"]) < 1
    assert form.knows(["ID", "NAME"]) == 0


def taken(*layouts: list[tuple[str, int | None]]) -> list[list[str]]:
    """Of each layout of table 1 (names and ids of its columns) those whose values are taken."""
    rows = [
        column(1, place, name, ID=number, FROM_LOGADDR=bytes([n]) if n else None)
        for n, one in enumerate(layouts)
        for place, (name, number) in enumerate(one, 1)
    ]
    found = tables.layouts([table(1, "T")], rows, {})
    assert dict(tables.union(found)).keys() == {name for one in layouts for name, _ in one}
    return [[f.name for f in x.fields if f.taken] for x in found]


def test_a_column_that_is_added_again_under_its_name_is_another_one() -> None:
    # by its id
    assert taken([("id", 7), ("r", 8)], [("id", 7), ("r", 9)]) == [["id"], ["id", "r"]]
    # by a layout in between, without ids
    gone = taken([("id", None), ("r", None)], [("id", None)], [("id", None), ("r", None)])
    assert gone == [["id"], ["id"], ["id", "r"]]
    # twice
    twice = taken([("r", 1), ("id", 2)], [("r", 3), ("id", 2)], [("id", 2)], [("id", 2), ("r", 5)])
    assert twice == [["id"], ["id"], ["id"], ["id", "r"]]
    # one that is renamed there and back is the same
    back = taken([("id", 7), ("a", 8)], [("id", 7), ("b", 8)], [("id", 7), ("a", 8)])
    assert back == [["id", "a"], ["id", "b"], ["id", "a"]]
    # one that was dropped and has no successor stays
    assert taken([("id", 7), ("r", 8)], [("id", 7)]) == [["id", "r"], ["id"]]
    # ids that are only places, as export-log wrote them
    places = taken([("a", 1001), ("b", 1002), ("c", 1003)], [("a", 1001), ("c", 1002)])
    assert places == [["a", "b", "c"], ["a", "c"]]
    # ids that only number the rows
    assert taken([("a", 1), ("b", 2)], [("a", 3), ("b", 4)]) == [["a", "b"], ["a", "b"]]


def test_columns_of_a_table_that_is_made_again_are_those_of_before() -> None:
    rows = [column(1, 1, "id", ID=7), column(2, 1, "id", ID=8)]
    found = tables.layouts([table(1, "T"), table(2, "T")], rows, {})
    assert [[f.taken for f in x.fields] for x in found] == [[True], [True]]


def test_a_table_that_was_made_again_with_another_key_says_so() -> None:
    rows = [column(10, 1, "ID"), column(11, 1, "CODE", 12), column(11, 2, "ID")]
    there = [table(10, "T"), table(11, "T")]
    assert tables.made_again(tables.layouts(there, rows, {"S.T": ["ID"]})) is None
    said = tables.made_again(tables.layouts(there, rows, {"S.T": ["CODE", "ID"]}))
    assert said == "the table was created again (RELIDs 10, 11): RELID 10 has no CODE, which is in the key"
    error = null_key("S.T", ["CODE", "ID"], "7")
    told = explain_null_key(error, Read({}, made_again={"S.T": said}))
    assert isinstance(told, ApplyError)
    assert (told.what, told.where) == (error.what, error.where)
    assert (told.hint or "").startswith(said + ": apply the changes of each RELID separately")
    assert explain_null_key(error, Read({}, made_again={"S.U": said})) is error
