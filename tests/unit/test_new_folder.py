"""A folder that a command fills: for itself alone, and whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import get_args

import pytest

from tailrace.errors import ConfigError
from tailrace.formats import convert, new_folder
from tailrace.formats.new_folder import filled, refuse_used
from tailrace.formats.recognition import recognise

pytestmark = pytest.mark.unit


def names(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


def test_what_was_written_stays(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "a" / "b", tmp_path / "empty"):
        with filled(str(out)):
            (out / "t").mkdir()
            (out / "t" / "1.csv").touch()
        assert names(out) == ["t", "t/1.csv"]
        with pytest.raises(ConfigError, match="is not empty"), filled(str(out)):
            raise AssertionError
        assert names(out) == ["t", "t/1.csv"]


def test_what_failed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new", tmp_path / "empty"):
        with pytest.raises(ZeroDivisionError), filled(str(out)):
            (out / "t").mkdir()
            (out / "1.csv").touch()
            raise ZeroDivisionError
    assert names(tmp_path) == ["empty"]


def test_what_comes_to_a_folder(tmp_path: Path) -> None:
    """What was there stays; after a failure the folder says that it is not whole, if something has come."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "1.csv").touch()
    with filled(str(tmp_path), "more"):
        (tmp_path / "t" / "2.csv").touch()
    with pytest.raises(ZeroDivisionError), filled(str(tmp_path), "more"):
        raise ZeroDivisionError
    assert names(tmp_path) == ["t", "t/1.csv", "t/2.csv"]
    with pytest.raises(ZeroDivisionError), filled(str(tmp_path), "more"):
        (tmp_path / "t" / "3.csv").touch()
        raise ZeroDivisionError
    assert names(tmp_path) == ["_tailrace_writing", "t", "t/1.csv", "t/2.csv", "t/3.csv"]
    for start in ("more", "new"):
        with pytest.raises(ConfigError, match="is incomplete"), filled(str(tmp_path), start):
            raise AssertionError


def test_two_commands_at_once(tmp_path: Path) -> None:
    """The second is refused, and takes nothing of the first away."""
    out = tmp_path / "out"
    with filled(str(out)):
        (out / "1.csv").touch()
        with pytest.raises(ConfigError, match="another command is writing it"), filled(str(out)):
            raise AssertionError
        with pytest.raises(ConfigError, match="another command is writing it"):
            refuse_used(str(out))
    assert names(out) == ["1.csv"]


def test_between_the_look_and_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command comes, or comes and ends."""
    out, opened = tmp_path / "out", os.open
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *a: (out / "1.csv").write_text("") or opened(*a))
        with pytest.raises(ConfigError, match="is not empty"), filled(str(out)):
            raise AssertionError
    assert names(out) == ["1.csv"]
    shutil.rmtree(out)
    with filled(str(out)):
        with monkeypatch.context() as patch:
            patch.setattr(new_folder, "refuse_used", lambda *_: None)
            for start in get_args(new_folder.Start):
                with (
                    pytest.raises(ConfigError, match="another command is writing it"),
                    filled(str(out), start),
                ):
                    raise AssertionError
        (out / "1.csv").touch()
    assert names(out) == ["1.csv"]


def test_tables_that_are_begun_anew(tmp_path: Path) -> None:
    """What did not end is not taken over: it may have written other tables."""
    (tmp_path / "1.csv").touch()
    with filled(str(tmp_path), "over"):
        (tmp_path / "2.csv").touch()
    with pytest.raises(ZeroDivisionError), filled(str(tmp_path), "over"):
        (tmp_path / "2.csv").write_text("part")
        raise ZeroDivisionError
    for start in get_args(new_folder.Start):
        with pytest.raises(ConfigError, match="is incomplete"), filled(str(tmp_path), start):
            raise AssertionError
    (tmp_path / "_tailrace_writing").unlink()
    with filled(str(tmp_path), "over"):
        (tmp_path / "2.csv").write_text("whole")
    assert names(tmp_path) == ["1.csv", "2.csv"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out, why in (("file", "is a file"), ("file/out", "cannot be written: Not a directory")):
        with pytest.raises(ConfigError, match=why), filled(str(tmp_path / out)):
            raise AssertionError


def test_half_a_folder_is_not_read(tmp_path: Path) -> None:
    """After a kill there are whole tables, and others are missing; those that are there say nothing of it."""
    out = tmp_path / "out"
    for start in ("new", "over", "more"):
        with filled(str(out), start):  # type: ignore[arg-type]
            (out / "t").mkdir(exist_ok=True)
            (out / "t" / "1.csv").write_text("id\n1\n")
            for path in (out, out / "t", out / "t" / "1.csv"):
                if start == "more":  # what is added is no part of a table before it is whole
                    read(path)
                    continue
                with pytest.raises(ConfigError, match=f"{out} is incomplete: a command is writing it"):
                    read(path)
                with pytest.raises(ConfigError, match=f"{out} is incomplete: a command is writing it"):
                    recognise(str(path))
    read(out)


def read(path: Path) -> None:
    """What `apply` and `convert` look at before they read."""
    convert.refuse_nothing(convert.side("sqdr", str(path), {}))
