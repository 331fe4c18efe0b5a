"""Log records of one table become the right rows of its change table, masks bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tailrace.lake import log
from tailrace.model import mask
from tailrace.model.change import Column, Relation
from tailrace.model.types import header_schema, schema_of
from tailrace.store import images

from .messages import UNSENT, delete, insert, update

pytestmark = pytest.mark.unit

COLUMNS = (
    Column("id", 1, "integer", "int4", "int", key=True),
    Column("name", 2, "text", "text", "string"),
    Column("price", 3, "numeric(8,2)", "numeric", "decimal(8,2)"),
)
KEYED = Relation(7, "shop", "item", "d", COLUMNS)
FULL = Relation(7, "shop", "item", "f", COLUMNS)
SCHEMA = pa.schema([*header_schema(), *schema_of(COLUMNS)])
ID, NAME, PRICE = 8, 9, 10


def records(*messages: bytes) -> pa.RecordBatch:
    n = len(messages)
    recid = {b"I": log.INSERT, b"U": log.UPDATE, b"D": log.DELETE}
    return pa.record_batch(
        {
            "RECID": pa.array([recid[m[:1]] for m in messages], pa.int32()),
            "TRXID": pa.array([0x1F] * n, pa.int64()),
            "RELID": pa.array([7] * n, pa.int64()),
            "LOGADDR": pa.array([(k + 1).to_bytes(20, "big") for k in range(n)], pa.binary()),
            "DATA": pa.array(list(messages), pa.binary()),
            "COMMIT_TIME": pa.array([1_700_000_000_000_000] * n, pa.timestamp("us", "UTC")),
            "CHANGE_SEQ": pa.array([f"2023111422132000{k + 1:019d}" for k in range(n)]),
        }
    )


def facts(relation: Relation, *messages: bytes) -> list[tuple[object, ...]]:
    """(oper, changed ordinals, carried ordinals or None, id, name, price as text) per row."""
    found = images.decode(records(*messages), relation, SCHEMA).rows.to_pylist()
    return [
        (
            r["header__change_oper"],
            mask.decode(r["header__change_mask"]),
            None if r["header__column_mask"] is None else mask.decode(r["header__column_mask"]),
            r["id"],
            r["name"],
            None if r["price"] is None else str(r["price"]),
        )
        for r in found
    ]


def test_infinity_in_a_key_is_a_bad_value() -> None:
    """As the last moment that the lake holds it would be the same key as that moment; elsewhere it may be."""
    columns = [Column("till", 1, "date", "date", "date", key=True), Column("seen", 2, "date", "date", "date")]
    relation, schema = KEYED.with_columns(columns), pa.schema([*header_schema(), *schema_of(columns)])
    messages = [
        insert(7, ["9999-12-31", "infinity"]),
        update(7, ["infinity", "2026-01-01"], key=["9999-12-31", None]),
        delete(7, key=["-infinity", None]),
    ]
    found = images.decode(records(*messages), relation, schema)
    assert [(one.row, one.column, one.text) for one in found.bad] == [
        (1, "till", "infinity"), (2, "till", "-infinity"),
    ]  # fmt: skip
    assert [str(r["till"]) for r in found.rows.to_pylist()] == ["9999-12-31", "9999-12-31", "None", "None"]
    assert str(found.rows["seen"][0]) == "9999-12-31"


def test_insert_sets_every_data_bit_even_for_nulls() -> None:
    assert facts(KEYED, insert(7, [1, None, "2.50"])) == [("I", [ID, NAME, PRICE], None, 1, None, "2.50")]


def test_update_without_old_image_marks_what_was_sent_but_not_the_key() -> None:
    assert facts(KEYED, update(7, [1, "a", None])) == [("U", [NAME, PRICE], None, 1, "a", None)]


def test_update_with_an_unsent_value_carries_less() -> None:
    assert facts(KEYED, update(7, [1, UNSENT, "3"])) == [("U", [PRICE], [ID, PRICE], 1, None, "3.00")]


def test_full_identity_gives_a_before_row_and_the_exact_mask() -> None:
    assert facts(FULL, update(7, [1, None, "2"], old=[1, "x", "2"])) == [
        ("B", [], None, 1, "x", "2.00"),
        ("U", [NAME], None, 1, None, "2.00"),
    ]


def test_full_identity_fills_an_unsent_value_from_the_old_image() -> None:
    assert facts(FULL, update(7, [1, UNSENT, "9"], old=[1, "long", "2"])) == [
        ("B", [], None, 1, "long", "2.00"),
        ("U", [PRICE], None, 1, "long", "9.00"),
    ]


def test_a_key_change_keeps_the_old_key_in_a_before_row() -> None:
    assert facts(KEYED, update(7, [2, UNSENT, "1"], key=[1, None, None])) == [
        ("B", [], [ID], 1, None, None),
        ("U", [ID, PRICE], [ID, PRICE], 2, None, "1.00"),
    ]


def test_an_unsent_part_of_the_key_is_that_of_the_old_key() -> None:
    """PostgreSQL sends the old key of a row whose key is stored out of line."""
    assert facts(KEYED, update(7, [UNSENT, "b", "1"], key=[1, None, None])) == [
        ("B", [], [ID], 1, None, None),
        ("U", [NAME, PRICE], None, 1, "b", "1.00"),
    ]
    both = KEYED.with_columns([replace(c, key=c.name != "price") for c in KEYED.columns])
    assert facts(both, update(7, [2, UNSENT, "1"], key=[1, "long", None])) == [
        ("B", [], [ID, NAME], 1, "long", None),
        ("U", [ID, PRICE], None, 2, "long", "1.00"),
    ]


def test_delete_carries_the_key_and_marks_it() -> None:
    assert facts(KEYED, delete(7, key=[1, None, None])) == [("D", [ID], [ID], 1, None, None)]


def test_full_delete_carries_the_whole_row() -> None:
    assert facts(FULL, delete(7, old=[1, "x", "2"])) == [("D", [ID], None, 1, "x", "2.00")]


def test_mixed_records_keep_their_order_and_headers() -> None:
    decoded = images.decode(
        records(
            insert(7, [1, "a", "1"]),
            update(7, [2, "a", "1"], key=[1, None, None]),
            delete(7, key=[2, None, None]),
            update(7, [3, "c", "1"], key=[4, None, None]),
        ),
        KEYED,
        SCHEMA,
    )
    rows = decoded.rows.to_pylist()
    assert [(int(r["header__change_seq"][16:]), r["header__change_oper"], r["id"]) for r in rows] == [
        (1, "I", 1), (2, "B", 1), (2, "U", 2), (3, "D", 2), (4, "B", 4), (4, "U", 3),
    ]  # fmt: skip
    assert {r["header__transaction_id"] for r in rows} == {"0" * 30 + "1F"}
    assert rows[0]["header__stream_position"] == "00" * 19 + "01"
    assert [r["header__operation"] for r in rows] == [
        "INSERT", "BEFOREIMAGE", "UPDATE", "DELETE", "BEFOREIMAGE", "UPDATE",
    ]  # fmt: skip
    assert decoded.counts == {"I": 1, "U": 2, "D": 1, "T": 0, "key_changes": 2, "absent": 0}


def test_field_maps_count_user_columns_from_one_and_stand_on_updates_only() -> None:
    maps = images.decode(
        records(insert(7, [1, "a", "1"]), update(7, [1, "b", UNSENT])), KEYED, SCHEMA
    ).field_maps.to_pylist()
    assert [None if m is None else mask.decode_field_map(m) for m in maps] == [None, [2]]


def test_a_value_the_type_cannot_hold_is_reported_with_its_text() -> None:
    decoded = images.decode(records(insert(7, [1, "a", "1"]), insert(7, [2, "b", "NaN"])), KEYED, SCHEMA)
    assert decoded.bad == [images.BadImageValue(1, "price", "NaN")]
    assert decoded.rows["price"][1].as_py() is None


def test_columns_the_layout_does_not_have_are_null() -> None:
    wider = SCHEMA.append(pa.field("later", pa.int64()))
    rows = images.decode(records(insert(7, [1, "a", "1"])), KEYED, wider).rows
    assert rows.schema == wider and rows["later"].null_count == 1


def test_truncate_rows_have_headers_only() -> None:
    rows = images.truncates(records(insert(7, [1, "a", "1"])), SCHEMA).to_pylist()
    assert [
        (r["header__change_oper"], r["header__operation"], r["header__change_mask"], r["id"]) for r in rows
    ] == [("T", "TRUNCATE", b"", None)]


@pytest.mark.parametrize("count", [0, 1, 300])
def test_any_number_of_records(count: int) -> None:
    assert (
        images.decode(
            records(*[insert(7, [k, "x", None]) for k in range(count)]), KEYED, SCHEMA
        ).rows.num_rows
        == count
    )
