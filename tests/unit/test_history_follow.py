"""A kept history of a change table that is followed call by call: where it begins, and what ends it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import tailrace
from tailrace.errors import UnsupportedError
from tailrace.lake import delta as lake
from tailrace.model import mask, sequence
from tailrace.model.change import HEADERS, Column, Relation
from tailrace.model.types import header_schema, schema_of
from tailrace.query.change_files import ChangeFiles
from tailrace.query.history.positions import FOLLOWS
from tailrace.query.history.progress import FollowProgress
from tailrace.query.history.table import HistoryTable
from tailrace.query.positions import PositionRange
from tailrace.store.tables import ensure

from ..ending import ends
from .once import once
from .task_home import ITEM, TaskHome

pytestmark = pytest.mark.unit

KEY = Column("id", 1, "integer", "int4", "int", key=True)
P, Q = (Column(name, number, "text", "text", "string") for name, number in (("p", 2), ("q", 3)))


@once
def begun(folder: Path, *columns: Column) -> TaskHome:
    """A table whose row 1 is there at 10, and whose row 2 comes at 11 and changes at 12."""
    home = TaskHome(folder, columns=columns)
    one = {c.name: f"{c.name}1" for c in columns[1:]}
    two = {c.name: f"{c.name}2" for c in columns[1:]}
    home.baseline([{"id": 1, **one}], after=10)
    home.store((11, "I", {"id": 2, **two}), (12, "U", {"id": 2, **two, columns[-1].name: "new"}))
    return home


def altered(home: TaskHome, number: int, *columns: Column) -> None:
    home.layout(number, columns)
    ensure(home.task.changes_path(ITEM), Relation(1, "shop", "item", "d", columns), number)


def keep(home: TaskHome, path: Path, **given: Any) -> HistoryTable:
    return tailrace.open(home.file).table(ITEM).keep_history(str(path / "kept"), **given)


def versions(history: HistoryTable, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(r[n] for n in ("id", *names)) for r in history.versions().rows()), key=repr)


@pytest.mark.parametrize(
    ("later", "why", "start"),
    [
        pytest.param([KEY, P, replace(Q, attnum=4)], "the column q was replaced", None, id="made anew"),
        pytest.param(
            [KEY, replace(Q, name="p"), replace(Q, attnum=4)],
            "the column q was replaced",
            13,
            id="a name taken",
        ),
    ],
)
def test_a_column_that_is_another_one_by_now_ends_a_history(
    tmp_path: Path, later: list[Column], why: str, start: int | None
) -> None:
    home = begun(tmp_path, KEY, P, Q)
    base = tailrace.open(home.file).table(ITEM).as_of(10 if start is None else 12).table()
    before = keep(home, tmp_path, base=base, start=start).versions().rows()
    altered(home, 13, *later)
    assert keep(home, tmp_path).versions().rows() == before  # nothing has come that could be mistaken
    home.store((20, "I", {"id": 3, "p": "p3", "q": "q3"}))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=why) as error:
            keep(home, tmp_path)
    assert error.value.where == str(tmp_path / "kept")
    assert "keep another history" in (error.value.hint or "") and "range" not in error.value.what
    assert HistoryTable.open(str(tmp_path / "kept")).versions().rows() == before


def test_a_history_takes_columns_that_were_added_with_and_without_a_default(tmp_path: Path) -> None:
    """Rows of before have the default, as in the source, in older versions, too."""
    home = begun(tmp_path, KEY, P)
    base = tailrace.open(home.file).table(ITEM).as_of(10).table()
    assert versions(keep(home, tmp_path, base=base), "p") == [(1, "p1"), (2, "new"), (2, "p2")]
    home.store((13, "I", {"id": 3, "p": "p3"}))
    note, grade = (
        Column(n, k, "text", "text", "string", missing=m)
        for n, k, m in (("note", 3, None), ("grade", 4, "x"))
    )
    altered(home, 14, KEY, P, note, grade)
    home.store((14, "U", {"id": 2, "p": "new", "note": "n", "grade": "y"}))
    wanted = [
        (1, "p1", None, "x"), (2, "new", "n", "y"), (2, "new", None, "x"), (2, "p2", None, "x"), (3, "p3", None, "x"),
    ]  # fmt: skip
    for _ in range(2):
        found = keep(home, tmp_path).versions().rows()
        assert sorted(((r["id"], r["p"], r["note"], r["grade"]) for r in found), key=repr) == sorted(
            wanted, key=repr
        )


def test_a_history_follows_a_renamed_column_under_the_name_that_it_has(tmp_path: Path) -> None:
    home = begun(tmp_path, KEY, P, Q)
    base = tailrace.open(home.file).table(ITEM).as_of(10).table()
    keep(home, tmp_path, base=base, track_history_column_list=["q"])
    altered(home, 13, KEY, replace(P, name="title"), replace(Q, name="p2"))
    home.store((13, "U", {"id": 1, "title": "t", "p2": "q1"}), (14, "U", {"id": 2, "title": "u", "p2": "q9"}))
    altered(home, 15, KEY, replace(Q, name="p2"))
    home.store((15, "I", {"id": 3, "p2": "q3"}))
    for _ in range(2):
        found = versions(keep(home, tmp_path, track_history_column_list=["p2"]), "p", "q")
        assert found == [(1, "t", "q1"), (2, "p2", "new"), (2, "p2", "q2"), (2, "u", "q9"), (3, None, "q3")]


def test_a_history_that_begins_behind_the_last_change_is_told_once(tmp_path: Path) -> None:
    """What was before `start` is in the base; the next calls go on from there."""
    home = begun(tmp_path, KEY, P)
    base = tailrace.open(home.file).table(ITEM).current().table()
    for _ in range(2):
        assert versions(keep(home, tmp_path, base=base, start=13), "p") == [(1, "p1"), (2, "new")]
        assert versions(keep(home, tmp_path), "p") == [(1, "p1"), (2, "new")]
    home.store((13, "U", {"id": 2, "p": "newer"}))
    for _ in range(2):
        assert versions(keep(home, tmp_path), "p") == [(1, "p1"), (2, "new"), (2, "newer")]


def test_rows_of_before_a_truncate_have_no_value_of_a_column_that_came_later(tmp_path: Path) -> None:
    keyless, p = replace(KEY, key=False), replace(P, attnum=2)
    home = TaskHome(tmp_path, columns=[keyless])
    home.baseline([{"id": 1}, {"id": 1}], after=10)
    base = tailrace.open(home.file).table(ITEM).as_of(10).table()
    altered(home, 11, keyless, p)
    home.store((11, "T", {}), (12, "I", {"id": 1, "p": None}), (13, "I", {"id": 2, "p": "new"}))
    found = tailrace.open(home.file).table(ITEM).net(11, base=base)
    assert [(r["_change_type"], r["id"], r["p"]) for r in found.rows()] == [
        ("delete", 1, None),
        ("insert", 2, "new"),
    ]
    assert isinstance(base, pa.Table) and base.column_names == ["id"]


def test_what_a_crash_kept_out_of_the_versions_is_done_by_the_next_call(tmp_path: Path) -> None:
    """Before the next changes, which may leave out what the row has."""
    home = begun(tmp_path, KEY, P, Q)
    base = tailrace.open(home.file).table(ITEM).as_of(10).table()
    keep(home, tmp_path, base=base)
    home.store((13, "U", {"id": 1, "p": "p1", "q": "newer"}))
    with ends("history.exchange"):
        keep(home, tmp_path)
    known = {"header__column_mask": mask.encode(len(HEADERS) + n for n in (0, 1))}  # without q
    home.store((14, "B", {"id": 1, "p": "p1", **known}), (14, "U", {"id": 9, "p": "p2", **known}))
    history = keep(home, tmp_path)
    want = {(2, "p2", "new"), (9, "p2", "newer")}
    assert {(r["id"], r["p"], r["q"]) for r in history.current().rows()} == want
    assert not history.has_pending_events


def change(time: int, number: int, oper: str, **values: Any) -> dict[str, Any]:
    """A row of a vendor's change table: an hour, a change number."""
    return {"header__change_seq": sequence.make(2026112200000000 + time * 1_000_000, number),
            "header__change_oper": oper, **values}  # fmt: skip


