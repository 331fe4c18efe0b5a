"""What is special about OpenEdge's tables: field maps in SQL, levels, old names, full rows
from sparse images, policy dumps."""

from __future__ import annotations

import re

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tailrace.errors import ConfigError, FormatError
from tailrace.formats.base import FINER, WHY
from tailrace.formats.openedge import (
    FORMAT,
    OpenEdgeOptions,
    cdc_get_changed_columns,
    cdc_is_column_changed,
    read,
    rebuild,
    register,
    write,
)
from tailrace.formats.openedge import tables as oe
from tailrace.testing.changes import Image, change_table, comparable_rows, reasons
from tailrace.wire import cd_dump

from .test_format_openedge import FIELDS, NEW, TRACKED, field, image, policy, table, track, vendor

pytestmark = pytest.mark.spark

HEX = "header__change_seq"


@pytest.fixture(scope="module")
def plain(spark):
    """The vendor's tables as they are read without options."""
    return read(vendor(spark), OpenEdgeOptions())


def test_functions_give_what_the_vendors_page_says(spark):
    # The vendor's example: F1 to F5, field map 11001 (first field first), F1, F2 and F5 changed.
    ch1 = table(spark, oe.CHANGE, [], dict.fromkeys(("F1", "F2", "F3", "F4", "F5"), "string"))
    maps = spark.createDataFrame(
        [(bytearray(b"\x13"),), (bytearray(b""),), (None,)], "`_Change-FieldMap` binary"
    )
    names = maps.select(
        cdc_get_changed_columns(ch1), cdc_is_column_changed(ch1, "f1"), cdc_is_column_changed(ch1, "F3")
    )
    assert [tuple(r) for r in names.collect()] == [(["F1", "F2", "F5"], 1, 0), ([], 0, 0), ([], 0, 0)]

    wide = {f"c{n}": n for n in (1, 8, 9, 16, 64, 65, 2048)}
    register(spark, {"PUB.CDC_ch1": ch1, "Wide": wide})
    maps.createOrReplaceTempView("tracking")
    found = spark.sql("""
        SELECT array_join(cdc_get_changed_columns('pub.cdc_CH1', `_Change-FieldMap`), ';'),
               cdc_is_column_changed('CDC_ch1', 'F1', `_Change-FieldMap`),
               cdc_is_column_changed('CDC_ch1', 'f3', `_Change-FieldMap`) FROM tracking""").collect()  # fmt: skip
    assert [tuple(r) for r in found] == [("F1;F2;F5", 1, 0), ("", 0, 0), ("", 0, 0)]
    every = "unhex('8181' || repeat('00', 5) || '8001' || repeat('00', 246) || '80')"
    row = spark.sql(
        f"SELECT cdc_get_changed_columns('wide', {every}), cdc_is_column_changed('wide', 'c8', {every}), {every}"
    ).collect()[0]
    assert (row[0], row[1], len(row[2])) == (list(wide), 1, 256)
    for wrong, words in (
        ("cdc_get_changed_columns('PUB.Customer', x'01')", "PUB.Customer is not a change table"),
        ("cdc_is_column_changed('PUB.Customer', 'F1', x'01')", "PUB.Customer is not a change table"),
        ("cdc_is_column_changed('CDC_ch1', 'F9', x'01')", "no column F9 in CDC_ch1"),
    ):
        with pytest.raises(PySparkException, match=words):
            spark.sql(f"SELECT {wrong}").collect()
    with pytest.raises(FormatError, match="no column F9"):
        cdc_is_column_changed(ch1, "F9")
    with pytest.raises(FormatError, match="_Change-Sequence"):
        cdc_get_changed_columns(spark.range(1))


@pytest.mark.slow
def test_functions_know_the_gaps_of_what_was_read(spark, plain):
    place = plain.changes["PUB.Customer"]
    tracking = vendor(spark)["PUB._Cdc-Change-Tracking"].filter("`_Operation` = 4")
    found = tracking.orderBy("_Change-Sequence").select(cdc_get_changed_columns(place)).collect()
    assert [r[0] for r in found] == [["Name"], ["Note"], ["Name"]]


