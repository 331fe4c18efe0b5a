"""A task's state says its version; another one is brought up, or refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace import __version__
from tailrace.cli.main import app
from tailrace.config import state_version
from tailrace.config.task import Task, load
from tailrace.errors import ConfigError, TailraceError
from tailrace.operate.status import status
from tailrace.state import rolling
from tailrace.state.ledger import APPLIED, STORED
from tailrace.state.upgrades import upgrade
from tailrace.testing.year import Year, raw

pytestmark = pytest.mark.unit
SMALL = Year(batches=365, tables=4, in_a_batch=2, tail=2, commits=5)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "shop.yaml").write_text("name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\n")
    return load(tmp_path / "shop.yaml")


def marker(task: Task) -> Path:
    return Path(task.home) / "control" / "version.json"


def test_a_new_state_says_its_version(task: Task) -> None:
    assert state_version.of(task.home) is None
    assert state_version.begin(task.home) == state_version.VERSION == 2
    said = json.loads(marker(task).read_text())
    assert (said["version"], said["release"]) == (2, __version__)


@pytest.mark.parametrize(
    "command", [["status"], ["check"], ["pause", "s.t"], ["capture"], ["pipeline"], ["validate"]]
)
def test_a_newer_state_is_refused_by_every_command(task: Task, tmp_path: Path, command: list[str]) -> None:
    marker(task).parent.mkdir(parents=True)
    marker(task).write_text('{"version": 9, "release": "3.1"}')
    name, *rest = command
    result = CliRunner().invoke(app, [name, str(tmp_path / "shop.yaml"), *rest])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == (
        f"the task's state has version 9; this is tailrace {__version__}, which supports versions up to 2\n"
        f"  where: {marker(task)}\n"
        "  hint: use the release that wrote it (3.1), or a later one"
    )


@pytest.mark.parametrize("text", ["", "{", "[2]", '{"version": "two"}', '{"version": 0}'])
def test_a_version_that_cannot_be_read_is_an_error(task: Task, text: str) -> None:
    marker(task).parent.mkdir(parents=True)
    marker(task).write_text(text)
    with pytest.raises(ConfigError, match="the version of the task's state cannot be read"):
        state_version.of(task.home)


def test_a_state_without_a_version_is_brought_up(task: Task) -> None:
    raw(task, SMALL)
    assert state_version.of(task.home) == 1
    before = status(task)
    upgrade(task)
    assert state_version.of(task.home) == 2
    assert status(task) == before
    for name, book in (("stored", STORED), ("applied", APPLIED)):
        kinds = {f.kind for f in rolling.Ledger(task.control_path(name), book).files}
        assert kinds == {rolling.PAST, rolling.TOTAL}
    upgrade(task)
    assert status(task) == before


def test_an_upgrade_that_is_broken_off_goes_on(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    raw(task, SMALL)
    before = status(task)
    with monkeypatch.context() as broken:
        broken.setattr(rolling.Ledger, "replace", lambda *_: False)
        with pytest.raises(TailraceError, match="writes the records of batches while they are rolled up"):
            upgrade(task)
    assert (state_version.of(task.home), status(task)) == (1, before)
    upgrade(task)
    assert (state_version.of(task.home), status(task)) == (2, before)