def came(path: Path, *rows: dict[str, Any]) -> None:
    """One more file of a change table that no task has stored."""
    schema = pa.schema([*header_schema(), *schema_of([KEY, P])])
    lake.append(str(path / "ct"), pa.Table.from_pylist(list(rows), schema))


def kept_of(path: Path, **given: Any) -> HistoryTable:
    return tailrace.read(str(path / "ct"), key=["id"]).keep_history(str(path / "kept"), **given)


def test_changes_whose_numbers_begin_anew_are_added(tmp_path: Path) -> None:
    came(tmp_path, change(10, 499, "I", id=1, p="a"), change(10, 500, "U", id=1, p="b"))
    kept_of(tmp_path)
    came(tmp_path, change(11, 1, "U", id=1, p="c"), change(11, 20, "I", id=2, p="new"))
    for _ in range(2):
        assert versions(kept_of(tmp_path), "p") == [(1, "a"), (1, "b"), (1, "c"), (2, "new")]
    came(tmp_path, change(11, 21, "U", id=2, p="newer"))
    assert versions(kept_of(tmp_path), "p") == [(1, "a"), (1, "b"), (1, "c"), (2, "new"), (2, "newer")]


@pytest.mark.parametrize("number", [3, 7], ids=["before the last", "at the last"])
def test_changes_that_come_late_are_added(tmp_path: Path, number: int) -> None:
    """Even where an image lacks what only the rows of before tell."""
    came(
        tmp_path,
        change(10, 1, "B", id=1, header__column_mask=mask.encode([len(HEADERS)])),
        change(10, 1, "U", id=5, header__column_mask=mask.encode([len(HEADERS)])),
        change(10, 7, "I", id=2, p="b"),
    )
    base = pa.table({"id": pa.array([1], pa.int32()), "p": ["old"]})
    assert versions(kept_of(tmp_path, base=base), "p") == [(1, "old"), (2, "b"), (5, "old")]
    came(tmp_path, change(10, number, "U", id=5, p="late"))
    for _ in range(2):
        assert versions(kept_of(tmp_path), "p") == [(1, "old"), (2, "b"), (5, "late"), (5, "old")]
    assert kept_of(tmp_path).rejects().rows() == []


