"""Policies to source tables: who shares a change table, where bits are, what a policy captured, what is odd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import FormatError
from tailrace.formats.openedge.dumps import policies_of
from tailrace.formats.openedge.metadata import policy_id, table_number
from tailrace.formats.openedge.options import OpenEdgeOptions
from tailrace.formats.openedge.policies import (
    FIELDS,
    FIELDS_OF,
    FILES,
    POLICIES,
    keyless,
    notes,
    sources,
    unknown_tables,
)
from tailrace.model import mask
from tailrace.wire.cd_dump import FieldPolicy, TablePolicy

pytestmark = pytest.mark.unit

COLUMNS = {"PUB.CDC_Item": ["Id", "Name", "Note"]}


def policy(id: str = "p", instance: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "_Policy-Id": id, "_Policy-Name": id, "_Policy-State": 0, "_Policy-Instance": instance, "_Level": 3,
        "_Source-File-Recid": 50, "_Change-Tablename": "CDC_Item", "_Change-Table-Owner": "PUB", "_Object-Id": 6,
        "_First-User-Field": 9, **more,
    }  # fmt: skip


def field(file: int, name: str, place: int) -> dict[str, Any]:
    return {"_File-Recid": file, "_Field-Name": name, "_Field-Physpos": place, "Recid": file * 100 + place}


def captured(policy: str, place: int, rank: int = 0, recid: int | None = None) -> dict[str, Any]:
    return {"_Policy-Id": policy, "_Field-Position": place, "_Identifying-Field": rank, "_Field-Recid": recid}


ITEM = {"_File-Number": 5, "_File-Name": "Item", "_Owner": "PUB", "Recid": 50}
CDC = {"_File-Number": 6, "_File-Name": "CDC_Item", "_Owner": "PUB", "Recid": 60}
METADATA = {
    POLICIES: [policy("old", 1, _Level=2), policy("now")],
    FIELDS_OF: [captured("now", 2, 2), captured("now", 4, 1), captured("now", 5), captured("old", 2, 1, 5002)],
    FILES: [ITEM, CDC],
    FIELDS: [
        field(50, "Id", 2), field(50, "Name", 4), field(50, "Note", 5), field(60, "Id", 9), field(60, "Name", 12),
        field(60, "Note", 20),
    ],
}  # fmt: skip


def test_policies_of_a_source_table_share_its_change_table() -> None:
    (found,) = sources(METADATA, COLUMNS)
    assert (found.name, found.change_table, found.number) == ("PUB.Item", "PUB.CDC_Item", 5)
    assert found.positions == {"Id": 1, "Name": 4, "Note": 12}
    assert found.key == ("Name", "Id")
    assert found.tracked == {"now": ("Id", "Name", "Note"), "old": ("Id",)}
    assert found.levels == {"now": 3, "old": 2}


def test_names_in_any_letter_case_and_without_owner() -> None:
    for name in ("cdc_item", "pub.CDC_ITEM"):
        (found,) = sources(METADATA, {name: ["ID", "NAME", "note"]})
        assert (found.change_table, found.key) == (name, ("NAME", "ID"))


def test_without_schema_tables_columns_follow_each_other() -> None:
    (found,) = sources({POLICIES: [policy()]}, COLUMNS)
    assert (found.name, found.number, found.key) == ("PUB.Item", None, ())
    assert found.positions == {"Id": 1, "Name": 2, "Note": 3}


def test_types_of_fields_come_from_the_source_table_if_the_change_table_has_no_rows() -> None:
    kinds = {"Id": ("integer", 0), "Name": ("character", 0), "Note": ("decimal", 3)}
    fields = [
        {**field(50, n, p), "_Data-Type": kinds[n][0], "_Extent": kinds[n][1]}
        for n, p in (("Id", 2), ("Name", 4), ("Note", 5))
    ]
    of_source = {**METADATA, FILES: [ITEM], FIELDS: fields}
    for metadata in (of_source, {FILES: [ITEM], FIELDS: fields}):  # also without policies
        (found,) = sources(metadata, COLUMNS)
        assert found.types == {"Id": "int", "Name": "string", "Note": "decimal(38,10)"}
        assert found.extents == {"Note": 3}
        # Where its columns are in field maps is not known from the source table.
        assert found.positions == {"Id": 1, "Name": 2, "Note": 3}
        assert found.counted == ("Id", "Name", "Note")
    # The change table's own rows go first.
    own = {**field(60, "Id", 12), "_Data-Type": "int64", "_Extent": 0}
    (found,) = sources({**METADATA, FIELDS: [*fields, own]}, {"PUB.CDC_Item": ["Id", "Name"]})
    assert (found.types, found.positions) == ({"Id": "bigint", "Name": "string"}, {"Id": 4, "Name": 2})
    assert found.counted == ("Name",)
    assert sources(METADATA, COLUMNS)[0].counted == ()


def test_a_change_table_alone_names_its_source_table() -> None:
    names = {n: ["a"] for n in ("PUB.CDC_Item", "CDC-Order", "CDC.CDC_Line", "LineCDC")}
    assert [s.name for s in sources({}, names)] == ["CDC.Line", "PUB.Item", "PUB.LineCDC", "PUB.Order"]


def test_a_dump_names_source_table_and_identity() -> None:
    fields = (FieldPolicy("Name", 2), FieldPolicy("Id", 1), FieldPolicy("Note"))
    dump = TablePolicy(
        "p", None, 0, 0, "Goods", "shop", None, None, True, 3, "CDC_Item", "PUB", fields=fields
    )
    (found,) = sources({}, COLUMNS, dumped=[dump, dump])
    assert (found.name, found.key) == ("shop.Goods", ("Id", "Name"))
    with pytest.raises(FormatError, match="dumps have several policies of CDC_Item"):
        sources({}, COLUMNS, dumped=[dump, replace(dump, fields=fields[:2])])


def test_a_level_0_policy_has_no_change_table() -> None:
    rows = [policy(_Level=0, **{"_Change-Tablename": None, "_Object-Id": None})]
    (found,) = sources({POLICIES: rows, FILES: [ITEM]}, {})
    assert (found.name, found.change_table, found.columns) == ("PUB.Item", None, ())


def test_what_users_say_goes_first() -> None:
    (found,) = sources(METADATA, COLUMNS, keys={"item": ["Note"]}, numbers={"PUB.Item": 9})
    assert (found.key, found.number) == (("Note",), 9)
    with pytest.raises(FormatError, match=r"PUB.Item has no column NOTE\n.*option keys\n.*did you mean Note"):
        sources(METADATA, COLUMNS, keys={"Item": ["NOTE"]})


def test_tables_that_options_name_and_that_are_not_there() -> None:
    found = sources(METADATA, COLUMNS)
    fine = OpenEdgeOptions(keys="pub.item=Note", numbers="Item=9")
    assert unknown_tables(fine, found) == []
    odd = OpenEdgeOptions(keys="PUB.Itme=Note; ITEM=Id", numbers="HR.Pay=7")
    assert unknown_tables(odd, found) == [
        "option keys: there is no table PUB.Itme; did you mean PUB.Item?",
        "option numbers: there is no table HR.Pay; there is PUB.Item",
    ]


ID, LINE = field(60, "Id", 9), field(60, "Line", 10)
LINES = {"PUB.CDC_Item": ["Id", "Line"]}


def key_of(policies: list[dict[str, Any]], *fields: dict[str, Any]) -> tuple[str, ...]:
    of_source = [field(50, "Id", 2), field(50, "Line", 3)]
    metadata = {POLICIES: policies, FIELDS_OF: fields, FILES: [ITEM, CDC], FIELDS: [*of_source, ID, LINE]}
    twice = {n: [*rows, *map(dict, rows)] for n, rows in metadata.items()}
    (once,), (again,) = sources(metadata, LINES), sources(twice, LINES)
    assert (again.key, again.tracked, again.rows) == (once.key, once.tracked, once.rows)
    return once.key


A, B = [captured("A", 2, 1)], [captured("B", 2, 1), captured("B", 3, 2)]


def test_each_extract_brings_its_policies() -> None:
    """A was the current one when the first was made; every row is there twice, too (`key_of`)."""
    assert key_of([policy("A")], *A) == ("Id",)
    assert key_of([policy("A"), policy("A", 1), policy("B")], *A, *B) == ("Id", "Line")
    assert key_of([policy("A", 1), policy("B"), policy("A")], *A, *B) == ("Id", "Line")
    # _Last-Modified comes before the order in which a policy usually becomes pending, current, previous.
    was, now = {"_Last-Modified": "2026-11-01 08:00:00"}, {"_Last-Modified": "2026-11-02 08:00:00"}
    back = [policy("A", 1, **was), policy("A", **now), policy("B", 1, **now)]
    assert key_of(back, *A, *B) == ("Id",)
    # The second extract no longer has A.
    assert key_of([policy("A", **was), policy("B", **now)], *A, *B) == ("Id", "Line")
    assert [d.name for d in policies_of({**METADATA, POLICIES: [policy("old"), *METADATA[POLICIES]]})] == [
        "now"
    ]


def test_policies_that_do_not_say_which_is_the_newest_are_refused() -> None:
    with pytest.raises(FormatError, match="policies A and B are both the current one") as told:
        key_of([policy("A"), policy("B")], *A, *B)
    assert told.value.hint is not None and "newest extract" in told.value.hint
    with pytest.raises(FormatError, match=r"rows of one policy differ in _Level"):
        key_of([policy("A", _Level=2), policy("A")], *A)
    with pytest.raises(FormatError, match=r"Id: rows differ in _Identifying-Field"):
        key_of([policy("A")], *A, captured("A", 2, 2))


def test_policies_that_contradict_each_other_are_refused() -> None:
    rows = [policy("a"), policy("b", 1, **{"_Change-Tablename": "CDC_Other"})]
    with pytest.raises(FormatError, match="several change tables"):
        sources({POLICIES: rows}, COLUMNS)
    wrong = {**METADATA, FIELDS: [field(60, "Id", 9), field(60, "Name", 9), field(60, "Note", 3)]}
    with pytest.raises(FormatError, match="physical positions of Id, Name, Note"):
        sources(wrong, COLUMNS)


def test_policies_become_a_dump() -> None:
    (found,) = policies_of(METADATA)
    assert (found.name, found.table, found.instance, found.level) == ("now", "Item", 0, 3)
    assert found.fields == (FieldPolicy("Id", 2), FieldPolicy("Name", 1), FieldPolicy("Note", 0))
    # A previous policy alone is dumped as pending.
    (old,) = policies_of({**METADATA, POLICIES: METADATA[POLICIES][:1]})
    assert (old.name, old.instance) == ("old", 2)


def test_a_dump_has_the_policy_that_reading_takes() -> None:
    """A, the current one of 2025, is gone from the newer extract, which has B; every field is there twice."""
    was, now = {"_Last-Modified": "2025-11-01 08:00:00"}, {"_Last-Modified": "2026-11-01 08:00:00"}
    fields = [captured("A", 2, 1), captured("B", 2, 2), captured("B", 4, 1), captured("B", 4, 1, 5004)]
    rows = {**METADATA, POLICIES: [policy("A", **was), policy("B", **now)], FIELDS_OF: fields}
    (read,), (dumped,) = sources(rows, COLUMNS), policies_of(rows)
    assert (read.key, dumped.name) == (("Name", "Id"), "B")
    assert dumped.fields == (FieldPolicy("Id", 2), FieldPolicy("Name", 1))
    with pytest.raises(FormatError, match="policies A and B are both the current one"):
        policies_of({**rows, POLICIES: [policy("A"), policy("B")]})
    with pytest.raises(FormatError, match="Name: rows differ in _Identifying-Field"):
        policies_of({**rows, FIELDS_OF: [*fields, captured("B", 4, 3)]})


def test_ids_are_22_characters_and_numbers_leave_room_for_the_change_table() -> None:
    assert len(policy_id("shop.item")) == 22
    assert policy_id("shop.item") != policy_id("shop.Item")
    assert 0 <= table_number("shop.item") < 2**31 - 1


@given(st.sets(st.integers(1, 8 * mask.FIELD_MAP_BYTES)))
def test_field_maps_hold_256_bytes(positions: set[int]) -> None:
    """Position n is bit (n - 1) mod 8 of byte (n - 1) div 8, lowest bit first."""
    made = mask.encode_field_map(positions)
    assert len(made) <= mask.FIELD_MAP_BYTES
    plain = {8 * byte + bit + 1 for byte, value in enumerate(made) for bit in range(8) if value & 1 << bit}
    assert plain == positions
    assert mask.decode_field_map(made + b"\0") == sorted(positions)


def test_why_a_key_is_not_known() -> None:
    some = {**METADATA, FIELDS_OF: [captured("now", 2), captured("now", 4)]}
    named = {**some, POLICIES: [policy("now", **{"_Identifying-Fields": "yes"})]}
    for metadata, why in (
        (METADATA, {}),
        (some, {"PUB.Item": "no identifying fields"}),
        (named, {"PUB.Item": "identifying fields without names"}),
        (
            {n: rows for n, rows in named.items() if n not in (FILES, FIELDS)},
            {"PUB.Item": "identifying fields without names (give _File and _Field)"},
        ),
    ):
        found = sources(metadata, COLUMNS)
        assert list(keyless(found, metadata).values()) == list(why.values())
        assert [n for n in notes(found, metadata) if "recid" in n or "identif" in n] == []
    bare = sources({**named, POLICIES: [policy("now", _Level=0, **{"_Change-Tablename": None})]}, {})
    assert keyless(bare, named) == {}
