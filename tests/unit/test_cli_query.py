"""`tailrace query` and `tailrace sql`: thin over the library, streaming what they print."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tailrace
from tailrace.cli.main import app
from tailrace.errors import ConfigError, PositionError
from tailrace.model.change import Column

from .once import once
from .task_home import ITEM, TaskHome, seq

pytestmark = pytest.mark.unit


@once
def shop(folder: Path) -> TaskHome:
    made = TaskHome(folder)
    made.baseline([{"id": 1, "name": "a", "price": Decimal("0.10")}], after=10)
    made.store((11, "U", {"id": 1, "name": "b", "price": Decimal("0.10")}))
    made.store(
        (12, "I", {"id": 2, "name": "[c]", "price": None}), (13, "D", {"id": 1, "name": "b", "price": None})
    )
    return made


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    return shop(tmp_path)


def run(home: TaskHome, *words: str, typed: str | None = None) -> Any:
    ran = CliRunner().invoke(app, words, input=typed)
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran


def rows(home: TaskHome, *words: str, typed: str | None = None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(home, *words, "-o", "json", typed=typed).stdout.splitlines()]


def test_each_question(home: TaskHome) -> None:
    def asked(question: str, *words: str) -> list[dict[str, Any]]:
        return rows(home, "query", question, str(home.file), ITEM, *words)

    assert asked("as-of", "--at", "11") == [{"id": 1, "name": "b", "price": "0.10"}]
    assert asked("current") == [{"id": 2, "name": "[c]", "price": None}]
    assert [(r["id"], r["_change_type"]) for r in asked("diff", "--start", "11")] == [
        (2, "insert"),
        (1, "delete"),
    ]
    assert [r["_change_type"] for r in asked("net", "--start", "12")] == ["insert", "delete"]
    assert len(asked("net", "--no-compute-updates", "--deduplication-mode", "none", "--end", "11")) == 2
    assert [r["changed"] for r in asked("pairs", "--end", seq(11))] == [["name"]]
    assert [r["life"] for r in asked("chain", "--key", "id=1")] == [1, 1]
    assert [r["is_current"] for r in asked("history", "--track", "name", "--committed", "--start", "12")] == [
        True,
        False,
    ]
    assert [r["columns_present"] for r in asked("changes", "--start", "13")] == [None]
    assert [r["id"] for r in asked("net", "--where", "id = 2")] == [2]
    assert asked("net", "--columns", "id,_change_type", "--start", "13") == [
        {"id": 1, "_change_type": "delete", "_absent": None}
    ]
    assert [r["inserts"] for r in rows(home, "query", "transactions", str(home.file), "shop.*")] == [0, 1, 0]


def test_each_output(home: TaskHome) -> None:
    words = ("query", "pairs", str(home.file), ITEM, "--start", "12")
    found = list(csv.DictReader(io.StringIO(run(home, *words, "-o", "csv").stdout)))
    assert [r["after"] for r in found] == ["id=2 name=[c] price=NULL", ""]
    table = pq.read_table(io.BytesIO(run(home, *words, "-o", "parquet").stdout_bytes))
    assert table["_change_type"].to_pylist() == ["insert", "delete"]
    shown = run(home, *words, "--columns", "_change_type,after", "--limit", "1").stdout
    assert "name=[c]" in shown
    assert "delete" not in shown
    assert "the first 1 rows" in shown
    assert run(home, *words, "--limit", "0").stdout.startswith("the first 0 rows: --limit shows more")
    assert run(home, *words, "--where", "false", "--limit", "0").stdout.startswith("no ")


def test_an_unknown_value_is_told_from_null_in_each_output(tmp_path: Path) -> None:
    """Nothing has the row of before: it was never stored, and the target keeps no versions."""
    home = TaskHome(tmp_path, "target: 'postgresql://me@db/other'")
    home.store((11, "U", {"id": 1, "name": 'a "b"', "price": None}))
    net = ("query", "net", str(home.file), ITEM, "--columns", "id,name,price")
    assert run(home, *net, "-o", "csv").stdout.splitlines() == [
        '"id","name","price","_absent"',
        '1,?,?,"name, price"',
        '1,"a ""b""",,',
    ]
    assert rows(home, *net)[0] == {"id": 1, "name": None, "price": None, "_absent": ["name", "price"]}
    pairs = ("query", "pairs", str(home.file), ITEM, "--columns", "changed,before")
    shown = "id=1 name=? price=?"
    assert (
        run(home, *pairs, "-o", "csv").stdout.splitlines()[1] == f'"","{shown}","before.name, before.price"'
    )
    assert shown in run(home, *pairs).stdout