def test_late_changes_are_refused_by_a_history_that_has_forgotten_events(tmp_path: Path) -> None:
    came(tmp_path, change(10, 1, "I", id=1, p="a"), change(10, 7, "U", id=1, p="b"))
    kept_of(tmp_path).forget(7)
    came(tmp_path, change(11, 1, "U", id=1, p="c"))
    assert versions(kept_of(tmp_path), "p") == [(1, "a"), (1, "b"), (1, "c")]
    came(tmp_path, change(10, 8, "U", id=1, p="late"))
    with pytest.raises(UnsupportedError, match="changes arrived after later ones") as error:
        kept_of(tmp_path)
    assert "keep another history in another folder" in (error.value.hint or "")


def went(path: Path, which: str) -> None:
    """Rows that are moved away, or taken by retention."""
    DeltaTable(str(path / "ct")).delete(which)


def test_changes_that_come_late_are_added_where_others_went(tmp_path: Path) -> None:
    """There are fewer rows up to the last change than before."""
    came(tmp_path, *(change(10, n, "I", id=n, p="a") for n in (10, 20, 30)))
    kept_of(tmp_path)
    went(tmp_path, "id IN (10, 20)")
    came(tmp_path, change(10, 15, "I", id=15, p="late"))
    for _ in range(2):
        assert versions(kept_of(tmp_path), "p") == [(10, "a"), (15, "late"), (20, "a"), (30, "a")]
    assert kept_of(tmp_path).rejects().rows() == []
    before = kept_of(tmp_path).events().number
    kept_of(tmp_path)
    assert kept_of(tmp_path).events().number == before  # what is there by now is noted


