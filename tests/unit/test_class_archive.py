"""Spark's classes in a file: which file a Java gets, and which Java can have one."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.runtime import class_archive
from tailrace.runtime.java import JavaHome

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache"))


def home(folder: Path, version: str = "17.0.1", *, code: int = 0) -> JavaHome:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f"#!/bin/sh\nexit {code}\n")
    java.chmod(0o755)
    return JavaHome(folder, version, "PATH")


def test_java_starts_with_the_file_that_was_made_for_it(tmp_path: Path) -> None:
    java = home(tmp_path / "java")
    assert class_archive.options(java) == ""
    file = class_archive.archive_path(java)
    file.touch()
    os.utime(file, (1, 1))
    said = class_archive.options(java)
    assert said.split(" -Xlog")[0] == f'-XX:SharedArchiveFile="{file}"'
    assert file.stat().st_mtime > 1  # it is in use: `make` keeps it


def test_another_java_has_another_file(tmp_path: Path) -> None:
    homes = [home(tmp_path / "a"), home(tmp_path / "a", "17.0.2"), home(tmp_path / "b")]
    assert len({class_archive.archive_path(one) for one in homes}) == 3


def test_a_java_has_one_file_by_all_of_its_names(tmp_path: Path) -> None:
    """`run` and the process that it starts, which finds the launcher in JAVA_HOME."""
    java = home(tmp_path / "java-17.0.1")
    (tmp_path / "java").symlink_to(java.path)
    assert class_archive.archive_path(java) == class_archive.archive_path(
        replace(java, path=tmp_path / "java")
    )


def test_a_java_without_classes_of_its_own_in_a_file_cannot_keep_others(tmp_path: Path) -> None:
    found = [class_archive.supports_archives(home(tmp_path / "java", code=code)) for code in (0, 1)]
    assert found == [True, False]


def test_a_spark_that_does_not_run_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, python = home(tmp_path / "java"), tmp_path / "python"
    python.write_text('#!/bin/sh\ntouch "$3"\necho "no memory" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(class_archive, "ensure_java", lambda: java)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ConfigError, match="could not be written to an archive: no memory"):
        class_archive.make()
    assert list(class_archive.archive_path(java).parent.iterdir()) == []


def test_no_file_is_made_for_a_java_that_cannot_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "ensure_java", lambda: home(tmp_path / "java", code=1))
    assert class_archive.make() is None
