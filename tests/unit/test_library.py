"""`import tailrace`: tasks, change tables and their questions, in a process without a JVM."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from tailrace import Result
from tailrace.cli import formats
from tailrace.errors import BaselineNeededError, ConfigError, PositionError, UnsupportedError
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.types import schema_of
from tailrace.operate.table_commands import renew_stream
from tailrace.state import live, streams
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.state.streams import StreamRecord
from tailrace.store.trimming import Bound, trim

from .task_home import COLUMNS, ITEM, TaskHome, at, item, partly_applied, position, rows, seq, values

pytestmark = pytest.mark.unit


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    return partly_applied(tmp_path)


def test_as_of_any_place_that_is_kept(home: TaskHome) -> None:
    table = tailrace.open(home.file).table(ITEM)
    states = {
        10: [(1, "a"), (2, "a")],
        11: [(1, "b"), (2, "a")],
        12: [(1, "b"), (2, "a"), (3, "a")],
        13: [(1, "b"), (3, "a")],
        14: [(1, "b"), (4, "a")],
        15: [(1, "c"), (4, "a")],
        16: [(1, "c"), (4, "a"), (5, "a")],
    }
    for number, wanted in states.items():
        assert rows(table.as_of(number)) == wanted, number
    for number, place in ((11, seq(11)), (12, at(12)), (13, at(13).isoformat()), (15, position(15))):
        assert rows(table.as_of(place)) == states[number], place
    assert rows(table.current()) == states[16]


def test_the_difference_of_two_places_is_that_of_their_rows(home: TaskHome) -> None:
    home.store(
        (17, "U", item(5, "x")), (18, "U", item(5)), (19, "T", {}), (20, "I", item(4)), (21, "I", item(7))
    )
    table = tailrace.open(home.file).table(ITEM)
    states = {place: {values(r) for r in table.as_of(place).rows()} for place in (10, 13, 18, 20, None)}
    for start, end in ((10, 18), (10, None), (13, 18), (13, 20), (18, 18), (18, None)):
        found = table.diff(start, end).rows()
        gone = [values(r) for r in found if r["_change_type"] in ("delete", "update_preimage")]
        came = [values(r) for r in found if r["_change_type"] in ("insert", "update_postimage")]
        old, new = states[start], states[end]
        assert (sorted(gone), sorted(came)) == (sorted(old - new), sorted(new - old)), (start, end)
    with pytest.raises(ConfigError, match="pass the older position first"):
        table.diff(13, 12)
    with pytest.raises(PositionError, match="before the baseline"):
        table.diff(3)
    with pytest.raises(PositionError, match="22 is not stored yet; changes are stored up to"):
        table.diff(13, 22)


def test_a_truncate_takes_the_rows_of_before(home: TaskHome) -> None:
    home.store((17, "T", {}), (18, "I", item(1, "new")))
    table = tailrace.open(home.file).table(ITEM)
    assert rows(table.as_of(17)) == []
    assert rows(table.current()) == [(1, "new")]


def test_what_retention_took_is_an_error_that_names_what_is_kept(home: TaskHome) -> None:
    home.forget(12)
    table = tailrace.open(home.file).table(ITEM)
    for ask in (
        lambda: table.net(12), lambda: table.pairs(seq(11), seq(13)), lambda: table.as_of(12), lambda: table.history(end=3),
    ):  # fmt: skip
        with pytest.raises(PositionError, match="only those after number 12 are kept"):
            ask()
    assert len(table.net(13).table()) == 6
    assert rows(table.as_of(13)) == [(1, "b"), (3, "a")]


def test_what_retention_took_between_the_target_and_a_place_is_told_by_that_place(home: TaskHome) -> None:
    home.forget(15)
    table = tailrace.open(home.file).table(ITEM)
    for ask, what in ((lambda: table.as_of(seq(16)), f"as of {seq(16)}"), (table.current, "as of now")):
        said = rf"{what} need the changes from number 14 on, .* version 2 .*; only those after number 15 are kept"
        with pytest.raises(PositionError, match=said):
            ask()


def test_as_of_the_end_of_a_batch_needs_no_changes_but_its_version(home: TaskHome) -> None:
    home.store((17, "I", item(17, "q")), (18, "I", item(18, "r")))
    home.applied([item(1, "after 18")], 18)
    home.store((21, "I", item(21, "s")))
    home.applied([item(1, "after 21")], 21)
    home.forget(20)
    table = tailrace.open(home.file).table(ITEM)
    for place in (18, seq(18), position(18)):
        assert rows(table.as_of(place)) == [(1, "after 18")]
    for place in (17, 19):  # the records do not show whether there were changes up to these
        with pytest.raises(PositionError, match="only those after number 20 are kept"):
            table.as_of(place)


def test_what_retention_took_is_an_error_where_no_change_is_left(home: TaskHome) -> None:
    """Also for places that tell no number; behind what it took, they are answered."""
    home.applied([item(1, "c"), item(4), item(5)], 16)
    trim(home.task.changes_path(ITEM), "header__change_seq", Bound(16))
    table = tailrace.open(home.file).table(ITEM)
    assert table.changes().table().num_rows == 0
    told = "only those after number 16 are kept"
    for place in (at(12), at(16), position(13), seq(16), 16):
        with pytest.raises(PositionError, match=told):
            table.changes(place)
    for place in (at(12), at(16), position(12), 12):
        with pytest.raises(PositionError, match=told):
            table.as_of(place)
    for question in ("net", "transactions", "diff"):
        with pytest.raises(PositionError, match=told):
            getattr(table, question)(at(16), at(30))
    assert rows(table.as_of(at(17))) == [(1, "c"), (4, "a"), (5, "a")]
    assert table.net(at(17)).table().num_rows == table.diff(at(17)).table().num_rows == 0


def test_a_time_between_what_retention_took_and_the_first_change_left_is_answered(home: TaskHome) -> None:
    trim(home.task.changes_path(ITEM), "header__change_seq", Bound(13))
    home.store((25, "U", item(1, "d")))
    trim(home.task.changes_path(ITEM), "header__change_seq", Bound(16), partly=lambda _: True)
    home.applied([item(1, "c"), item(4), item(5)], 16)
    table = tailrace.open(home.file).table(ITEM)
    assert rows(table.as_of(at(17))) == [(1, "c"), (4, "a"), (5, "a")]
    assert table.changes(at(17)).table().num_rows == 1
    for place in (at(16), at(11)):
        with pytest.raises(PositionError, match="only those after number 16 are kept, from change_seq"):
            table.changes(place)


def test_a_kept_history_that_began_without_changes_needs_all_later_ones(tmp_path: Path) -> None:
    """Retention took some before the history had them: it is not continued without them."""
    made, path = TaskHome(tmp_path), str(tmp_path / "history")
    base = pa.Table.from_pylist([item(1)], schema_of(COLUMNS))
    made.store((11, "U", item(1, "b")))
    trim(made.task.changes_path(ITEM), "header__change_seq", Bound(11))
    table = tailrace.open(made.file).table(ITEM)
    for _ in range(2):
        assert [r["name"] for r in table.keep_history(path, base=base).current().rows()] == ["a"]
    made.store((12, "U", item(1, "c")))
    trim(made.task.changes_path(ITEM), "header__change_seq", Bound(12))
    made.store((13, "U", item(1, "d")))
    with pytest.raises(
        PositionError, match="changes at 12 are requested; only those after number 12 are kept"
    ):
        tailrace.open(made.file).table(ITEM).keep_history(path)


def test_targets_that_are_no_copies_are_refused(tmp_path: Path) -> None:
    for k, (said, why) in enumerate(
        {
            "apply: {mode: archive}": "an archive",
            "tables: {shop.item: {constants: {site: a}}}": "mapped",
            "target: 'postgresql://me@db/other'": "a database",
        }.items()
    ):
        (tmp_path / str(k)).mkdir()
        made = TaskHome(tmp_path / str(k), said)
        made.store((1, "I", item(1)))
        with pytest.raises(UnsupportedError, match=why):
            tailrace.open(made.file).table(ITEM).current()


def test_a_table_that_is_only_tracked_has_no_rows(tmp_path: Path) -> None:
    made = TaskHome(tmp_path, "policies: {shop.item: 1}")
    made.store((1, "I", item(1)))
    with pytest.raises(UnsupportedError, match="are not known as of a position: it is only tracked"):
        tailrace.open(made.file).table(ITEM).current()


def test_a_table_that_is_only_tracked_has_no_changes(tmp_path: Path) -> None:
    """The store writes none; an answer without rows would say that nothing happened."""
    made = TaskHome(tmp_path, "policies: {shop.item: 1}")
    asked = tailrace.open(made.file)
    for ask in ("net", "changes", "pairs", "history"):
        with pytest.raises(UnsupportedError, match="no change table: it is only tracked") as error:
            getattr(asked.table(ITEM), ask)()
        assert "`tracking`" in str(error.value)
    with pytest.raises(UnsupportedError, match="it is only tracked"):
        asked.transactions(tables=[ITEM])
    assert asked.transactions().rows() == []


def test_a_table_without_baseline_has_no_rows_to_begin_with(tmp_path: Path) -> None:
    made = TaskHome(tmp_path)
    made.store((1, "I", item(1)))
    with pytest.raises(BaselineNeededError, match="no baseline yet"):
        tailrace.open(made.file).table(ITEM).current()


def test_open_windows_are_exact_when_they_are_closed(tmp_path: Path) -> None:
    made = TaskHome(tmp_path)
    made.baseline([item(1)], after=10, window="open", closes=12)
    made.store((11, "U", item(1, "b")), (13, "U", item(1, "c")))
    table = tailrace.open(made.file).table(ITEM)
    with pytest.raises(UnsupportedError, match="exact after change number 12"):
        table.current()
    made.applied([item(1, "b")], 12)
    assert rows(tailrace.open(made.file).table(ITEM).current()) == [(1, "c")]


def test_columns_without_images_are_in_no_answer(tmp_path: Path) -> None:
    made = TaskHome(tmp_path, "policies: {shop.item.price: 1}")
    made.baseline([item(1)], after=10)
    made.store((11, "U", {"id": 1, "name": "b"}))
    table = tailrace.open(made.file).table(ITEM)
    assert table.columns == ["id", "name"]
    assert table.as_of(11).rows() == [{"id": 1, "name": "b"}]
    assert table.as_of(10).rows() == [{"id": 1, "name": "a"}]
    assert table.net().schema.names[:3] == ["id", "name", "_absent"]


def test_soft_deleted_rows_are_no_rows(tmp_path: Path) -> None:
    made = TaskHome(tmp_path, "apply: {mode: soft_delete, soft_delete: gone}")
    gone = Column("gone", 9, "timestamp", "timestamptz", "timestamp")
    made.columns = (*COLUMNS, gone)
    made.write([item(1), item(2) | {"gone": at(1)}], 10)
    made.columns = COLUMNS
    made_at = made.task.target_path(ITEM)
    taken = Baseline(
        ITEM, Relation(1, "shop", "item", "d", COLUMNS), position(11), 2, lake.version(made_at), at(10), 0, 1, 0, 10
    )  # fmt: skip
    write_baseline(made.task.control_path("baselines"), taken)
    assert rows(tailrace.open(made.file).table(ITEM).current()) == [(1, "a")]


def test_questions_of_a_range(home: TaskHome) -> None:
    table = tailrace.open(home.file).table(ITEM)
    found = table.net(14, 16).rows()
    assert [(r["id"], r["_change_type"]) for r in found] == [
        (3, "delete"), (4, "insert"), (1, "update_preimage"), (1, "update_postimage"), (5, "insert"),
    ]  # fmt: skip
    assert [r["_change_type"] for r in table.pairs(14, 16).rows()] == ["update", "update", "insert"]
    assert [r["change_seq"] for r in table.chain({"id": "3"}).rows()] == [seq(12), seq(14)]
    assert len(table.history(columns=["name"]).table()) == 7
    assert table.rebuild().table().num_rows == 7
    assert [r["__$operation"] for r in table.net_changes(13, 13).rows()] == [1]
    assert table.changes(13, columns=["name"], columns_changed=True).schema.names[-2:] == ["id", "name"]
    assert [r["inserts"] for r in tailrace.open(home.file).transactions(16).rows()] == [1]
    assert table.net(at(99)).table().num_rows == 0


def test_results_come_as_what_the_user_works_with(home: TaskHome) -> None:
    found = tailrace.open(home.file).table(ITEM).net(14)
    assert isinstance(found.arrow(), pa.RecordBatchReader)
    assert found.arrow().read_all() == found.table()
    assert found.pandas().shape == found.polars().shape == (5, 7)
    assert found.duckdb().shape == (5, 7)
    assert [r["id"] for r in found.where("id > 3 and _change_type = 'insert'").rows()] == [4, 5]
    assert found.select(["id"]).schema.names == ["id"]
    with pytest.raises(ConfigError, match="no column nope"):
        found.select(["nope"])
    with pytest.raises(ConfigError, match="the condition is not valid"):
        found.where("nope > 3")


def test_results_and_tables_are_shown_in_one_line(home: TaskHome) -> None:
    table = tailrace.open(home.file).table(ITEM)
    assert repr(table) == "TaskTable('shop.item', key=['id'], columns=[id, name, price])"
    assert repr(table.as_of(14)) == "Result(id: int32, name: string, price: decimal128(8, 2))"
    wide = Result.of(pa.table({f"c{k}": [1] for k in range(100)}))
    assert repr(wide).endswith("c10: int64, and 89 more)")


def test_results_have_a_length_rows_and_html(home: TaskHome) -> None:
    found = Result.of(pa.table({"id": [1, 2], "name": ["<nut>", None]}))
    assert len(found) == 2
    assert [row["name"] for row in found] == ["<nut>", None]
    assert found._repr_html_() == (
        "<table><thead><tr><th>id</th><th>name</th></tr></thead><tbody>"
        "<tr><td>1</td><td>&lt;nut&gt;</td></tr><tr><td>2</td><td></td></tr></tbody></table>"
    )
    many = Result.of(pa.table({"id": range(30)}))._repr_html_()
    assert many.count("<td>") == 20
    assert many.endswith("</table><p>...</p>")
    assert len(tailrace.open(home.file).table(ITEM).net(14)) == 5


def test_a_table_that_was_opened_earlier_knows_what_was_applied_since(home: TaskHome) -> None:
    table = tailrace.open(home.file).table(ITEM)
    home.store((17, "U", item(1, "later")), (18, "I", item(9)))
    home.applied([item(1, "later"), item(4), item(5), item(9)], 18)
    assert rows(table.as_of(16)) == [(1, "c"), (4, "a"), (5, "a")]
    assert rows(table.current()) == [(1, "later"), (4, "a"), (5, "a"), (9, "a")]
    assert len(table.diff(16).rows()) == 3


def test_a_task_is_opened_by_its_file_or_its_folder(home: TaskHome) -> None:
    task = tailrace.open(home.file.parent)
    assert (task.name, task.tables) == ("shop", [ITEM])
    assert [t.table for t in task.status().tables] == [ITEM]
    with pytest.raises(ConfigError, match="no table of the task matches"):
        task.table("shop.nope")
    with pytest.raises(ConfigError, match=r"'shop\.\*' is a pattern") as error:
        task.table("shop.*")
    assert error.value.hint == "name one table: shop.item"
    with pytest.raises(ConfigError, match="there is no key log"):
        _ = task.keylog
    home.file.write_text(home.file.read_text() + "keylog: {mode: all}\n")
    assert tailrace.open(home.file).keylog.table().num_rows == 0  # nothing is applied yet
    assert "keylog_sort" in tailrace.open(home.file).keylog.schema.names
    (home.file.parent / "other.yaml").write_text("")
    with pytest.raises(ConfigError, match="2 task files"):
        tailrace.open(home.file.parent)


def test_orders(home: TaskHome) -> None:
    task = tailrace.open(home.file)
    assert task.pause("shop.*", why="a test").tables == [ITEM]
    assert [t.state for t in task.status().tables] == ["paused"]
    assert task.resume(ITEM).tables == [ITEM]
    assert task.resync(ITEM, dry_run=True).tables == [ITEM]
    with pytest.raises(ConfigError, match="no table is named"):
        task.remove()


def test_an_archive_that_changes_alone_have_filled_is_not_replaced_unasked(home: TaskHome) -> None:
    """A task without baselines."""
    shutil.rmtree(home.task.control_path("baselines"))
    home.file.write_text(f"{home.file.read_text()}\napply: {{mode: archive}}\nbaseline: {{enabled: false}}\n")
    task = tailrace.open(home.file)
    for call in (lambda: task.resync(ITEM, dry_run=True), lambda: renew_stream(task.task, dry_run=True)):
        with pytest.raises(ConfigError, match=f"{ITEM}: a new baseline replaces all changes"):
            call()
    shutil.rmtree(task.task.target_path(ITEM))
    assert task.resync(ITEM, dry_run=True).tables == [ITEM]


def test_an_archive_loses_what_it_has_kept_only_on_request(home: TaskHome) -> None:
    text = home.file.read_text()
    home.file.write_text(f"{text}\ngroups: {{g: {{tables: ['shop.*'], automatic_baseline: true}}}}\n")
    task = tailrace.open(home.file)
    assert task.task.automatic_baseline(ITEM)
    home.file.write_text(f"{home.file.read_text()}\napply: {{mode: archive}}\n")
    task = tailrace.open(home.file)
    assert not task.task.automatic_baseline(ITEM)
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=f"{ITEM}: a new baseline replaces all changes") as refused:
            task.resync(ITEM, dry_run=dry_run)
        assert "--replace-archives" in str(refused.value)
        with pytest.raises(ConfigError, match="replaces all changes"):
            renew_stream(task.task, dry_run=dry_run)
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match="has not read anything yet"):
            renew_stream(task.task, dry_run=dry_run, replace_archives=True)
    streams.write(task.task, StreamRecord(stream=1, state=streams.MADE))
    with live.lock(task.task.run_path, "capture"), pytest.raises(ConfigError, match="already running"):
        renew_stream(task.task, dry_run=True, replace_archives=True)
    assert renew_stream(task.task, dry_run=True, replace_archives=True).tables == [ITEM]
    assert task.resync(ITEM, replace_archives=True).tables == [ITEM]


def test_as_of_from_a_base_and_changes_alone(home: TaskHome) -> None:
    found = tailrace.read(home.task.changes_path(ITEM), key=["id"])
    base = pa.Table.from_pylist([item(1), item(2)], found.schema)
    assert rows(found.as_of(13, base=base)) == [(1, "b"), (3, "a")]
    assert rows(found.as_of(None, base=base)) == [(1, "c"), (4, "a"), (5, "a")]
    assert rows(found.as_of(11, base=found.schema.empty_table())) == [(1, "b")]
    assert rows(tailrace.open(home.file).table(ITEM).as_of(12, base=base[:1])) == [(1, "b"), (3, "a")]
    with pytest.raises(BaselineNeededError, match="the rows before the oldest change are unknown"):
        found.as_of(13)
    with pytest.raises(ConfigError, match="base has no column price"):
        found.as_of(13, base=base.drop_columns(["price"]))


def test_any_change_table_may_be_read(home: TaskHome) -> None:
    found = tailrace.read(home.task.changes_path(ITEM), key=["id"])
    assert found.name == ITEM
    assert len(found.net().table()) == 5
    with pytest.raises(ConfigError, match="no change table"):
        tailrace.read("/nowhere")
    with pytest.raises(ConfigError, match="no column nope"):
        tailrace.read(home.task.changes_path(ITEM), key=["nope"])
    with pytest.raises(ConfigError, match="header__change_seq cannot be the key"):
        tailrace.read(home.task.changes_path(ITEM), key=["header__change_seq"])
    with pytest.raises(ConfigError, match="no column nope"):
        found.net(columns=["nope"])
    with pytest.raises(ConfigError, match="is not a position"):
        found.net("yesterday")


def test_what_a_process_that_imports_it_loads_and_has() -> None:
    """Nothing heavy before it is used, an allocator that keeps memory, `apply` as a function and a package."""
    words = """
