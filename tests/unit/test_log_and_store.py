"""LOG gives change sequences that survive replays; store tasks turn LOG into change tables, exactly once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.errors import FormatError, OvertakenError, UnsupportedError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.store import kept, tables, tracking
from tailrace.store.task import LOG_COLUMNS, KeptLayout, StorePlan, TablePlan
from tailrace.wire.records import RECORDS, Chunk

from .messages import delete, insert, update

pytestmark = pytest.mark.unit

ITEM = Relation(
    7, "shop", "item", "d",
    (Column("id", 1, "integer", "int4", "int", key=True), Column("n", 2, "numeric(5,1)", "numeric", "decimal(5,1)")),
)  # fmt: skip
KIND = {
    b"I": log.INSERT,
    b"U": log.UPDATE,
    b"D": log.DELETE,
    b"B": log.BEGIN,
    b"C": log.COMMIT,
    b"T": log.DDL,
}


def chunk(
    lsn: int,
    *messages: bytes,
    at: int = 1_700_000_000_000_000,
    complete: int | None = None,
    first: bool = True,
) -> Chunk:
    """One transaction committed at `lsn` (messages without B and C when it goes on elsewhere)."""
    n = len(messages)
    records = pa.record_batch(
        [
            pa.array([KIND[m[:1]] for m in messages], pa.int32()),
            pa.array([lsn] * n, pa.int64()),
            pa.array([lsn] * n, pa.int64()),
            pa.array([0 if m[:1] in b"BC" else 7 for m in messages], pa.int64()),
            pa.array([1] * n, pa.int32()),
            pa.array(
                [
                    lsn.to_bytes(8, "big") + (k + (not first) * 100).to_bytes(8, "big") + bytes(4)
                    for k in range(n)
                ]
            ),
            pa.array(list(messages), pa.binary()),
            pa.array([at] * n, pa.timestamp("us", "UTC")),
        ],
        schema=RECORDS,
    )
    done = n if complete is None else complete
    position = (lsn + 1).to_bytes(8, "big") + bytes(12) if done else None
    return Chunk(records, [(0, ITEM)] if first else [], done, position)


def rows(home: Path) -> list[tuple[int, str]]:
    table = lake.read(str(home / "log"), ["RECID", "CHANGE_SEQ"]).sort_by("CHANGE_SEQ")
    return list(zip(table["RECID"].to_pylist(), table["CHANGE_SEQ"].to_pylist(), strict=True))


def writer(home: Path) -> log.LogWriter:
    return log.LogWriter(str(home / "log"), str(home / "relations"))


def test_records_get_a_change_sequence_of_commit_time_and_running_number(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.add(chunk(100, b"B", insert(7, [1, "1"]), b"C"))
    done = w.commit()
    assert done is not None and (done.records, done.transactions) == (3, 1)
    assert rows(tmp_path) == [(k, f"2023111422132000{n:019d}") for n, k in [(1, 7), (2, 1), (3, 12)]]


def test_time_never_runs_backwards(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.add(chunk(100, b"B", b"C", at=1_700_000_000_000_000))
    w.add(chunk(200, b"B", b"C", at=1_600_000_000_000_000))
    w.commit()
    assert [seq[:16] for _, seq in rows(tmp_path)] == ["2023111422132000"] * 4


def test_an_unfinished_transaction_is_not_visible_and_is_numbered_the_same_when_it_comes_again(
    tmp_path: Path,
) -> None:
    w = writer(tmp_path)
    w.add(chunk(100, b"B", insert(7, [1, "1"]), b"C", b"B", insert(7, [2, "2"]), complete=3))
    assert w.commit() is not None
    assert len(rows(tmp_path)) == 3
    again = writer(tmp_path)  # as after a kill: the open transaction is sent again, whole
    assert again.state.position == (101).to_bytes(8, "big") + bytes(12)
    again.add(chunk(200, b"B", insert(7, [2, "2"]), b"C", at=1_700_000_000_500_000))
    again.commit()
    assert [int(s[16:]) for _, s in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("more", [0, 2])
def test_a_writer_that_was_overtaken_adds_nothing(tmp_path: Path, more: int) -> None:
    late, other = writer(tmp_path), writer(tmp_path)
    late.add(chunk(100, b"B", insert(7, [1, "1"]), b"C"))
    for lsn in range(200, 200 + more):  # ahead of the other one, whose records it has, too
        late.add(chunk(lsn, b"B", insert(7, [2, "2"]), b"C"))
    other.add(chunk(100, b"B", insert(7, [1, "1"]), b"C"))
    other.commit()
    with pytest.raises(OvertakenError, match="another process has written"):
        late.commit()
    assert [int(s[16:]) for _, s in rows(tmp_path)] == [1, 2, 3]


def test_a_transaction_over_many_chunks_is_one_commit(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.add(chunk(100, b"B", insert(7, [1, "1"]), complete=0))
    assert not w.ready and w.commit() is None and rows(tmp_path) == []
    w.add(chunk(100, insert(7, [2, "2"]), insert(7, [3, "3"]), complete=0, first=False))
    w.add(chunk(100, b"C", first=False))
    done = w.commit()
    assert done is not None and done.records == 5 and len(rows(tmp_path)) == 5
    assert len(kept.spans(DeltaTable(str(tmp_path / "log")), "CHANGE_SEQ")) == 1


def test_an_idle_position_is_kept_without_rows(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.add(Chunk(RECORDS.empty_table().to_batches()[0] if RECORDS.empty_table().to_batches() else
                pa.RecordBatch.from_pylist([], schema=RECORDS), [], 0, (5000).to_bytes(8, "big") + bytes(12)))  # fmt: skip
    assert w.commit() is not None
    assert writer(tmp_path).state.position == (5000).to_bytes(8, "big") + bytes(12)


def test_the_relation_history_says_from_where_a_layout_holds(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.add(chunk(100, b"B", insert(7, [1, "1"]), b"C"))
    w.commit()
    (only,) = log.layouts(str(tmp_path / "relations"))
    assert (only.relation, log.number(only)) == (ITEM, 1)


def store(home: Path, after: int = -1, stored_after: int = -1) -> list[tuple[str, object]]:
    """Runs one store task over the whole LOG; gives (kind, info) of its results, sorted."""
    path = str(home / "item__ct")
    schema = tables.ensure(path, ITEM)
    plan = StorePlan(
        {7: TablePlan("shop.item", path, schema, (KeptLayout(0, ITEM, (3, 3)),), after)},
        str(home / "tracking"), after, str(home / "quarantine"), stored_after,
    )  # fmt: skip
    batches = lake.read(str(home / "log"), LOG_COLUMNS).to_batches()
    found = plan(batches)
    for r in found:
        if r.kind == "changes" and r.file:
            lake.commit(path, [r.file], progress={})
    return sorted(((r.kind, r.info) for r in found), key=lambda one: one[0])


def test_a_store_task_writes_change_rows_tracking_and_the_last_commit(tmp_path: Path) -> None:
    w = writer(tmp_path)
    truncate = b"T\0\0\0\1\0\0\0\0\7"
    w.add(chunk(100, b"B", insert(7, [1, "1"]), update(7, [2, "1"], key=[1, None]), truncate, b"C"))
    w.commit()
    (changes, commit, numbers, tracked) = store(tmp_path)
    assert numbers == ("numbers", {"runs": [(1, 5)]})
    assert changes == (
        "changes", {"I": 1, "U": 1, "D": 0, "T": 1, "key_changes": 1, "absent": 0, "rows": 4},
    )  # fmt: skip
    assert commit[0] == "commit" and commit[1]["number"] == 5  # type: ignore[index]
    assert tracked[0] == "tracking"
    found = lake.read(str(tmp_path / "item__ct")).sort_by("header__change_seq").to_pylist()
    assert [(r["header__change_oper"], r["id"]) for r in found] == [("I", 1), ("B", 1), ("U", 2), ("T", None)]


def test_records_a_table_already_has_are_counted_but_not_written_again(tmp_path: Path) -> None:
    w = writer(tmp_path)
    truncate = b"T\0\0\0\1\0\0\0\0\7"
    w.add(chunk(100, b"B", insert(7, [1, "1"]), truncate, insert(7, [2, "1"]), b"C"))
    w.commit()
    (changes, *_) = store(tmp_path, after=3)
    # apply goes by the counts: a truncate that is not counted would be forgotten
    assert changes == ("changes", {"I": 2, "U": 0, "D": 0, "T": 1, "key_changes": 0, "absent": 0, "rows": 3})
    assert lake.read(str(tmp_path / "item__ct"))["id"].to_pylist() == [2]


def test_records_of_a_batch_that_is_recorded_are_not_counted_twice(tmp_path: Path) -> None:
    w = writer(tmp_path)
    truncate = b"T\0\0\0\1\0\0\0\0\7"
    w.add(chunk(100, b"B", insert(7, [1, "1"]), truncate, insert(7, [2, "1"]), b"C"))
    w.commit()
    found = store(tmp_path, stored_after=3)  # TRACKING is what the crash kept back
    assert found[0] == (
        "changes", {"I": 1, "U": 0, "D": 0, "T": 0, "key_changes": 0, "absent": 0, "rows": 1},
    )  # fmt: skip
    assert [kind for kind, _ in found] == ["changes", "commit", "numbers", "tracking"]
    assert sorted(map(str, lake.read(str(tmp_path / "item__ct"))["id"].to_pylist())) == ["1", "2", "None"]


def test_bad_value_is_set_aside_and_the_first_written_one_is_reported(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.add(
        chunk(
            100, b"B", update(7, [1, "7"], old=[1, "NaN"]), insert(7, [2, "NaN"]), insert(7, [3, "NaN"]), b"C"
        )
    )
    w.commit()
    found = store(tmp_path)
    assert [kind for kind, _ in found] == ["changes", "commit", "numbers", "quarantine", "tracking"]
    (one,) = found[3][1]["bad"]  # type: ignore[index]
    assert (one.change_seq[-2:], one.table, one.column, one.value) == ("03", "shop.item", "n", "NaN")
    assert one.reason == "'NaN' does not fit shop.item.n (lake type decimal(5,1))"
    assert (int(one.position[:16], 16), one.keyed, one.before) == (100, False, False)


def test_changes_of_an_unknown_relation_stop_the_store(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.add(chunk(100, b"B", insert(7, [1, "1"]), b"C"))
    w.commit()
    plan = StorePlan({}, str(tmp_path / "tracking"), -1, "")
    with pytest.raises(FormatError, match="relation 7"):
        plan(lake.read(str(tmp_path / "log"), LOG_COLUMNS).to_batches())


def test_a_widened_column_is_widened_and_a_retyped_one_is_kept_aside(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.add(chunk(100, b"B", insert(7, [1, "1"]), delete(7, key=[1, None]), b"C"))
    w.commit()
    store(tmp_path)
    path = str(tmp_path / "item__ct")
    wide = ITEM.with_columns(
        [Column("id", 1, "bigint", "int8", "bigint", key=True), Column("n", 2, "text", "text", "string")]
    )
    schema = tables.ensure(path, wide, 50)
    assert schema.names[8:] == ["id", "n__until_50", "n"]
    assert schema.field("id").type == pa.int64()
    found = lake.read(path).sort_by("header__change_seq").to_pylist()
    assert [(r["id"], str(r["n__until_50"]), r["n"]) for r in found] == [(1, "1.0", None), (1, "None", None)]


@pytest.mark.parametrize("name", ["N", "header__timestamp", "HEADER__change_seq"])
@pytest.mark.parametrize("there", [True, False])
def test_columns_that_a_change_table_cannot_have(tmp_path: Path, name: str, there: bool) -> None:
    """A column was added, or renamed, while the task ran."""
    path = str(tmp_path / "item__ct")
    if there:
        tables.ensure(path, ITEM)
    before = lake.arrow_schema(path) if there else None
    more = Column(name, 3, "text", "text", "string")
    with pytest.raises(UnsupportedError, match=f"cannot have both of the columns .* and {name}") as told:
        tables.ensure(path, ITEM.with_columns([*ITEM.columns, more]), 50)
    assert told.value.where == ITEM.table
    assert (lake.arrow_schema(path) == before) if there else not lake.exists(path)


@pytest.mark.parametrize("there", [True, False])
def test_a_column_named_like_one_in_which_earlier_values_are_kept(tmp_path: Path, there: bool) -> None:
    path = str(tmp_path / "item__ct")
    if there:
        tables.ensure(path, ITEM)
    more = Column("n__until_50", 3, "text", "text", "string")
    with pytest.raises(UnsupportedError, match=r"n__until_50 has the name .* earlier values of n"):
        tables.ensure(path, ITEM.with_columns([*ITEM.columns, more]), 50)
    alone = replace(more, name="valid__until_2026")  # there is no `valid`
    assert alone.name in tables.ensure(path, ITEM.with_columns([*ITEM.columns, alone]), 50).names


def test_a_column_that_is_renamed_by_letter_case_only(tmp_path: Path) -> None:
    path = str(tmp_path / "item__ct")
    tables.ensure(path, ITEM)
    with pytest.raises(UnsupportedError, match="cannot have both of the columns n and N"):
        tables.ensure(path, ITEM.with_columns([ITEM.columns[0], replace(ITEM.columns[1], name="N")]), 50)


def test_what_is_committed_while_a_change_table_is_written_anew_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "item__ct")
    schema = tables.ensure(path, ITEM)
    rows = [pa.Table.from_pylist([{"id": n}], schema=schema) for n in (1, 2)]
    lake.append(path, rows[0])
    overwrite, late = lake.overwrite, [rows[1]]

    def overtaken(*args: object, **kwargs: object) -> object:
        if late:
            lake.append(path, late.pop())
        return overwrite(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(lake, "overwrite", overtaken)
    tables.ensure(path, ITEM.with_columns([ITEM.columns[0], Column("n", 2, "text", "text", "string")]), 50)
    found = lake.read(path)
    assert (sorted(found["id"].to_pylist()), found.schema.names[-2:]) == ([1, 2], ["n__until_50", "n"])


def test_layouts_of_the_past_leave_a_retyped_column_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "item__ct")
    text = ITEM.with_columns([ITEM.columns[0], Column("n", 2, "text", "text", "string")])
    number = ITEM.with_columns([ITEM.columns[0], Column("n", 2, "double precision", "float8", "double")])
    wanted = [(f.name, f.type) for f in tables.ensure(path, number, 0)]
    wanted = [*wanted[:-1], ("n__until_50", pa.float64()), ("n", pa.string())]
    for layout, start in ((text, 50), (number, 0), (text, 50), (number, 0)):  # as a restart goes through them
        found = tables.ensure(path, layout, start)
        assert [(f.name, f.type) for f in found] == wanted
    assert [c.name for c in tables.as_kept(found, number, 0).columns] == ["id", "n__until_50"]


def test_tracking_says_what_when_and_which_columns() -> None:
    batch = pa.record_batch(
        {
            "RECID": pa.array([log.INSERT, log.DDL], pa.int32()),
            "TRXID": pa.array([5, 5], pa.int64()),
            "RELID": pa.array([7, 7], pa.int64()),
            "COMMIT_TIME": pa.array([0, 0], pa.timestamp("us", "UTC")),
            "CHANGE_SEQ": pa.array(["2023111422132000" + f"{n:019d}" for n in (8, 9)]),
        }
    )
    found = tracking.rows(batch, tracking.numbers(batch["CHANGE_SEQ"]), None, "shop.item").to_pylist()
    assert [(r["_Operation"], r["_Change-Sequence"], r["_Policy-Id"], r["_Source-Table-Number"]) for r in found] == [
        (1, 8, "shop.item", 7), (7, 9, "shop.item", 7),
    ]  # fmt: skip


def test_the_version_after_a_number_is_found(tmp_path: Path) -> None:
    w = writer(tmp_path)
    for k in range(4):  # numbers 1-2, 3-4, 5-6, 7-8 at versions 1, 2, 3, 4
        w.add(chunk(100 * (k + 1), b"B", b"C"))
        w.commit()
    found = [log.version_after(str(tmp_path / "log"), n) for n in (None, 0, 1, 2, 6, 7, 8)]
    assert found == [0, 1, 1, 2, 4, 4, 4]
