"""At 80 columns, and in a pipe, every value is there as it is."""

from __future__ import annotations

import datetime as dt
import io
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.markup import escape
from typer.testing import CliRunner

from tailrace.cli import formats as cli_formats
from tailrace.cli import keylog, screen
from tailrace.cli import output as cli_out
from tailrace.cli.screen_fit import Col, Fit
from tailrace.config.task import Task
from tailrace.demo import show
from tailrace.demo.questions import Answer
from tailrace.demo.result import DemoResult, TableLine
from tailrace.demo.story import StoryEvent
from tailrace.operate.status import Status
from tailrace.validate.compare import TableResult
from tailrace.validate.validation import ValidationReport

from .keylog_rows import missed, row, write

pytestmark = pytest.mark.unit
LONG = "a_schema_of_some_length.a_table_with_a_long_name"


def shown(what: Any, width: int = 80) -> str:
    there = Console(file=io.StringIO(), width=width)
    there.print(what)
    assert isinstance(there.file, io.StringIO)
    said = there.file.getvalue()
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said
    return said


def cells(said: str) -> set[str]:
    """The columns of a table of one row, folded cells put together again."""
    rows = [line.split("│")[1:-1] for line in said.splitlines() if line.startswith("│")]
    return {"".join(cell.strip() for cell in column) for column in zip(*rows, strict=True)}


def test_a_validation_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"side": "source", **{f"column_{n}": "x" * 30 for n in range(9)}}]
    found = ValidationReport("0" * 40, [TableResult(LONG, False, 10**6, 10**6 - 1, 256, 1, 1, rows)])
    said = shown(screen.report(found))
    assert LONG in said and "999,999" in said and "1 row" in said
    assert all(f"  column_{n}: {'x' * 30}\n" in said for n in range(9))  # a block of lines a row


def test_a_validation_says_whose_changes_wait() -> None:
    tables = [TableResult(t, True, 7, 7, 256, 0, overlaid=t != "s.b") for t in ("s.a", "s.b", "s.c")]
    said = " ".join(shown(screen.report(ValidationReport("0" * 40, tables))).split())
    assert said.endswith(
        "s.a, s.c: waiting changes count as applied here (`tailrace status` shows why they wait)"
    )
    assert "waiting" not in shown(screen.report(ValidationReport("0" * 40, tables[1:2])))


def test_a_table_that_was_not_compared_says_why() -> None:
    tables = [
        TableResult("s.a", False, 0, 0, 0, 0, not_compared="two columns 'v'"),
        TableResult("s.b", True, 1, 1, 1, 0),
    ]
    found = ValidationReport("0" * 40, tables)
    assert not found.equal
    said = [line for line in shown(screen.report(found)).splitlines() if "s.a" in line]
    assert [cell.strip() for cell in said[0].split("│")[1:-1]] == [
        "s.a", "", "", "not compared", "two columns 'v'",
    ]  # fmt: skip


def test_values_that_were_compared_as_null_are_counted() -> None:
    tables = [TableResult("s.a", True, 1, 1, 1, 0, as_null=n) for n in (0, 1, 2000)]
    said = " ".join(shown(screen.report(ValidationReport("0" * 40, tables))).split())
    assert said.count("lake type cannot hold") == 2
    assert "s.a: 1 value of the source that the column's lake type cannot hold was compared as NULL" in said
    assert said.endswith(
        "s.a: 2,000 values of the source that the column's lake type cannot hold were compared as NULL"
    )


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ([], "no table is loaded yet"),
        (["baseline 3/8", "running"], "1 of 2 tables is still loading: s.t0"),
        (["baseline 3/8", "waits for its baseline"], "2 of 2 tables are still loading: s.t0, s.t1"),
        (["running"], "pipeline running; everything captured is applied"),
    ],
)
def test_status_of_a_task_that_still_loads_says_so(states: list[str], says: str) -> None:
    runs = {"running": True, "state": "running"}
    tables = [screen_table(f"s.t{k}", state) for k, state in enumerate(states)]
    said = shown(screen.status(Status("shop", runs, runs, 0, 0, 0, None, tables)))
    assert says in said
    assert ("everything captured is applied" in said) == (states == ["running"])


def test_status_says_how_many_values_were_set_aside() -> None:
    odd = screen_table("s.odd", "running")
    odd.quarantined = 3
    found = Status("shop", None, None, 0, 0, 0, None, [odd, screen_table("s.t", "running")])
    said = [one for one in screen.reasons(found) if "quarantine" in one]
    assert said == [
        "s.odd: 3 values that the column's lake type cannot hold were set aside in `control/quarantine` "
        "and became NULL (`on_bad_value`)"
    ]


