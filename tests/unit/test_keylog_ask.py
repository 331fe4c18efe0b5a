"""What an operator asks a key log, on literal rows."""

from __future__ import annotations

import datetime as dt
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.errors import ConfigError
from tailrace.lake import delta as lake
from tailrace.operate import keylog_queries, keylog_rows
from tailrace.operate.keylog_queries import STEP
from tailrace.operate.keylog_runs import Group, Runs, Subscription
from tailrace.wire.keylog_values import IGNORED

from .keylog_rows import NOON, SCHEMA, missed, row, write

pytestmark = pytest.mark.unit


def sorts(found: list[dict[str, Any]]) -> list[int]:
    return [r["keylog_sort"] for r in found]


def test_flagged_is_what_did_not_end_as_it_should(tmp_path: Path) -> None:
    log = write(
        tmp_path,
        [row(1), missed(2), row(3, oper="T"), row(4, oper="D", result_row_count=0)],
        [row(5, action_taken=IGNORED, result_row_count=0), row(6, oper="U", result_row_count=2), row(7)],
    )
    assert sorts(keylog_rows.newest(log, 10, keylog_queries.flagged(None))) == [2, 4, 6]


def test_the_newest_rows_come_from_the_newest_files(tmp_path: Path) -> None:
    log = write(
        tmp_path, [row(n) for n in (1, 2, 3)], [row(n) for n in (4, 6, 8, 10)], [row(n) for n in (5, 7, 9)]
    )
    for limit, upto, expected in (
        (3, None, [8, 9, 10]), (100, None, list(range(1, 11))), (4, 7, [4, 5, 6, 7]), (0, None, []), (2, 0, []),
    ):  # fmt: skip
        assert sorts(keylog_rows.newest(log, limit, upto=upto)) == expected, (limit, upto)


def test_one_keys_story(tmp_path: Path) -> None:
    log = write(
        tmp_path,
        [row(1, key='id="7"'), row(2, key='id="77"'), row(3, oper="U", key='id="7"')],
        [
            row(4, oper="U", key='id="8"', before_key='id="7"', after_key='id="8"'),
            row(5, oper="D", key='id="7"'),
            row(6, key='grid="7"'),
            row(7, key='lane="1" id="7"'),
        ],
    )
    assert sorts(keylog_rows.newest(log, 10, keylog_queries.where(key=["id=7"]))) == [1, 3, 4, 5, 7]
    assert sorts(keylog_rows.newest(log, 10, keylog_queries.where(key=["id=7", "lane=1"]))) == [7]


def test_a_key_of_several_columns_is_in_one_text(tmp_path: Path) -> None:
    """A row that moves from (1, 1) to (2, 2), and one of (1, 2) to (1, 3): (2, 1) was never there."""
    old, new, other = 'a="1" b="1"', 'a="2" b="2"', 'a="1" b="2"'
    log = write(
        tmp_path,
        [row(1, key=old), row(2, oper="U", key=new, before_key=old, after_key=new)],
        [row(3, key=other), row(4, oper="U", key='a="1" b="3"', before_key=other), row(5, oper="D", key=new)],
    )
    cases = {"1 1": [1, 2], "2 2": [2, 5], "1 2": [3, 4], "2 1": [], "1 3": [4], "2 3": []}
    found = {}
    for case in cases:
        a, b = case.split()
        found[case] = sorts(keylog_rows.newest(log, 9, keylog_queries.where(key=[f"b={b}", f"a={a}"])))
    assert found == cases
    assert tailrace(log, "story", "--key", "a=2", "--key", "b=1") == []


def test_keys_are_found_as_they_are_written(tmp_path: Path) -> None:
    log = write(
        tmp_path, [row(1, key='word="a&quot;b&#x000Ac"'), row(2, key='word="(x"'), row(3, key='word="(x)"')]
    )
    assert sorts(keylog_rows.newest(log, 9, keylog_queries.where(key=['word=a"b\nc']))) == [1]
    assert sorts(keylog_rows.newest(log, 9, keylog_queries.where(key=["word=(x"]))) == [2]