def rows_of(ct):
    return {
        (rank, oper): (changed, carried, values)
        for rank, oper, changed, carried, _, values in comparable_rows(ct)
    }


@pytest.mark.slow
def test_policies_over_time_say_what_an_image_carries(spark, plain):
    rows = rows_of(plain.changes["PUB.Customer"])
    absent = "(absent)"
    # Captured under the policy before: two columns.
    assert rows[0, "I"] == (("CustNum", "Name"), ("CustNum", "Name"), (1, "a", absent, absent))
    assert rows[1, "U"] == (("Name",), ("CustNum", "Name"), (1, "b", absent, absent))
    # Changed to NULL is there, unchanged is not.
    assert rows[3, "U"] == (("Name",), ("CustNum", "Name"), (1, None, absent, absent))
    assert rows[4, "D"] == (("CustNum",), None, (1, None, "new", "1;?;3"))
    assert rows[5, "I"][2] == (2, "c", "long text", "a;b~;c;")
    assert rows[6, "T"][0] == ()
    assert plain.changes["PUB.Customer"].key == ["CustNum"]
    assert plain.pending["_Cdc-Change-Tracking"].count() == 0
    text = FORMAT.read(vendor(spark), OpenEdgeOptions(arrays="array")).changes["PUB.Customer"]
    assert text.df.filter("CustNum = 2").select("Phones").collect()[0][0] == ["a", "b;c", ""]


@pytest.mark.slow
def test_arrays_as_columns_there_and_back(spark, plain):
    options = OpenEdgeOptions(arrays="columns")
    ct = read(vendor(spark), options).changes["PUB.Customer"]
    assert ct.columns == ["CustNum", "Name", "Note", "Phones1", "Phones2", "Phones3"]
    rows = rows_of(ct)
    assert rows[4, "D"] == (("CustNum",), None, (1, None, "new", "1", None, "3"))
    assert rows[0, "I"][2] == (1, "a", *("(absent)",) * 4)
    assert rows[5, "I"] == (tuple(ct.columns), None, (2, "c", "long text", "a", "b;c", ""))
    assert reasons(ct) == []
    again = (write({c.name: c}, OpenEdgeOptions())["PUB.CDC_Customer"] for c in (ct, plain.changes[ct.name]))
    left, right = (sorted(map(repr, df.select(sorted(df.columns)).collect())) for df in again)
    assert left == right
    short = [field(60, n, p, "character", 2 if n == "Phones" else 0) for n, p in (("CustNum", 9), ("Name", 10), ("Note", 12), ("Phones", 13))]  # fmt: skip
    tables = vendor(spark) | {"_Field": table(spark, oe.FIELD_TABLE, [*FIELDS[:4], *short, *FIELDS[8:]])}
    assert set(reasons(read(tables, options).changes["PUB.Customer"])) == {"Phones has more than 2 elements"}


@pytest.mark.slow
def test_levels_0_and_1_have_changes_without_images(spark):
    for level, columns in ((0, ()), (1, ("CustNum", "Name", "Note", "Phones"))):
        mine = policy(
            NEW, "p", level, 50, **({"_Change-Tablename": "CDC_Customer", "_Object-Id": 6} if level else {})
        )
        changes = [track(1, 1), track(2, 4, [2] if level else None), track(3, 2)]
        tables = vendor(spark, policies=[mine], tracked=changes, images=[])
        tables.pop("PUB.Note_changes")
        if not level:
            tables.pop("PUB.CDC_Customer")
        found = read(tables, OpenEdgeOptions())
        assert list(found.apart) == ["PUB.Customer"]
        ct = found.changes["PUB.Customer"]
        assert (tuple(ct.columns), reasons(ct)) == (columns, [])
        rows = rows_of(ct)
        assert {k[1]: r[1] for k, r in rows.items()} == {"I": (), "U": (), "D": ()}
        assert rows[1, "U"][0] == (("Name",) if level else None)
        again = write({ct.name: ct}, OpenEdgeOptions())
        assert sorted(again) == sorted(tables)
        left, right = (t["PUB._Cdc-Change-Tracking"] for t in (again, tables))
        assert sorted(map(repr, left.collect())) == sorted(map(repr, right.select(*left.columns).collect()))