def test_csv_has_the_same_form_with_and_without_unknown_values(home: TaskHome) -> None:
    words = ("query", "history", str(home.file), ITEM, "-o", "csv")
    found = tailrace.open(home.file).table(ITEM).history()
    sink = io.BytesIO()
    pyarrow.csv.write_csv(found.table().drop_columns(["_absent"]), sink)
    given = csv.reader(io.StringIO(run(home, *words).stdout))
    wanted = csv.reader(io.StringIO(sink.getvalue().decode()))
    assert [row[:3] + row[4:] for row in given] == list(wanted)


def test_a_key_column_is_given_once(home: TaskHome) -> None:
    words = ("query", "chain", str(home.file), ITEM, "--key", "id=1", "--key", "id=2")
    ran = CliRunner().invoke(app, words)
    assert (ran.exit_code, "id is given twice" in ran.output) == (2, True)


def test_sql(home: TaskHome) -> None:
    file = str(home.file)
    both = "select t.id, count(*) as changes from shop.item t join shop.item__ct c using (id) group by all"
    assert rows(home, "sql", file, both) == [{"id": 1, "changes": 2}]
    typed = "select 1 as one;\nselect id\nfrom shop.item;\n"
    assert rows(home, "sql", file, typed=typed) == [{"one": 1}, {"id": 1}]
    with pytest.raises(ConfigError, match="cannot be run"):
        run(home, "sql", file, "select * from nope")
    with pytest.raises(ConfigError, match="returns no rows"):
        run(home, "sql", file, "create table x (n int)")


def test_numbers_that_json_has_not_got_are_texts(home: TaskHome) -> None:
    values = "'nan'::double as a, ['inf'::double, 1.5] as b, {'c': '-inf'::real} as d, 0.5::double as e"
    assert rows(home, "sql", str(home.file), f"select {values}") == [
        {"a": "NaN", "b": ["Infinity", 1.5], "d": {"c": "-Infinity"}, "e": 0.5}
    ]
    words = ("sql", str(home.file), "select 'inf'::double as a", "-o", "json")
    assert run(home, *words).stdout == '{"a": "Infinity"}\n'


INTERVAL = "interval 14 month + interval 3 day + interval '01:02:03.5'"
LATE = "timestamp '9999-12-31 12:00:00' + interval 1 day"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (INTERVAL, "1 year 2 months 3 days 01:02:03.5"),
        ("-(interval 1 month + interval 2 day + interval '00:00:00.5')", "-1 month -2 days -00:00:00.5"),
        ("interval 0 day", "00:00:00"),
        (LATE, "10000-01-01 12:00:00.000000"),
        (f"({LATE})::date", "10000-01-01"),
        (f"({LATE})::timestamptz", "10000-01-01 12:00:00.000000Z"),
    ],
)
def test_values_that_a_form_does_not_have_are_texts(home: TaskHome, value: str, said: str) -> None:
    """Intervals, and dates and times after the year 9999."""
    words = ("sql", str(home.file), f"select id, {value} as v from shop.item")
    assert rows(home, *words) == [{"id": 1, "v": said}]
    assert said in run(home, *words).stdout
    assert list(csv.DictReader(io.StringIO(run(home, *words, "-o", "csv").stdout))) == [
        {"id": "1", "v": said}
    ]