def test_an_image_that_rows_which_went_had_completed_stays(tmp_path: Path) -> None:
    masked = {"header__column_mask": mask.encode([len(HEADERS)])}
    came(
        tmp_path,
        change(10, 10, "U", id=1, p="new"),
        change(10, 20, "B", id=1, **masked),
        change(10, 20, "U", id=5, **masked),
    )
    want = [(1, "new"), (1, "old"), (5, "new")]
    base = pa.table({"id": pa.array([1], pa.int32()), "p": ["old"]})
    assert versions(kept_of(tmp_path, base=base), "p") == want
    went(tmp_path, "p = 'new'")
    came(tmp_path, change(10, 21, "I", id=6, p="next"))
    for _ in range(2):
        assert versions(kept_of(tmp_path), "p") == [*want, (6, "next")]
    assert kept_of(tmp_path).rejects().rows() == []


@pytest.mark.parametrize("late", [False, True])
def test_a_history_that_has_forgotten_events_goes_on_where_rows_went(tmp_path: Path, late: bool) -> None:
    came(tmp_path, *(change(10, n, "I", id=n, p="a") for n in (10, 20, 30)))
    kept_of(tmp_path).forget(20)
    went(tmp_path, "id IN (10, 20)")
    if late:
        came(tmp_path, change(10, 25, "I", id=25, p="late"))
        with pytest.raises(UnsupportedError, match="changes arrived after later ones"):
            kept_of(tmp_path)
        return
    came(tmp_path, change(11, 1, "I", id=1, p="next"))
    for _ in range(2):
        assert versions(kept_of(tmp_path), "p") == [(1, "next"), (10, "a"), (20, "a"), (30, "a")]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where the rows of change tables were counted up to, by count."""
    made: list[str] = []
    count = ChangeFiles.count_until

    def counted(self: ChangeFiles, upto: PositionRange) -> int | None:
        made.append(upto.text)
        return count(self, upto)

    monkeypatch.setattr(ChangeFiles, "count_until", counted)
    return made


def test_rows_are_counted_once_a_call(tmp_path: Path, counts: list[str]) -> None:
    """What was read is not counted again."""
    came(tmp_path, *(change(10, n, o, id=1, p="a") for n, o in ((10, "I"), (20, "B"), (20, "U"))))
    seen = []
    for more in (
        (),
        [change(10, 30, "B", id=1), change(10, 30, "U", id=2, p="b")],
        [change(10, 25, "U", id=1, p="late")],
        [change(10, 40, "X", id=3)],  # it is set aside, and there
        (),
    ):
        came(tmp_path, *more)
        kept_of(tmp_path)
        followed = FollowProgress.of(str(tmp_path / "kept"))
        assert followed is not None
        seen.append((len(counts), followed.number, followed.many))
        counts.clear()
    assert seen == [(0, 20, 3), (1, 30, 5), (1, 30, 6), (2, 30, 6), (2, 30, 6)]
    came(tmp_path / "later", *(change(10, n, "I", id=n, p="a") for n in (10, 20, 30)))
    kept_of(tmp_path / "later", start=20, base=pa.table({"id": pa.array([10], pa.int32()), "p": ["a"]}))
    followed = FollowProgress.of(str(tmp_path / "later" / "kept"))
    assert followed is not None and (len(counts), followed.many) == (1, 3)


def test_a_late_change_behind_start_is_counted_once(tmp_path: Path, counts: list[str]) -> None:
    """The next calls read what is new alone, and see who comes late next."""
    came(tmp_path, *(change(10, n, "I", id=n, p="a") for n in (10, 20, 30)))
    base = pa.table({"id": pa.array([10], pa.int32()), "p": ["a"]})
    kept_of(tmp_path, start=20, base=base)
    want = [(10, "a"), (20, "a"), (30, "a")]
    for late, behind in ((25, True), (15, False), (26, True)):
        came(tmp_path, change(10, late, "I", id=late, p="late"))
        want = sorted([*want, (late, "late")] if behind else want)
        assert versions(kept_of(tmp_path), "p") == want
        followed = FollowProgress.of(str(tmp_path / "kept"))
        assert followed is not None and followed.many == lake.read(str(tmp_path / "ct")).num_rows
    counts.clear()
    number = kept_of(tmp_path).events().number
    assert kept_of(tmp_path).events().number == number and len(counts) == 2


def noted_alone(path: Path, *numbers: int) -> HistoryTable:
    """A history that a change number alone was noted of, as before 35 digits were."""
    kept = kept_of(path)
    shutil.rmtree(kept.path)
    made = HistoryTable.make(kept.path, kept_schema(), kept.rules, kept.sequence, {FOLLOWS: "true"})
    for number in numbers:
        made.apply(made_event(number), flow="changes", batch=number)
    return made


def test_a_history_that_noted_a_number_alone_reads_all_again(tmp_path: Path) -> None:
    came(tmp_path, change(10, 500, "I", id=1, p="b"))
    noted_alone(tmp_path, 500)
    came(tmp_path, change(11, 1, "U", id=1, p="c"))
    assert versions(kept_of(tmp_path), "p") == [(1, "b"), (1, "c")]
    assert kept_of(tmp_path).rejects().rows() == []


def test_a_history_that_noted_a_number_alone_and_has_forgotten_events_goes_on(tmp_path: Path) -> None:
    came(tmp_path, *(change(10, n, "U", id=1, p=p) for n, p in ((499, "a"), (500, "b"))))
    noted_alone(tmp_path, 499, 500).forget(500)
    before = [(1, "a"), (1, "b")]
    assert versions(kept_of(tmp_path), "p") == before
    came(tmp_path, change(11, 1, "U", id=1, p="c"))
    for _ in range(2):
        assert versions(kept_of(tmp_path), "p") == [*before, (1, "c")]
    came(tmp_path, change(10, 600, "U", id=1, p="late"))  # from here on rows are counted
    with pytest.raises(UnsupportedError, match="arrived after later ones"):
        kept_of(tmp_path)


def test_a_change_that_an_older_version_lost_is_no_secret_of_a_history_that_has_forgotten_events(
    tmp_path: Path,
) -> None:
    """It went on by the number, and numbers had begun anew in between."""
    came(tmp_path, *(change(10, n, "U", id=1, p=p) for n, p in ((499, "a"), (500, "b"))))
    noted_alone(tmp_path, 499, 500).forget(499)
    came(tmp_path, change(10, 499, "B", id=1), change(9, 7, "I", id=3, p="before what is kept"))
    assert versions(kept_of(tmp_path), "p") == [(1, "a"), (1, "b")]
    shutil.rmtree(tmp_path / "kept")
    noted_alone(tmp_path, 498, 500).forget(498)
    with pytest.raises(UnsupportedError, match="arrived after later ones") as error:
        kept_of(tmp_path)
    assert "keep another history in another folder" in (error.value.hint or "")


def kept_schema() -> pa.Schema:
    return schema_of([KEY, P])


def made_event(number: int) -> pa.Table:
    seq = change(10, number, "I")["header__change_seq"]
    data = pa.table({"id": [1], "p": ["b" if number == 500 else "a"]}, schema=kept_schema())
    return data.append_column("__sequence", pa.array([seq])).append_column("__operation", pa.array(["U"]))
