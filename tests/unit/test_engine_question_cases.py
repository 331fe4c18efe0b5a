"""Questions over change tables, in arrays: literal rows in, literal rows out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailrace.engine import sql_server
from tailrace.engine.chains import chain
from tailrace.engine.change_arrays import ChangeArrays
from tailrace.engine.history import history
from tailrace.engine.net import net
from tailrace.engine.pairs import pairs
from tailrace.engine.rebuild import rebuild
from tailrace.engine.state_at import complete_state, state_at
from tailrace.engine.transactions import transactions
from tailrace.errors import BaselineNeededError, ConfigError, FormatError, UnsupportedError

from . import change_model as cm
from .change_model import COLUMNS, Image, Row, full, seq

pytestmark = pytest.mark.unit


def values(row: Row) -> tuple[Any, ...]:
    return tuple(row[c] for c in COLUMNS)


def test_rows_that_no_question_can_use_are_kept_aside() -> None:
    rows = cm.table([Image(2, "U", full(1, "b")), Image(1, "I", full(1))]).to_pylist()
    rows += [{**rows[1], "header__change_seq": None}, {**rows[1], "header__change_oper": "X"}]
    rows += [{**rows[1], "id": None, "header__change_seq": seq(3)}, {**rows[0], "name": "again"}]
    rows += cm.table([Image(4, "U", {"name": "x"}), Image(5, "T")]).to_pylist()
    found = ChangeArrays.of(pa.Table.from_pylist(rows, cm.SCHEMA), ["id"])
    assert found.rows["header__change_oper"].to_pylist() == ["I", "U", "T"]
    assert sorted(found.aside["why"].to_pylist()) == [
        "NULL in the key, or the image has no key",
        "NULL in the key, or the image has no key",
        "change_oper is none of I, U, D, B, T",
        "duplicate change_seq and change_oper",
        "no change_seq: its position in the order is unknown",
    ]


def test_order_is_that_of_change_sequences_whatever_order_rows_come_in() -> None:
    images = [Image(1, "I", full(1)), Image(2, "B", full(1)), Image(2, "U", full(2)), Image(3, "D", full(2))]
    there = cm.arrays(images).rows
    assert cm.arrays(images[::-1]).rows == there
    assert cm.arrays([images[k] for k in (2, 0, 3, 1)]).rows == there


def test_a_range_is_cut_by_change_sequences() -> None:
    changes = cm.arrays([Image(n, "I", full(n)) for n in range(1, 6)])
    assert changes.between(seq(1), seq(3)).rows["id"].to_pylist() == [2, 3]
    assert changes.between(upto=seq(0)).rows["id"].to_pylist() == []
    assert changes.between(after=seq(4)).rows["id"].to_pylist() == [5]
    assert changes.between(seq(3), seq(1)).rows["id"].to_pylist() == []


def test_untracked_columns_begin_no_version() -> None:
    images = [
        Image(1, "I", full(1, "a", 1)), Image(2, "U", full(1, "a", 2)), Image(3, "U", full(1, "b", 2)),
        Image(4, "D", full(1)), Image(5, "I", full(1, "b", 2)),
    ]  # fmt: skip
    wanted = [
        (1, "a", 2, cm.at(1), cm.at(3), False),
        (1, "b", 2, cm.at(3), cm.at(4), False),
        (1, "b", 2, cm.at(5), None, True),
    ]
    for tracked in ({"track_history_column_list": ["name"]}, {"track_history_except_column_list": ["qty"]}):
        found = history(cm.arrays(images), **tracked).to_pylist()  # type: ignore[arg-type]
        got = [(*values(r), r["valid_from"], r["valid_to"], r["is_current"]) for r in found]
        assert got == wanted


def test_versions_that_nobody_could_see_may_be_left_out() -> None:
    images = [
        Image(1, "I", full(1, "a"), transaction=1),
        Image(2, "U", full(1, "b"), transaction=2), Image(3, "U", full(1, "c"), transaction=2),
        Image(4, "D", full(1), transaction=3), Image(5, "I", full(1, "c"), transaction=3),
        Image(6, "I", full(2), transaction=4), Image(7, "D", full(2), transaction=4),
    ]  # fmt: skip
    found = history(cm.arrays(images), committed=True).to_pylist()
    got = [(r["id"], r["name"], r["__START_AT"], r["__END_AT"]) for r in found]
    assert got == [(1, "a", seq(1), seq(3)), (1, "c", seq(3), None)]
    assert len(history(cm.arrays(images))) == 5


def test_transactions_over_tables() -> None:
    one = [
        Image(1, "I", full(1), transaction=7), Image(2, "U", full(1), transaction=7), Image(5, "T", transaction=8),
    ]  # fmt: skip
    two = [
        Image(3, "B", full(1), 7),
        Image(3, "U", full(1), 7),
        Image(4, "D", full(1), 7),
        Image(6, "I", full(1), 9),
    ]
    found = transactions({"s.one": cm.arrays(one), "s.two": cm.arrays(two)}).to_pylist()
    names = ("transaction_id", "table", "inserts", "updates", "deletes", "truncates", "_commit_version")
    assert [tuple(r[n] for n in names) for r in found] == [
        ("7", "s.one", 1, 1, 0, 0, seq(4)),
        ("7", "s.two", 0, 1, 1, 0, seq(4)),
        ("8", "s.one", 0, 0, 0, 1, seq(5)),
        ("9", "s.two", 1, 0, 0, 0, seq(6)),
    ]
    assert transactions({"s.one": cm.arrays([])}).num_rows == 0
    assert transactions({"s.one": cm.arrays([])}).schema == transactions({"s.one": cm.arrays(one)}).schema


def test_changes_without_transaction_ids_are_transactions_of_their_own() -> None:
    rows = cm.table([Image(1, "B", full(1)), Image(1, "U", full(1)), Image(2, "I", full(2))])
    for without in (
        rows.drop_columns(["header__transaction_id"]),
        rows.set_column(3, rows.schema.field(3), pa.nulls(3, pa.string())),
    ):
        found = transactions({"t": ChangeArrays.of(without, ["id"])}).to_pylist()
        assert [(r["transaction_id"], r["inserts"], r["updates"]) for r in found] == [
            (None, 0, 1),
            (None, 1, 0),
        ]


def test_masks_are_read_by_the_layout_that_they_were_written_for() -> None:
    whole = cm.table([Image(1, "I", full(1)), Image(2, "U", {"id": 1, "qty": 5})])
    narrow = whole.drop_columns(["header__change_mask", "header__timestamp", "name"])
    found = ChangeArrays.of(narrow, ["id"], layout=whole.column_names)
    assert state_at(found).to_pylist() == [{"id": 1, "qty": 5, "_absent": None}]
    assert history(found)["valid_from"].to_pylist() == [None, None]


def test_what_cannot_be_answered_is_an_error() -> None:
    rows = cm.table([Image(1, "U", {"id": 1, "qty": 2})])
    with pytest.raises(UnsupportedError, match="no key"):
        net(ChangeArrays.of(rows, []))
    with pytest.raises(FormatError, match="no column nope"):
        ChangeArrays.of(rows, ["nope"])
    with pytest.raises(ConfigError, match="deduplicationMode"):
        net(cm.arrays([]), deduplicationMode="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="style"):
        sql_server.net_changes(cm.arrays([]), "any")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="both given"):
        history(cm.arrays([]), track_history_column_list=[], track_history_except_column_list=[])
    with pytest.raises(ConfigError, match="no column nope"):
        history(cm.arrays([]), track_history_column_list=["nope"])
    with pytest.raises(ConfigError, match="the key is id"):
        chain(cm.arrays([]), {"name": "a"})
    with pytest.raises(ConfigError, match="not a valid value for the key column"):
        chain(ChangeArrays.of(rows, ["id"]), {"id": "x"})
    with pytest.raises(BaselineNeededError, match=r"1 rows have columns with unknown values \(name\)"):
        complete_state(ChangeArrays.of(rows, ["id"]), None, "t")


@pytest.mark.parametrize("base", [None, [], [full(1)]])
def test_no_changes(base: list[Row] | None) -> None:
    empty, rows = cm.arrays([]), cm.base_of(base)
    assert [values(r) for r in state_at(empty, rows).to_pylist()] == [values(r) for r in base or []]
    assert len(history(empty, base=rows)) == len(base or [])
    assert [len(f(empty, base=rows)) for f in (net, pairs, rebuild)] == [0, 0, 0]
    assert len(chain(empty, {"id": 1}, base=rows)) == 0


TAGS = pa.list_(pa.float64())
NAN = float("nan")


def tagged(
    *images: tuple[int, str, int, list[float | None] | None], kind: pa.DataType = TAGS
) -> ChangeArrays:
    """Change number, operation, key, tags."""
    rows = [
        {"header__change_seq": seq(n), "header__change_oper": oper, "id": id, "tags": tags}
        for n, oper, id, tags in images
    ]
    schema = pa.schema([*list(cm.SCHEMA)[:2], ("id", pa.int64()), ("tags", kind)])
    return ChangeArrays.of(pa.Table.from_pylist(rows, schema), ["id"], name="t")


@pytest.mark.parametrize(
    ("old", "new", "other"),
    [
        ([1.0], [2.0], True),
        ([1.0], [1.0, 2.0], True),
        ([], None, True),
        ([None], [], True),
        ([None], [0.0], True),
        ([1.0, None, NAN, 0.0], [1.0, None, NAN, -0.0], False),
        ([], [], False),
        (None, None, False),
    ],
)
@pytest.mark.parametrize("kind", [TAGS, pa.large_list(pa.float64()), pa.list_(pa.large_list(pa.float64()))])
def test_arrays_are_compared_by_their_elements(
    old: list[float | None] | None, new: list[float | None] | None, other: bool, kind: pa.DataType
) -> None:
    if kind == pa.list_(pa.large_list(pa.float64())):
        old, new = ([[7.0], None, one] for one in (old, new))  # type: ignore[list-item]
    changes = tagged(
        (1, "I", 1, old), (2, "I", 2, None), (3, "B", 1, old), (3, "U", 1, new), (4, "D", 2, None), kind=kind
    )
    assert len(net(changes, deduplicationMode="dropCarryovers")) == 3 + 2 * other
    assert pairs(changes)["changed"].to_pylist() == [None, None, ["tags"] if other else [], None]
    assert len(history(changes)) == 2 + other
    assert len(chain(changes, {"id": 1})) == 2
    styled = sql_server.net_changes(changes.between(seq(2)), "all with mask")
    assert styled["__$update_mask"].to_pylist() == ([["tags"], None] if other else [None])


def test_values_that_cannot_be_compared_are_refused() -> None:
    changes = tagged((1, "I", 1, None), (2, "U", 1, None), kind=pa.map_(pa.string(), pa.int64()))
    with pytest.raises(UnsupportedError, match=r"values of tags \(map<string, int64>\) cannot be compared"):
        pairs(changes)