def test_intervals_are_texts_in_parquet_and_within_others(home: TaskHome) -> None:
    words = ("sql", str(home.file), f"select {INTERVAL} as v, [{{'i': {INTERVAL}}}] as w")
    said = "1 year 2 months 3 days 01:02:03.5"
    table = pq.read_table(io.BytesIO(run(home, *words, "-o", "parquet").stdout_bytes))
    assert table.to_pylist() == [{"v": said, "w": f"i={said}"}]
    assert rows(home, *words) == [{"v": said, "w": [{"i": said}]}]


def test_mistakes(home: TaskHome) -> None:
    with pytest.raises(PositionError, match="before the baseline"):
        run(home, "query", "as-of", str(home.file), ITEM, "--at", "3")
    with pytest.raises(ConfigError, match="no table of the task matches"):
        run(home, "query", "net", str(home.file), "shop.nope")


@pytest.fixture(scope="module")
def octets(tmp_path_factory: pytest.TempPathFactory) -> TaskHome:
    """A table whose key is bytes; its rows 0xFF01 and 0x. Nobody writes to it."""
    made = TaskHome(
        tmp_path_factory.mktemp("shop"),
        columns=[
            Column("k", 1, "bytea", "bytea", "binary", key=True),
            Column("v", 2, "text", "text", "string"),
        ],
    )
    made.store((1, "I", {"k": b"\xff\x01", "v": "a"}), (2, "I", {"k": b"", "v": "b"}))
    made.store((3, "U", {"k": b"\xff\x01", "v": "c"}))
    return made


@pytest.mark.parametrize("said", ["&#xFF01", "&#xff01", r"\xff01", r"\xFF01"])
def test_a_key_of_bytes_is_taken_as_the_key_log_and_postgresql_write_it(octets: TaskHome, said: str) -> None:
    words = ("query", "chain", str(octets.file), ITEM, "--key", f"k={said}")
    assert [r["change_seq"] for r in rows(octets, *words)] == [seq(1), seq(3)]


def test_a_key_of_bytes_may_be_empty_or_not_there_and_in_sql(octets: TaskHome) -> None:
    words = ("query", "chain", str(octets.file), ITEM, "--key")
    assert [r["change_seq"] for r in rows(octets, *words, r"k=\x")] == [seq(2)]
    assert rows(octets, *words, r"k=\xff02") == []
    for said in ("&#xFF01", r"\xff01"):
        asked = f"SELECT change_seq FROM chain('{ITEM}', {{'k': '{said}'}})"
        assert [r["change_seq"] for r in rows(octets, "sql", str(octets.file), asked)] == [seq(1), seq(3)]


@pytest.mark.parametrize("said", ["ff01", "0xff01", "/wE=", "&#xFF0", r"\xfg"])
def test_a_key_of_bytes_in_another_form_is_an_error_that_says_which_are_taken(
    octets: TaskHome, said: str
) -> None:
    with pytest.raises(ConfigError, match="not a valid value for the key column k") as error:
        run(octets, "query", "chain", str(octets.file), ITEM, "--key", f"k={said}")
    assert r"as in a key log (&#xFF01) or in PostgreSQL (\xff01)" in str(error.value)


@pytest.mark.parametrize("words", ["status", "query current", "consumer list"])
def test_a_task_is_named_by_its_file_or_its_folder(home: TaskHome, words: str) -> None:
    after = {"query current": [ITEM]}.get(words, [])
    said = [run(home, *words.split(), str(t), *after).stdout for t in (home.file, home.file.parent)]
    assert said[0].splitlines()[:3] == said[1].splitlines()[:3] != []
    (home.file.parent / "other.yml").write_text("")
    with pytest.raises(ConfigError, match="the folder has 2 task files"):
        run(home, *words.split(), str(home.file.parent), *after)


@pytest.mark.parametrize("words", [["sql"], ["status"]], ids=["while it writes", "at its end"])
def test_a_reader_that_has_gone_ends_a_command_with_0(home: TaskHome, words: list[str]) -> None:
    more = ["SELECT range FROM range(100000)", "-o", "csv"] if words == ["sql"] else []
    read, write = os.pipe()
    os.close(read)  # `| head -1`, at its soonest
    command = [sys.executable, "-m", "tailrace", *words, str(home.file), *more]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
