"""The command line as a whole: one order of words, one meaning per option, help that is complete."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.cli.plain_help import PANELS

pytestmark = pytest.mark.unit
ROOT = typer.main.get_command(app)
VARIANTS = {"--end", "--name", "--start"}
"""Options whose help adds what their one meaning is in a command."""


def tree(command: Any = ROOT, *names: str) -> Iterator[tuple[str, Any]]:
    """All commands and groups, by their words."""
    yield " ".join(names), command
    for name, one in getattr(command, "commands", {}).items():
        yield from tree(one, *names, name)


COMMANDS = dict(tree())
SINGLE = {words: one for words, one in COMMANDS.items() if not hasattr(one, "commands")}


def options(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and not p.hidden]


def arguments(command: Any) -> list[str]:
    return [p.metavar for p in command.params if p.param_type_name == "argument"]


def help_of(words: str, width: int = 80) -> str:
    done = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": str(width)})
    assert done.exit_code == 0, done.output
    return done.output


def test_a_letter_and_a_name_belong_to_one_option() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for one in COMMANDS.values():
        for option in options(one):
            longs = [o for o in option.opts if o.startswith("--")]
            assert longs, option.opts
            for letter in (o for o in option.opts if not o.startswith("--")):
                found[letter].add(longs[0])
            for name in longs:
                found[name].add("".join(o for o in option.opts if not o.startswith("--")))
    assert {name: others for name, others in found.items() if len(others) > 1} == {}


def test_an_option_has_one_meaning() -> None:
    meanings: dict[str, set[Any]] = defaultdict(set)
    for one in COMMANDS.values():
        for option in options(one):
            text = "" if option.opts[0] in VARIANTS else option.help
            meanings[option.opts[0]].add((option.is_flag, option.multiple, text))
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_a_task_comes_first_and_tables_come_last() -> None:
    for words, one in SINGLE.items():
        found = arguments(one)
        assert "TASK" not in found[1:], words
        assert "TABLE" not in found[:-1], words
        if any(word in words for word in ("query", "keylog", "consumer")):
            assert found[0] == "TASK", words


def test_every_value_has_a_name_and_every_duration_an_example() -> None:
    for words, one in COMMANDS.items():
        for option in options(one):
            if option.is_flag or "<" in help_type(option):
                continue
            assert option.metavar, (words, option.opts)
            if option.metavar == "DURATION":
                assert re.search(r"\b\d+(ms|s|m|h|d)\b", option.help), (words, option.opts)
            assert option.metavar != "SIZE" or re.search(r"\b\d+[KMG]iB\b", option.help), (words, option.opts)


def help_type(option: Any) -> str:
    """The choices of an option; empty if it has none."""
    return "<choices>" if option.type_descriptor.is_choice else ""


@pytest.mark.parametrize("words", COMMANDS)
def test_help_is_complete_at_80_columns(words: str) -> None:
    narrow, wide = help_of(words), help_of(words, 1000)
    assert max(map(len, narrow.splitlines())) <= 80
    assert letters(narrow) == letters(wide)
    assert not re.search(r"<(bool|str|int|float|list.*|file|path|int range)>", wide), wide


def letters(text: str) -> list[str]:
    """The characters of a help text, without spaces and lines of boxes."""
    return sorted(re.sub(r"[\s│─╭╮╰╯]", "", text))


@pytest.mark.parametrize("words", COMMANDS)
def test_a_first_line_fits_and_ends_with_a_period(words: str) -> None:
    first = COMMANDS[words].help.strip().splitlines()[0]
    assert first[0].isupper()
    assert re.search(r"[.)]$", first) and len(first) <= 100, first


def examples() -> list[str]:
    found = []
    for words, one in COMMANDS.items():
        mine = [line.strip() for line in one.help.partition("Examples:\n")[2].splitlines() if line.strip()]
        assert mine, f"tailrace {words} has no example"
        assert all(
            line.startswith(f"tailrace {words}".rstrip()) for line in mine if "spark-submit" not in line
        )
        found += [line for line in mine if line.startswith("tailrace ")]
    return found


@pytest.mark.parametrize("line", examples())
def test_an_example_is_a_valid_command_line(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.yaml").write_text("name: shop\nsource: {url: 'postgresql://db/shop'}\n")
    words = shlex.split(line.partition(" > tailrace")[0])[1:]
    command: Any = ROOT
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    with command.make_context("tailrace", words):
        pass
    assert len(line) <= 76


def test_each_command_is_in_one_group_of_the_help() -> None:
    text = help_of("")
    assert [p for p in re.findall(r"╭─ ([A-Z][a-z]+(?: tables)?) ─", text) if p != "Options"] == [*PANELS]
    assert {one.rich_help_panel for one in ROOT.commands.values()} == {*PANELS}  # type: ignore[attr-defined]