@pytest.mark.slow
def test_operations_that_change_no_row_wait_with_what_they_say(spark):
    more = [
        track(8, 5),
        track(9, 12, [4]),
        track(10, 11),
        track(11, 1, **{"_Source-Table-Number": 99, "_Policy-Id": "?"}),
    ]
    found = read(vendor(spark, tracked=[*TRACKED, *more]), OpenEdgeOptions())
    waiting = (
        found.pending["_Cdc-Change-Tracking"].orderBy("_Change-Sequence").select("_Operation", WHY).collect()
    )
    assert [(code, why.split(":")[0]) for code, why in waiting] == [
        (5, "operation 5"), (12, "operation 12"), (11, "operation 11"),
        (1, "no policy and no change table for source table 99"),
    ]  # fmt: skip
    assert reasons(found.changes["PUB.Customer"]) == []


@pytest.mark.slow
def test_partitions_that_are_gone_are_truncates_when_users_say_so(spark):
    codes = [track(20 + code, code, **{"_Partition-Id": 3, "_Tenant-Id": 4}) for code in range(6, 11)]
    tables = vendor(spark, tracked=[*TRACKED, *codes, track(40, 7)])
    said = reasons(read(tables, OpenEdgeOptions()).changes["PUB.Customer"])
    # Partition 0 of tenant 0 is a part of its table, too.
    assert len(said) == 6
    assert any(s.startswith("partition truncate of partition 0, tenant 0: unknown rows") for s in said)
    ct = read(tables, OpenEdgeOptions(partitions="truncate")).changes["PUB.Customer"]
    kept = ct.df.filter("header__change_oper = 'T'").orderBy(HEX)
    columns = ("header__native__Operation", "header__partition_id", "header__tenant_id")
    assert [tuple(r) for r in kept.select(*columns).collect()] == [
        (7, None, None),
        *((c, 3, 4) for c in range(6, 11)),
        (7, 0, 0),
    ]
    again = write({ct.name: ct}, OpenEdgeOptions())["PUB._Cdc-Change-Tracking"]
    assert sorted(r[0] for r in again.filter("`_Partition-Id` = 3").select("_Operation").collect()) == [
        6,
        7,
        8,
        9,
        10,
    ]


@pytest.mark.slow
def test_names_of_12_2_and_any_letter_case(spark, plain):
    tables = vendor(spark)
    old = {
        "_Change-FieldMap": "_Source-FieldMap",
        "_Recid": "_Source-Rowid",
        "_Partition-Id": "_Source-Partition-Id",
    }
    more = {"_ArrayIndex": "_Array-Index", "_Tran-Id": "_Tran-id", "_Change-Sequence": "_CHANGE-SEQUENCE"}

    def spelled(df, names):
        return df.drop("_User-Name").withColumnsRenamed({k: v for k, v in names.items() if k in df.columns})

    other = {n.upper() if "CDC-" in n.upper() else n: spelled(df, old | more) for n, df in tables.items()}
    left, right = (r.changes["PUB.Customer"] for r in (plain, read(other, OpenEdgeOptions())))
    headers = ["recid", "partition_id", "transaction_id"]
    assert comparable_rows(left, headers=headers) == comparable_rows(right, headers=headers)
    both = tables["PUB._Cdc-Change-Tracking"].withColumn("_Source-Rowid", F.lit(1))
    with pytest.raises(FormatError, match="both mean _Recid"):
        read(tables | {"PUB._Cdc-Change-Tracking": both}, OpenEdgeOptions())