def test_keys_of_octets_are_found_as_a_key_log_or_postgresql_writes_them(tmp_path: Path) -> None:
    log = write(
        tmp_path,
        [row(1, key='k="&#xFF01"'), row(2, key='k="&#xFF0102"'), row(3, oper="U", key='k="&#xFF01" id="7"')],
    )
    for said in ("&#xFF01", "&#xff01", r"\xff01", r"\xFF01"):
        assert sorts(keylog_rows.newest(log, 9, keylog_queries.where(key=[f"k={said}"]))) == [1, 3], said


def test_octets_that_are_none_and_texts_that_look_like_them(tmp_path: Path) -> None:
    log = write(tmp_path, [row(1, key='k="&#x"'), row(2, key='k="\\xff01"'), row(3, key='k="&amp;#xFF01"')])
    assert sorts(keylog_rows.newest(log, 9, keylog_queries.where(key=["k=\\x"]))) == [1]
    assert sorts(keylog_rows.newest(log, 9, keylog_queries.where(key=["k=\\xff01"]))) == [2]
    assert sorts(keylog_rows.newest(log, 9, keylog_queries.where(key=["k=&#xFF01"]))) == [3]


def test_octets_in_another_form_are_an_error_that_says_which_are_taken(tmp_path: Path) -> None:
    log = write(tmp_path, [row(1, key='k="&#xFF01"'), row(2, key='k=&xsi:nil="true"')])
    for said in ("ff01", "0xff01", "/wE=", "&#xFF0", r"\xfg"):
        done = CliRunner().invoke(app, command(log, "story", "--key", f"k={said}"))
        assert isinstance(done.exception, ConfigError)
        assert f"{said!r} is no value of the column k (binary)" in str(done.exception)
        assert r"as in a key log (&#xFF01) or in PostgreSQL (\xff01)" in str(done.exception)
    assert tailrace(log, "story", "--key", r"k=\xff02") == []


def test_tables_and_times_narrow(tmp_path: Path) -> None:
    log = write(tmp_path, [row(1), row(2, table="s.tt"), row(3, table="x.t"), row(9)])
    assert sorts(keylog_rows.newest(log, 9, keylog_queries.where(["s.t"]))) == [1, 9]
    assert sorts(keylog_rows.newest(log, 9, keylog_queries.where(["s.*"]))) == [1, 2, 9]
    at = (NOON + dt.timedelta(seconds=3)).isoformat()
    assert sorts(keylog_rows.newest(log, 9, keylog_queries.where(since=at))) == [3, 9]
    with pytest.raises(ConfigError, match="'soon' is not a time"):
        keylog_queries.where(since="soon")
    with pytest.raises(ConfigError, match="the key 'id' has no value"):
        keylog_queries.where(key=["id"])


def test_errors_by_kind(tmp_path: Path) -> None:
    log = write(
        tmp_path, [missed(1), row(2), missed(5)], [missed(3, table="s.u"), missed(8, result_error="no disk")]
    )
    found = [(e["table"], e["error"], e["changes"], e["last_sort"]) for e in keylog_queries.errors(log)]
    assert found == [
        ("s.t", "no disk", 1, 8),
        ("s.t", "update_missing", 2, 5),
        ("s.u", "update_missing", 1, 3),
    ]
    assert [e["last"] for e in keylog_queries.errors(log)][1] == NOON + dt.timedelta(seconds=5.5)


def test_latencies_are_right_within_a_step(tmp_path: Path) -> None:
    late = [row(n, keylog_ts=NOON + dt.timedelta(seconds=n, milliseconds=n)) for n in range(1, 101)]
    early = row(200, table="s.u", keylog_ts=NOON)
    (t, u) = keylog_queries.latency(write(tmp_path, late[:60], [*late[60:], early]))
    assert (t["table"], t["changes"], t["max"], t["mean"], t["negative"]) == ("s.t", 100, 100.0, 50.5, 0)
    assert [t[p] for p in ("p50", "p90", "p99")] == [pytest.approx(n, rel=STEP) for n in (50, 90, 99)]
    assert (u["changes"], u["negative"], u["max"]) == (1, 1, -200_000.0)


