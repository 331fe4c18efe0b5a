"""A task's state has a version; another one is refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace import __version__
from tailrace.cli.main import app
from tailrace.config import state_version
from tailrace.config.task import Task, load
from tailrace.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "shop.yaml").write_text("name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\n")
    return load(tmp_path / "shop.yaml")


def marker(task: Task) -> Path:
    return Path(task.home) / "control" / "version.json"


def test_new_state_gets_the_version_of_this_release(task: Task) -> None:
    assert not state_version.check(task.home)
    state_version.begin(task.home)
    assert state_version.check(task.home)
    found = json.loads(marker(task).read_text())
    assert (found["version"], found["release"]) == (1, __version__)


@pytest.mark.parametrize(
    "command", [["status"], ["check"], ["pause", "s.t"], ["capture"], ["pipeline"], ["validate"]]
)
def test_state_of_another_version_is_refused_by_every_command(
    task: Task, tmp_path: Path, command: list[str]
) -> None:
    marker(task).parent.mkdir(parents=True)
    marker(task).write_text('{"version": 9, "release": "3.1"}')
    name, *rest = command
    result = CliRunner().invoke(app, [name, str(tmp_path / "shop.yaml"), *rest])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == (
        f"the task's state has version 9; this is tailrace {__version__}, which supports version 1\n"
        f"  where: {marker(task)}\n"
        "  hint: use the release that wrote it (3.1)"
    )


@pytest.mark.parametrize("text", ["", "{", "[2]", '{"version": "two"}', '{"version": 0}'])
def test_version_that_cannot_be_read_is_an_error(task: Task, text: str) -> None:
    marker(task).parent.mkdir(parents=True)
    marker(task).write_text(text)
    with pytest.raises(ConfigError, match="the version of the task's state cannot be read"):
        state_version.check(task.home)
