"""Columns of a table that are named like those that answers add."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from tailrace.errors import ConfigError
from tailrace.library.task_table import TaskTable
from tailrace.model.change import Column
from tailrace.query.history.table import HistoryTable

from .once import once
from .task_home import COLUMNS, ITEM, TaskHome, item

pytestmark = pytest.mark.unit

Question = Callable[[TaskTable, "list[str] | None"], tailrace.Result]


@once
def home_with(folder: Path, *names: str, key: bool = True) -> TaskHome:
    """A task whose table has text columns of these names, with `mine` in them, and `mine too` after an
    update."""
    id_ = Column("id", 1, "integer", "int4", "int", key=key)
    more = [Column(n, 4 + k, "text", "text", "string") for k, n in enumerate(names)]
    made = TaskHome(folder, columns=[id_, *COLUMNS[1:], *more])
    old, new = ({**item(1), **dict.fromkeys(names, v)} for v in ("mine", "mine too"))
    made.baseline([old], after=10)
    made.store((11, "I", {**old, "id": 2}), (12, "B", old), (12, "U", new))
    return made


ASKED: dict[str, tuple[list[str], Question]] = {
    "net": (
        ["_change_type", "_commit_version", "_commit_timestamp", "_absent"],
        lambda t, columns: t.net(columns=columns),
    ),
    "net of all changes": (
        ["_change_type"],
        lambda t, columns: t.net(deduplicationMode="none", columns=columns),
    ),
    "net_changes": (
        ["__$start_lsn", "__$operation", "__$update_mask", "_absent"],
        lambda t, columns: t.net_changes(style="all with mask", columns=columns),
    ),
    "history": (
        ["valid_from", "valid_to", "is_current", "_absent", "__START_AT", "__END_AT"],
        lambda t, columns: t.history(columns=columns),
    ),
    "changes": (["columns_changed"], lambda t, columns: t.changes(columns=columns, columns_changed=True)),
}


ADDED = sorted({n for names, _ in ASKED.values() for n in names})
FIRST = sorted({names[0].upper() for names, _ in ASKED.values()})


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[TaskTable]:
    """Tables that have names that questions add, in lower and in upper case."""
    folder = tmp_path_factory.mktemp
    return [tailrace.open(home_with(folder("shop"), *n).file).table(ITEM) for n in (ADDED, FIRST)]


@pytest.mark.parametrize("question", ASKED)
def test_names_that_the_answer_needs_are_refused_unless_they_are_left_out(
    tables: list[TaskTable], question: str
) -> None:
    names, ask = ASKED[question]
    for table, taken in zip(tables, (names, [names[0].upper()]), strict=True):
        with pytest.raises(ConfigError, match="names that the table has already") as refused:
            ask(table, None)
        assert set(refused.value.what.partition("already: ")[2].split(", ")) >= set(taken)
        assert question.partition(" ")[0] in refused.value.what
        assert refused.value.where == ITEM
        assert "columns=" in str(refused.value.hint)
        found = ask(table, ["id", "name"]).table()
        assert "mine" not in str(found.to_pylist())
        assert len({n.casefold() for n in found.column_names}) == len(found.column_names)


@pytest.mark.parametrize("mode", ["none", "netChanges"])
def test_so_it_is_of_tables_without_a_key_and_in_sql(tmp_path: Path, mode: str) -> None:
    task = tailrace.open(home_with(tmp_path, "_commit_version", key=False).file)
    with pytest.raises(ConfigError, match="names that the table has already: _commit_version"):
        task.table(ITEM).net(deduplicationMode=mode)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="names that the table has already: _commit_version"):
        task.sql(f"SELECT * FROM net('{ITEM}', deduplicationMode => '{mode}')")


def test_names_that_other_questions_add_are_columns_like_others(tmp_path: Path) -> None:
    names = ["_change_type", "_commit_version", "valid_from", "columns_changed", "__$operation"]
    table = tailrace.open(home_with(tmp_path, *names).file).table(ITEM)
    mine = [n for n in names if n not in ("__$operation", "_absent")]
    for row in table.net_changes(style="all with mask", columns=["id", *mine]).rows():
        assert [row[n] for n in mine] == ["mine" if row["id"] == 2 else "mine too"] * len(mine)
        assert row["__$operation"] == (2 if row["id"] == 2 else 4)
    for row in table.pairs(12).rows():
        assert [row["before"][n] for n in names] == ["mine"] * len(names)
        assert [row["after"][n] for n in names] == ["mine too"] * len(names)
    history = table.history(columns=["id", "_change_type", "__$operation"]).rows()
    assert {r["_change_type"] for r in history if not r["is_current"]} == {"mine"}
    assert {r["__$operation"] for r in history if r["id"] == 1 and r["is_current"]} == {"mine too"}


def test_rows_as_of_a_place_have_no_columns_but_the_tables(tmp_path: Path) -> None:
    names = ["_absent", "_change_type", "valid_from", "why"]
    table = tailrace.open(home_with(tmp_path, *names).file).table(ITEM)
    found = {r["id"]: [r[n] for n in names] for r in table.current().rows()}
    assert found == {1: ["mine too"] * 4, 2: ["mine"] * 4}
    with pytest.raises(ConfigError, match=r"`diff` adds columns .*: _absent, _change_type"):
        table.diff(10)


@pytest.mark.parametrize(
    "names", [["valid_from", "valid_to", "is_current", "system_to", "why"], ["VALID_FROM"]]
)
def test_a_kept_history_refuses_the_names_of_its_own_columns(tmp_path: Path, names: list[str]) -> None:
    table = tailrace.open(home_with(tmp_path, *names).file).table(ITEM)
    with pytest.raises(ConfigError, match=f"`keep_history` adds .*: {', '.join(names)}\\n") as refused:
        table.keep_history(str(tmp_path / "kept"))
    assert refused.value.where == ITEM


def test_a_kept_history_keeps_columns_that_it_does_not_add(tmp_path: Path) -> None:
    names = ["_absent", "_change_type", "system_from"]
    table = tailrace.open(home_with(tmp_path, *names).file).table(ITEM)
    kept = table.keep_history(str(tmp_path / "kept"), base=table.as_of(10).table())
    found = sorted(kept.versions().rows(), key=lambda r: (r["id"], r["__START_AT"]))
    assert [[r[n] for n in names] for r in found] == [[v] * 3 for v in ("mine", "mine too", "mine")]
    with pytest.raises(ConfigError, match=r"`keep_history` adds .*: system_from"):
        table.keep_history(str(tmp_path / "both"), bitemporal=True)


def test_a_history_without_times_has_columns_of_their_names(tmp_path: Path) -> None:
    data = pa.schema([("id", pa.int64()), ("valid_from", pa.string()), ("is_current", pa.string())])
    rules = tailrace.HistoryRules(key=("id",), columns=tuple(data.names))
    history = HistoryTable.make(str(tmp_path / "h"), data, rules, pa.int64())
    for k, text in enumerate(("a", "b")):
        history.apply(
            pa.table(
                {
                    "__sequence": [k],
                    "__operation": ["U"],
                    "id": [1],
                    "valid_from": [text],
                    "is_current": [text],
                }
            )
        )
    found = sorted((r["__START_AT"], r["valid_from"], r["is_current"]) for r in history.versions().rows())
    assert found == [(0, "a", "a"), (1, "b", "b")]