def test_what_is_no_key_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no key log"):
        keylog_rows.newest(str(tmp_path / "none"), 5)
    lake.append(str(tmp_path / "other"), pa.table({"id": [1]}))
    with pytest.raises(ConfigError, match="it has no column 'run_id'"):
        keylog_rows.newest(str(tmp_path / "other"), 5)


def test_following_gives_every_row_once_also_after_files_were_joined(tmp_path: Path) -> None:
    log = write(tmp_path, [row(n) for n in (1, 2)], [row(n) for n in (3, 4)])
    seen = [r["keylog_sort"] for some in keylog_rows.later(log, 1) for r in some]
    DeltaTable(log).optimize.compact()
    lake.append(log, pa.Table.from_pylist([row(5)], schema=SCHEMA))
    seen += [r["keylog_sort"] for some in keylog_rows.later(log, 4) for r in some]
    assert seen == [2, 3, 4, 5]


def command(log: str, *words: str) -> list[str]:
    """The words of `tailrace keylog VERB LOG ...`."""
    verbs = 2 if words[0] == "consumer" else 1
    return ["keylog", *words[:verbs], log, *words[verbs:]]


def tailrace(*words: str) -> Any:
    result = CliRunner().invoke(app, [*command(*words), "--json"])
    assert result.exit_code == 0, (words, result.output, result.exception)
    return json.loads(result.stdout)


def test_the_commands(tmp_path: Path) -> None:
    log = write(tmp_path)
    runs = Runs(log, Group("shop", "shop"))
    run = runs.run_ids([Subscription("s.t", rules="strict")])["s.t"]
    lake.append(log, pa.Table.from_pylist([row(1, run), missed(2, run=run, key='id="7"')], schema=SCHEMA))
    runs.end()
    (told,) = tailrace(log, "tables")
    assert [told[n] for n in ("table", "rules", "runs", "changes", "flagged")] == ["s.t", "strict", 1, 2, 1]
    assert [(r["run_id"], r["change_count"]) for r in tailrace(log, "runs")] == [(run, 2)]
    assert sorts(tailrace(log, "flagged", "s.*")) == [2]
    assert sorts(tailrace(log, "story", "--key", "id=7")) == [2]
    assert sorts(tailrace(log, "tail", "--limit", "1")) == [2]
    assert tailrace(log, "errors")[0]["error"] == "update_missing"
    assert tailrace(log, "latency")[0]["changes"] == 2
    assert tailrace(log, "consumer", "add", "audit")[0]["acknowledged"] is None
    assert tailrace(log, "consumer", "ack", "audit", "1")[0]["acknowledged"] == 1
    assert tailrace(log, "prune", "--keep-runs", "1", "--dry-run")["runs"] == []
    assert tailrace(log, "consumer", "remove", "audit") == []
    again = CliRunner().invoke(app, command(log, "consumer", "remove", "audit")).exception
    assert "no consumer 'audit' is registered" in str(again)
    shown = CliRunner().invoke(app, command(log, "flagged"))
    assert 'id="7"' in shown.stdout


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A key log of two rows with a consumer, to be read only."""
    log = write(tmp_path_factory.mktemp("two"), [row(1), row(2)])
    tailrace(log, "consumer", "add", "audit")
    return log


@pytest.fixture(scope="module")
def none(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A key log without rows, to be read only."""
    return write(tmp_path_factory.mktemp("none"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("flagged s.tt", "no table s.tt"), ("errors s.tt", "no table s.tt"),
        ("latency x.*", "no table x.*"), ("runs s.tt", "no table s.tt"),
        ("tail s.tt", "no table s.tt"), ("tail s.tt -f", "no table s.tt"),
        ("story --key idd=7", "did you mean id?"), ("story -k id=7 -k lane=1", "a column lane"),
        ("flagged --key idd=7", "did you mean id?"), ("story s.tt -k id=7", "did you mean s.t?"),
        ("consumer ack audit 3", "the newest `keylog_sort` is 2"),
        ("consumer remove audits", "no consumer 'audits' is registered"),
    ],
)  # fmt: skip
def test_names_that_the_key_log_does_not_have_are_errors(two: str, words: str, said: str) -> None:
    done = CliRunner().invoke(app, command(two, *words.split()))
    assert isinstance(done.exception, ConfigError) and said in str(done.exception)