@pytest.mark.slow
def test_time_zones_of_text_are_kept(spark):
    tables = vendor(spark)
    name, text = "PUB._Cdc-Change-Tracking", "2026-01-02T04:04:05.678000+01:00"
    tables[name] = tables[name].withColumn("_Time-Stamp", F.lit(text))
    ct = read(tables, OpenEdgeOptions()).changes["PUB.Customer"]
    assert {r[0].isoformat() for r in ct.df.select("header__timestamp").collect()} == {
        "2026-01-02T03:04:05.678000"
    }
    again = write({ct.name: ct}, OpenEdgeOptions(timestamps="text"))[name]
    assert {r[0] for r in again.select("_Time-Stamp").collect()} == {text}


@pytest.mark.slow
def test_offsets_of_values_survive_a_round_trip(spark):
    fields = [field(60, n, p, t) for n, p, t in (("CustNum", 9, "integer"), ("At", 10, "datetime-tz"), ("Seen", 11, "datetime-tz"))]  # fmt: skip
    tables = vendor(spark, tracked=TRACKED[4:6], images=[])
    tables["_Field"] = table(spark, oe.FIELD_TABLE, fields)
    times = [
        ("2026-01-02T03:04:05.678-05:00", "2026-01-02T03:04:05.678901+05:30"),
        ("2026-01-02T03:04:05.000", None),
    ]
    images = [
        image(n, o, CustNum=n, At=at, Seen=seen)
        for n, o, (at, seen) in zip((5, 6), (2, 1), times, strict=True)
    ]
    columns = {"CustNum": "int", "At": "string", "Seen": "string"}
    tables["PUB.CDC_Customer"] = table(spark, oe.CHANGE, images, columns)
    ct = read(tables, OpenEdgeOptions()).changes["PUB.Customer"]
    assert [str(r[0]) for r in ct.df.orderBy(HEX).select("At").collect()] == [
        "2026-01-02 08:04:05.678000", "2026-01-02 03:04:05",
    ]  # fmt: skip
    again = write({ct.name: ct}, OpenEdgeOptions())["PUB.CDC_Customer"]
    assert [tuple(r) for r in again.orderBy("_Change-Sequence").select("At", "Seen").collect()] == times


@pytest.mark.slow
def test_fractions_of_values_finer_than_microseconds_are_told(spark):
    fields = [field(60, n, p, t, e) for n, p, t, e in (("CustNum", 9, "integer", 0), ("At", 10, "datetime", 0), ("Seen", 11, "datetime", 2))]  # fmt: skip
    tables = vendor(spark, tracked=TRACKED[4:6], images=[])
    tables["_Field"] = table(spark, oe.FIELD_TABLE, fields)
    at = "2026-01-02T03:04:05.123456"
    for number, cut, told in ((5, {"At": f"{at}7"}, True), (6, {"Seen": f"?;{at}7"}, True), (6, {}, False)):
        values = {"CustNum": number, "At": at, "Seen": f"{at};?", **cut}
        rows = [image(number, 2 if number == 5 else 1, **values)]
        kinds = {"CustNum": "int", "At": "string", "Seen": "string"}
        tables["PUB.CDC_Customer"] = table(spark, oe.CHANGE, rows, kinds)
        for arrays in ("array", "columns"):
            ct = read(tables, OpenEdgeOptions(arrays=arrays)).changes["PUB.Customer"]
            mine = ct.df.filter(F.col("At").isNotNull())
            assert [(str(r["At"]), r[FINER]) for r in mine.collect()] == [
                ("2026-01-02 03:04:05.123456", told)
            ]