import sys, tailrace
def loaded(*names): return {n for n in names if n in sys.modules}
print(loaded('pyspark', 'pyarrow', 'deltalake', 'pandas', 'duckdb'))
tailrace.open; tailrace.read
print(loaded('pyspark', 'duckdb', 'polars'))
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
import tailrace.errors
for _ in (1, 2):
    try: tailrace.apply('/nonexistent', 'lake', session=object())
    except tailrace.TailraceError as error: print(error.what)
import tailrace.targets.plans as plan
print(callable(tailrace.apply), tailrace.targets.plans is plan)
import inspect
print(list(inspect.signature(tailrace.apply).parameters)[:3])
"""
    found = process(words)
    assert found == [
        "set()",
        "set()",
        "jemalloc",
        *["there is no /nonexistent"] * 2,
        "True True",
        "['changes', 'target', 'format']",
    ]
    told = "import tailrace, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    assert process(told, ARROW_DEFAULT_MEMORY_POOL="system") == ["system"]


def process(words: str, **given: str) -> list[str]:
    """What a program prints, which says nothing else."""
    env = {k: v for k, v in os.environ.items() if k != "ARROW_DEFAULT_MEMORY_POOL"} | given
    done = subprocess.run([sys.executable, "-c", words], env=env, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_all_that_it_offers_is_there() -> None:
    assert set(tailrace.__all__) <= set(dir(tailrace))
    for name in tailrace.__all__:
        assert getattr(tailrace, name) is not None
    with pytest.raises(AttributeError):
        _ = tailrace.nope  # type: ignore[attr-defined]


def test_pipelines_is_a_module_of_the_package() -> None:
    words = """
import tailrace.pipelines
from tailrace import pipelines
print(pipelines is tailrace.pipelines, [n for n in dir(pipelines) if not n.startswith('create')])
"""
    assert process(words) == ["True ['CdcPipeline', 'clear', 'run', 'temporary_view', 'view']"]


def test_apply_takes_what_the_command_takes() -> None:
    command, function = (set(signature(one).parameters) for one in (formats.apply, tailrace.apply))
    assert function - {"options", "session"} == command - {"option", "as_json"}
    for wrong, said in (({"mode": "odd"}, "odd"), ({"on_bad": "odd"}, "odd"), ({"on_late": "odd"}, "odd")):
        with pytest.raises(ConfigError, match=said):
            tailrace.apply(changes=".", target="lake", **wrong)  # type: ignore[arg-type]