def test_the_demo_fits_and_says_what_a_change_number_is() -> None:
    lines = [TableLine("public.pgbench_accounts", 1_000_000, 1_000_000, True, 6640, 1500.0)]
    event = StoryEvent(
        5080, "U", "UPDATE", dt.datetime(2026, 3, 1), 7, "0" * 40, ["a"], {"a": "x" * 90}, {"a": 1}
    )
    played = DemoResult("demo", "demo/demo.yaml", "t", "c", tables=lines, position="0" * 40, life=[event])
    assert "1,000,000" in shown(show._tables(played))
    said = shown(show._life(played.life))
    assert "(change 5080)" in said and "counts the records of the task's log" in " ".join(said.split())


def test_the_demos_commands_are_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Console(file=io.StringIO(), width=40)
    monkeypatch.setattr(show, "console", lambda quiet: there)
    command = "tailrace query net demo/demo.yaml public.pgbench_accounts --start 2026-11-23T06:57:40Z"
    answer = Answer("What did the last seconds change?", command, [{"table": "a", "insert": 1}])
    played = DemoResult("demo", "demo/demo.yaml", "t", "c", position="0" * 40, answers=[answer])
    show.Show(quiet=False).result(played)
    assert isinstance(there.file, io.StringIO)
    assert f"$ {command}" in there.file.getvalue().splitlines()


@pytest.mark.parametrize("words", ["flagged", "runs", "errors", "latency", "tables", "story -k id=2"])
def test_a_key_log_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    log = write(tmp_path, [row(1, table=LONG), missed(2, table=LONG, key='id="2" name="[b]x[/b]"')])
    there = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(keylog, "out", there)
    verb, *more = words.split()
    done = CliRunner().invoke(keylog.app, [verb, log, *more])
    assert done.exit_code == 0, (done.output, done.exception)
    assert isinstance(there.file, io.StringIO)
    said = there.file.getvalue()
    assert max(map(len, said.splitlines())) <= 80 and "…" not in said
    assert words in ("runs", "tables") or LONG in said or LONG in cells(said)
    assert (
        words not in ("flagged", "story -k id=2") or "[b]x[/b]" in said or "[b]x[/b]" in " ".join(cells(said))
    )


@pytest.mark.parametrize("name", ["qlik", "openedge"])
def test_a_formats_page_cuts_no_names(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    there = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(cli_formats, "out", there)
    cli_formats.formats(name)
    assert isinstance(there.file, io.StringIO)
    said = there.file.getvalue()
    assert max(map(len, said.splitlines())) <= 80
    assert "…  " not in said


def test_a_resize_clears_the_screen_and_begins_a_new_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, sizes = threading.Event(), [(80, 30), (80, 30), (60, 20), (60, 20), (60, 20)]

    class There(Console):
        cleared = 0

        def clear(self, home: bool = True) -> None:
            There.cleared += 1

        @property
        def size(self) -> Any:
            width, height = sizes[0]
            return type(super().size)(width, height)

    def status_of(task: Task) -> Status:
        sizes.pop(0)
        if len(sizes) == 1:
            over.set()
        return Status("shop", None, None, 0, 0, 0, None)

    monkeypatch.setattr(screen, "console", lambda: There(file=io.StringIO(), force_terminal=True))
    monkeypatch.setattr(screen, "status_of", status_of)
    monkeypatch.setattr(over, "wait", lambda seconds: over.is_set())
    task = Task.model_validate({"name": "shop", "source": {"url": "postgresql://db/shop"}})
    screen.live(task.model_copy(update={"home": str(tmp_path)}), over)
    assert There.cleared == 1


def test_the_live_screen_says_how_many_tables_it_leaves_out() -> None:
    tables = [screen_table(f"s.t{n}", "running") for n in range(30)] + [screen_table("s.odd", "suspended")]
    said = shown(screen.status(Status("shop", None, None, 0, 0, 0, None, tables), 5))
    assert "s.odd" in said and "26 more tables: `tailrace status` lists them" in said


def screen_table(name: str, state: str) -> Any:
    from tailrace.operate.status import TableStatus

    return TableStatus(name, state)


def test_in_a_pipe_a_table_is_as_wide_as_it_has_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    from tailrace.cli.output import console

    there = console()
    there.print(Fit([Col("a", fold=True), Col("b", spare=1)], [["x" * 300, "y" * 300]]))
    assert f"│ {'x' * 300} │ {'y' * 300} │" in sys.stdout.getvalue()  # type: ignore[attr-defined]


def test_names_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither markup nor emoji are read in them."""
    said = shown(Fit([Col("[/a]"), Col("[red]b[/red]"), Col(":x:")], [["[/c]", "[red]d[/red]", ":x:"]]))
    assert cells(said) == {"[/c]", "[red]d[/red]", ":x:"}
    assert {"[/a]", "[red]b[/red]", ":x:"} <= {part.strip() for part in said.splitlines()[1].split("┃")}
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    cli_out.console().print(f"add {escape('we[b]:x:')}")
    assert sys.stdout.getvalue() == "add we[b]:x:\n"  # type: ignore[attr-defined]


def test_an_answer_without_rows_says_so() -> None:
    assert shown(Fit([Col("id")], empty="no rows")) == "no rows\n"