@pytest.mark.slow
def test_change_tables_alone_or_without_policies(spark):
    tables = vendor(spark)
    alone = {"PUB.CDC_Customer": tables["PUB.CDC_Customer"]}
    with pytest.raises(FormatError, match="without _Cdc-Change-Tracking"):
        read(alone, OpenEdgeOptions())
    kept = read(alone, OpenEdgeOptions(orphans="keep", keys="Customer=CustNum")).changes["PUB.Customer"]
    # What an update changed is not known: what is not NULL is there.
    assert rows_of(kept)[2, "U"][:2] == (None, ("CustNum", "Note"))
    assert "no tracking row" not in str(reasons(kept))
    named = {n: df for n, df in tables.items() if "olicy" not in n}
    two = {n: df for n, df in named.items() if not n.startswith("_F")}
    with pytest.raises(FormatError, match="it is unknown which tracking rows"):
        read(two, OpenEdgeOptions())
    found = read(two, OpenEdgeOptions(numbers="PUB.Customer=5; PUB.Note_changes=15"))
    assert [reasons(ct) for ct in found.changes.values()] == [[], []]
    # With `_File` and `_Field` numbers and gaps are known; source tables have change tables of default names.
    plain = {n.replace("Note_changes", "CDC_Note"): df for n, df in named.items()}
    plain["_File"] = plain["_File"].replace("Note_changes", "CDC_Note")
    assert rows_of(read(plain, OpenEdgeOptions()).changes["PUB.Customer"])[2, "U"][0] == ("Note",)
    with pytest.raises(FormatError, match="no change table"):
        read({"x": spark.range(1)}, OpenEdgeOptions())