@pytest.mark.parametrize("words", ["flagged s.t", "story -k id=77", "story -k v=y s.*", "errors s.t"])
def test_nothing_found_of_what_is_there_is_no_error(two: str, none: str, words: str) -> None:
    assert tailrace(two, *words.split()) == []
    assert tailrace(none, *words.split()) == []


def test_following_a_key_log(tmp_path: Path) -> None:
    log = write(tmp_path, [row(1), missed(2)])
    words = [sys.executable, "-m", "tailrace", "keylog", "tail", log, "--flagged", "-f", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["keylog_sort"] == 2
        for some in ([row(3), missed(4)], [missed(5)]):
            lake.append(log, pa.Table.from_pylist(some, schema=SCHEMA))
        assert [json.loads(running.stdout.readline())["keylog_sort"] for _ in range(2)] == [4, 5]
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0


def test_a_tasks_key_log_is_found_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "home" / "keylog").mkdir(parents=True)
    write(tmp_path / "home" / "keylog", [row(1)])
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\nkeylog: {mode: all}\n")
    assert sorts(tailrace(str(file), "tail")) == [1]


def task_file(folder: Path, mode: str = "all") -> str:
    file = folder / "shop.yaml"
    source = "source: {url: 'postgresql://db/shop'}"
    file.write_text(f"name: shop\nhome: home\n{source}\nkeylog: {{mode: {mode}}}\n")
    return str(file)


def test_a_tasks_key_log_before_the_first_change_is_applied(tmp_path: Path) -> None:
    task = task_file(tmp_path)
    for words in (
        "tables", "runs", "runs s.t", "flagged s.t", "story -k id=7", "tail", "errors s.t", "latency",
        "consumer list",
    ):  # fmt: skip
        assert tailrace(task, *words.split()) == []
    shown = CliRunner().invoke(app, command(task, "errors"))
    assert (shown.exit_code, shown.stdout) == (0, "no errors\n")
    assert tailrace(task, "prune", "--keep-runs", "1")["rows"] == 0
    assert tailrace(task, "consumer", "add", "audit")[0]["acknowledged"] is None
    early = CliRunner().invoke(app, command(task, "consumer", "ack", "audit", "3"))
    assert "the newest `keylog_sort` is 0" in str(early.exception)
    Runs(str(tmp_path / "home/keylog/ir_keylog"), Group("shop", "shop")).run_ids([Subscription("s.t")])
    assert [(r["table"], r["runs"]) for r in tailrace(task, "tables")] == [("s.t", 1)]
    assert [r["subscription_id"] for r in tailrace(task, "runs")] == ["s.t"]


@pytest.mark.parametrize("words", ["tables", "runs", "tail", "tail -f", "errors", "consumer add audit"])
def test_what_will_be_no_key_log_is_an_error(tmp_path: Path, words: str) -> None:
    for log in (task_file(tmp_path, "off"), str(tmp_path / "none")):
        done = CliRunner().invoke(app, command(log, *words.split()))
        assert isinstance(done.exception, ConfigError) and "there is no key log" in str(done.exception)


@pytest.mark.parametrize("name", ["none.yaml", "none.yml"])
def test_a_task_file_that_is_not_there_is_no_key_log(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(app, command(str(tmp_path / name), "tables"))
    assert "the task file cannot be read: No such file" in str(done.exception)


def test_following_waits_for_a_tasks_key_log(tmp_path: Path) -> None:
    task = task_file(tmp_path)
    words = [sys.executable, "-m", "tailrace", "keylog", "tail", task, "-f", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        time.sleep(2)
        (tmp_path / "home" / "keylog").mkdir(parents=True)
        log = write(tmp_path / "home" / "keylog", [row(1)])
        assert json.loads(running.stdout.readline())["keylog_sort"] == 1
        lake.append(log, pa.Table.from_pylist([row(2)], schema=SCHEMA))
        assert json.loads(running.stdout.readline())["keylog_sort"] == 2
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
