"""Questions as table functions in SQL, and what a prompt completes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import ConfigError
from tailrace.library.task_sql import completions
from tailrace.model.change import Column
from tailrace.query.table_functions import FUNCTIONS, find_calls, replace_calls

from .task_home import ITEM, TaskHome

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tailrace.OpenTask:
    """Nobody writes to it."""
    home = TaskHome(tmp_path_factory.mktemp("shop"))
    one = {"id": 1, "name": "nut", "price": Decimal("1.00")}
    home.baseline([one], after=10)
    home.store((11, "U", one | {"name": "hex nut"}), (12, "I", one | {"id": 2}), (13, "D", {"id": 2}))
    return tailrace.open(home.file)


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("as_of('shop.item', 12)", [(1, "hex nut"), (2, "nut")]),
        ("as_of('shop.item', at => 12)", [(1, "hex nut"), (2, "nut")]),
        ("CURRENT ('shop.item')", [(1, "hex nut")]),
        (
            "net('shop.item', \"end\" := 12, computeUpdates => false)",
            [(1, "hex nut"), (1, "nut"), (2, "nut")],
        ),
        ("net('shop.item', deduplicationmode => 'none', start => 12)", [(2, "nut"), (2, None)]),
        ("diff('shop.item', 11, null)", []),
        ("(SELECT after.* FROM chain('shop.item', {'id': 1}))", [(1, "hex nut")]),
    ],
)
def test_a_question_stands_where_a_table_stands(
    task: tailrace.OpenTask, question: str, found: list[tuple[int, str]]
) -> None:
    said = f"SELECT id, name FROM {question} ORDER BY id, name"
    asked = task.sql(said)
    for _ in range(2):  # each reading asks anew
        assert [(r["id"], r["name"]) for r in asked.rows()] == found


def test_questions_are_joined_with_each_other_and_with_tables(task: tailrace.OpenTask) -> None:
    said = (
        "SELECT a.name AS before, b.name AS after FROM as_of('shop.item', 10) a -- FROM net('x')\n"
        "JOIN current('shop.item') b USING (id) JOIN shop.item t USING (id) WHERE a.name <> 'FROM net(1)'"
    )
    assert task.sql(said).rows() == [{"before": "nut", "after": "hex nut"}]
    assert task.sql("SELECT count(*) AS n FROM transactions('shop.*')").rows() == [{"n": 3}]
    assert task.sql("SELECT count(*) AS n FROM transactions(start => 12)").rows() == [{"n": 2}]
    assert task.sql("FROM net('shop.item', columns => 'id')").schema.names[0] == "id"


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        (
            "FROM (PIVOT (FROM net('shop.item')) ON _change_type USING count(*) GROUP BY id)",
            [{"id": 1, "update_postimage": 1, "update_preimage": 1}],
        ),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT r.n + 1 FROM r JOIN as_of('shop.item', 12) o "
            "ON o.id = 1 WHERE r.n < 3) FROM r ORDER BY n",
            [{"n": 1}, {"n": 2}, {"n": 3}],
        ),
    ],
    ids=["pivot", "recursive"],
)
def test_an_answer_is_read_as_often_as_a_statement_scans_it(
    task: tailrace.OpenTask, statement: str, found: list[dict[str, int]]
) -> None:
    asked = task.sql(statement)
    for _ in range(2):
        assert asked.rows() == found


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SELECT * FROM net()", "its first argument is the table"),
        (
            "SELECT * FROM net('shop.item', since => 3)",
            r"unexpected keyword argument 'since'; its arguments are start, end",
        ),
        ("SELECT * FROM net('shop.item', start)", "'start' is not a literal"),
        ("SELECT * FROM net('shop.item', start => 3, 4)", "a positional argument follows a named one"),
        ("SELECT * FROM net('shop.item', start => 2, start => 3)", "start is given twice"),
        ("SELECT * FROM chain('shop.item', {'id': 2, 'id': 3})", "id is given twice"),
        ("SELECT * FROM net('shop.item'", "the closing bracket is missing"),
        ("SELECT * FROM net('shop.item' 3)", "',' is missing before '3'"),
        ("SELECT * FROM net('shop.itme')", "did you mean shop.item"),
        (
            "SELECT * FROM net('shop.item', base => 'x')",
            "base can be given only in Python; its arguments are start, end",
        ),
        ("SELECT * FROM chain('shop.item', 7)", "key is 7"),
        ("SELECT * FROM net('shop.item', computeUpdates => 'no')", "computeUpdates is 'no'"),
        ("SELECT * FROM transactions(tables => ['nope.*'])", r"no table of the task matches 'nope\.\*'"),
        ("SELECT * FROM transactions('shop.*', tables => 'shop.*')", "the tables are given twice"),
    ],
)
def test_a_question_that_cannot_be_asked_says_why(task: tailrace.OpenTask, statement: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        task.sql(statement)


@pytest.mark.parametrize(
    "said", ["SHOW TABLES", "show all tables;", "DESCRIBE -- what?", "PRAGMA show_tables"]
)
def test_the_tables_are_shown_by_the_names_that_sql_knows(task: tailrace.OpenTask, said: str) -> None:
    assert task.sql(said).rows() == [
        {"name": "shop.item", "is": "the target shop.item"},
        {"name": "shop.item__ct", "is": "the change table of shop.item"},
    ]
    assert [r["column_name"] for r in task.sql("DESCRIBE shop.item").rows()] == ["id", "name", "price"]


def test_the_questions_are_shown_with_what_they_take(task: tailrace.OpenTask) -> None:
    found = {r["question"]: (r["takes"], r["gives"]) for r in task.sql("SHOW FUNCTIONS").rows()}
    assert found.keys() == set(FUNCTIONS)
    assert found["as_of"] == ("table, at", "the rows at a position")
    assert found["chain"][0] == "table, key, start, end, columns, names"
    assert found["transactions"][0] == "tables, start, end"


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("FROM cut(5)", "use as_of for each table, at one position"),
        ("FROM nett('shop.item')", "did you mean net"),
        ("FROM report('shop.item')", "the functions are as_of, current, diff"),
        ("FROM shop.net('shop.item')", r"without a schema: FROM net\('schema.table'\)"),
        ("SELECT net('shop.item')", r"use it as a table"),
        ("FROM itm", r"did you mean shop.item\? SHOW TABLES"),
        ("FROM ITEM", "did you mean shop.item or shop.item__ct"),
        ("FROM nothing", "SHOW TABLES lists the task's tables"),
    ],
)
def test_a_name_that_nothing_has_is_answered_with_those_of_the_task(
    task: tailrace.OpenTask, statement: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        task.sql(statement)
    assert "json_execute" not in str(caught.value) and "pg_" not in str(caught.value)


def test_literals() -> None:
    (call,) = find_calls("FROM net('it''s', -1, 2.5, TRUE, null, ['a', 'b'], {'k': -2}, x := [])")
    assert call.given == ("it's", -1, Decimal("2.5"), True, None, ["a", "b"], {"k": -2})
    assert call.named == {"x": []}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT net('a') FROM t",
        "SELECT 'FROM net(1)'",
        'SELECT "FROM" FROM "net" (',
        "/* FROM net('a') */ SELECT 1",
    ],
)
def test_what_only_looks_like_a_question_stays(statement: str) -> None:
    assert replace_calls(statement, lambda call: "x") == statement


def test_what_a_prompt_completes(task: tailrace.OpenTask) -> None:
    found = completions(task)
    assert {ITEM, f"{ITEM}__ct", "name", "as_of(", "net("} <= set(found)


@pytest.mark.parametrize(
    ("column", "literal"),
    [
        (Column("id", 1, "numeric(20,2)", "numeric", "decimal(20,2)", key=True), "12345678901234567.89"),
        (Column("id", 1, "numeric(20,2)", "numeric", "decimal(20,2)", key=True), "-0.5"),
        (Column("id", 1, "double precision", "float8", "double", key=True), "0.1"),
        (Column("id", 1, "real", "float4", "float", key=True), "0.1"),
        (Column("id", 1, "integer", "int4", "int", key=True), "7.0"),
    ],
    ids=lambda given: given if isinstance(given, str) else given.source_type,
)
def test_a_decimal_literal_is_the_number_that_it_says(tmp_path: Path, column: Column, literal: str) -> None:
    home = TaskHome(tmp_path, columns=[column])
    as_python = Decimal(literal) if "decimal" in column.type else float(literal)
    home.store((11, "I", {"id": int(as_python) if column.type == "int" else as_python}))
    found = tailrace.open(home.file).sql(f"FROM chain('shop.item', {{'id': {literal}}})")
    assert len(found.rows()) == 1
