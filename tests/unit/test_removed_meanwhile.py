"""A command beside `drop`: files go between two steps of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.errors import TailraceError
from tailrace.lake import delta as lake
from tailrace.lake.removed import GONE
from tailrace.state import commands

pytestmark = pytest.mark.unit


def given(folder: Path) -> Path:
    path = folder / "orders"
    commands.give(str(path), commands.PAUSE, ["s.a"], why="", who="me")
    return path


def test_orders_whose_rows_are_gone(tmp_path: Path) -> None:
    path = given(tmp_path)
    for part in path.glob("*.parquet"):
        part.unlink()
    with pytest.raises(TailraceError) as caught:
        commands.read(str(path))
    assert str(caught.value).splitlines() == [
        GONE,
        f"  where: {path}",
        "  hint: if it was dropped, there is nothing left to do; otherwise restore the files. "
        "`tailrace status` shows the current state",
    ]


def test_commands_removed_while_one_is_given_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, does = given(tmp_path), lake.commit

    def late(*words: object, **more: object) -> object:
        shutil.rmtree(path)
        return does(*words, **more)

    monkeypatch.setattr(lake, "commit", late)
    with pytest.raises(TailraceError, match=GONE):
        commands.give(str(path), commands.RESYNC, ["s.a"], why="", who="me")