def test_full_rows_from_sparse_images(spark):
    images = [
        Image(1, "I", {"id": 1, "name": "a", "note": "n"}, ["id", "name", "note"]),
        Image(2, "U", {"id": 1, "name": None}, ["name"]),
        Image(3, "B", {"id": 1, "note": "n"}),
        Image(3, "U", {"id": 1, "note": "m"}, ["note"]),
        Image(4, "D", {"id": 1}),
        Image(5, "U", {"id": 1, "note": "late"}, ["note"]),  # after the delete: nothing is known
        Image(6, "U", {"id": 2, "name": "b"}, ["name"]),
        Image(7, "U", {"id": 2, "note": "base"}, ["note"]),
        Image(8, "T"),
        Image(9, "U", {"id": 2, "note": "x"}, ["note"]),
        Image(10, "I", {"id": 3, "name": "c", "note": ""}, ["id", "name", "note"]),
        Image(11, "U", {"id": 2, "note": "y"}, ["id", "note"]),  # took the key of another row over
    ]
    columns = {"id": "int", "name": "string", "note": "string"}
    sparse = change_table(spark, images, columns=columns)
    gone = "(absent)"
    want = [(1, "a", "n"), (1, None, "n"), (1, None, "n"), (1, None, "m"), (1, None, "m"), (1, gone, "late"),
            (2, "b", gone), (2, "b", "base"), (gone,) * 3, (2, gone, "x"), (3, "c", ""), (2, gone, "y")]  # fmt: skip

    def values(ct):
        return [r[-1] for r in sorted(comparable_rows(ct), key=lambda r: (r[0], r[1]))]

    assert values(rebuild(sparse, by="key")) == want
    base = spark.createDataFrame([(2, "old", "older")], "id int, name string, note string")
    want[6] = (2, "b", "older")
    assert values(rebuild(sparse, by="key", base=base)) == want
    for odd, said in (
        ("2 as id, 1.5 as name, 'older' as note", "name is decimal(2,1), not string"),
        ("2 as id, 'old' as name", "it does not have note"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            rebuild(sparse, by="key", base=spark.sql(f"SELECT {odd}"))
    # By recid a change of the key changes nothing: the row is the same.
    moved = change_table(spark, images[9:], columns=columns)
    by_recid = moved.with_df(moved.df.withColumn("header__recid", F.lit("7")))
    assert values(rebuild(by_recid))[-1] == (2, "c", "y")
    with pytest.raises(ConfigError, match="it does not have header__recid"):
        rebuild(by_recid, base=base)
    with pytest.raises(ConfigError, match="no recid"):
        rebuild(sparse, by="recid")


@pytest.mark.slow
def test_policy_dumps_are_written_and_name_what_is_read(spark, tmp_path):
    tables = vendor(spark)
    few = {n: t for n, t in tables.items() if n != "PUB.Note_changes"}
    few["PUB._Cdc-Change-Tracking"] = few["PUB._Cdc-Change-Tracking"].filter("`_Source-Table-Number` = 5")
    FORMAT.save(few, str(tmp_path / "all"), "csv", OpenEdgeOptions(dump="sports"))
    dump = cd_dump.read((tmp_path / "all" / "sports.cd").read_bytes())
    assert [(p.name, p.table, p.level, [f.name for f in p.fields if f.identifying]) for p in dump.policies] == [
        ("now", "Customer", 3, ["CustNum"]), ("notes", "Note", 2, ["Id"]),
    ]  # fmt: skip
    for name in ("PUB._Cdc-Table-Policy", "PUB._Cdc-Field-Policy", "_File", "_Field"):
        for file in (tmp_path / "all" / name).iterdir():
            file.unlink()
        (tmp_path / "all" / name).rmdir()
    back = FORMAT.load(spark, str(tmp_path / "all"), OpenEdgeOptions())
    found = read(back, OpenEdgeOptions(split="joined"))
    assert list(found.changes) == ["PUB.Customer"]
    assert found.changes["PUB.Customer"].key == ["CustNum"]
    (tmp_path / "all" / "_Cdc-Change-Tracking.csv").write_text("a\n")
    with pytest.raises(ConfigError, match="Spark ignores files"):
        FORMAT.load(spark, str(tmp_path / "all"), OpenEdgeOptions())


@pytest.mark.slow
def test_sequences_of_any_form_are_written_by_rank(spark):
    ct = change_table(spark, [Image(1, "I", {"id": 1}), Image(2, "B", {"id": 1}), Image(2, "U", {"id": 1})])
    odd = ct.with_df(ct.df.withColumn(HEX, F.concat(F.lit("LSN:"), F.substring(HEX, -3, 3))))
    with pytest.raises(PySparkException, match="is not 35 digits, or has no number"):
        write({"a.b": odd}, OpenEdgeOptions())["PUB._Cdc-Change-Tracking"].collect()
    made = write({"a.b": odd}, OpenEdgeOptions(sequence="rank"))
    numbers = made["a.CDC_b"].select("_Change-Sequence", "_Operation").collect()
    assert sorted(map(tuple, numbers)) == [(1, 1), (2, 3), (2, 4)]
    assert comparable_rows(read(made, OpenEdgeOptions()).changes["a.b"], headers=["change_seq"])[0][4] == (
        "LSN:001",
    )


def test_a_full_load_counts_in_front_of_changes(spark):
    """It has no change numbers: its rows' places are theirs, and changes come behind 10^16."""
    ct = change_table(spark, [Image(n, "I", {"id": n}) for n in (1, 2, 7)])
    loaded = F.col("id") < 3
    first = F.concat(F.lpad(F.col("id"), 16, "0"), F.lit("0" * 19))
    df = ct.df.withColumn(HEX, F.when(loaded, first).otherwise(F.col(HEX)))
    df = df.withColumn("header__native_oper", F.when(loaded, F.lit("L")))
    made = write({"a.b": ct.with_df(df)}, OpenEdgeOptions())
    numbers = made["a.CDC_b"].select("id", "_Change-Sequence").collect()
    assert sorted(map(tuple, numbers)) == [(1, 1), (2, 2), (7, 10**16 + 7)]


@pytest.mark.slow
def test_without_their_policies_rows_get_a_new_one(spark, plain):
    ct = plain.changes["PUB.Customer"]
    bare = ct.with_df(ct.df.withMetadata(HEX, {}))
    (gap,) = [g for g in FORMAT.cannot if g.kind == "missing policies"]
    assert ct.df.filter(gap.lost(ct)).count() == 0
    assert bare.df.filter(gap.lost(bare)).count() == bare.df.count()
    back = read(write({ct.name: bare}, OpenEdgeOptions()), OpenEdgeOptions()).changes["PUB.Customer"]
    assert (reasons(back), back.key) == ([], ["CustNum"])
    headers = ["recid", "native__Policy-Id", "native__Source-Table-Number"]
    left = gap.erase(bare)
    assert comparable_rows(back, headers=headers) == comparable_rows(left, headers=headers)
