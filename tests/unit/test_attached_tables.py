"""Captured tables that are attached to another captured one as partitions, and detached again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.state import commands

from .test_followed_tables import Reader, Server, follow, noted
from .test_renaming import states, task

pytestmark = pytest.mark.unit

PARTITION = (
    "it was attached as a partition to s.p, and its changes arrive under that table's name: `tailrace remove TASK "
    "s.a` ends its capture; or detach it, then `tailrace resync TASK s.a`"
)


def test_a_table_that_became_a_partition_is_suspended_once_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = task(tmp_path)
    noted(one, "s.a", "s.p")
    server = Server({}, r1="s.a", r2="s.p")
    followed = follow(one, server)
    assert (followed.tables, states(one)) == (["s.a", "s.p"], {})
    server.roots = {"s.a": "s.p"}
    for _ in range(3):
        followed.check(server, server, server)  # type: ignore[arg-type]
    assert followed.tables == ["s.p"]
    assert [(o.table, o.action, o.why) for o in commands.read(one.commands_path)] == [
        ("s.a", "suspend", PARTITION)
    ]
    assert caplog.messages == [f"s.a: {PARTITION}"]
    again = follow(one, server)  # at the next start, too
    assert (again.tables, len(commands.read(one.commands_path))) == (["s.p"], 1)
    commands.give(one.commands_path, commands.RESUME, ["s.a"], why="", who="me")  # nothing comes of it
    again.check(server, server, server)  # type: ignore[arg-type]
    assert states(one)["s.a"].held == "suspended"


def test_it_is_followed_again_once_it_is_detached(tmp_path: Path) -> None:
    one = task(tmp_path)
    noted(one, "s.a", "s.p")
    server = Reader(one, {}, r1="s.a", r2="s.p")
    server.roots = {"s.a": "s.p"}
    followed = follow(one, server)
    commands.resync(one.commands_path, "s.a", "", who="me")
    followed.check(server, server, server)  # type: ignore[arg-type]
    assert (followed.tables, server.asked) == (["s.p"], ["s.p"])
    server.roots = {}
    followed.check(server, server, server)  # type: ignore[arg-type]
    assert (followed.tables, server.asked) == (["s.a", "s.p"], ["s.a", "s.p"])


@pytest.mark.parametrize("restart", [False, True])
def test_a_table_that_was_a_partition_for_a_while_needs_a_baseline(tmp_path: Path, restart: bool) -> None:
    """`resume` alone would leave out what was written meanwhile."""
    one = task(tmp_path)
    noted(one, "s.a", "s.p")
    server = Reader(one, {}, r1="s.a", r2="s.p")
    server.roots = {"s.a": "s.p"}
    followed = follow(one, server)
    server.roots = {}
    followed = follow(one, server) if restart else followed
    followed.check(server, server, server)  # type: ignore[arg-type]
    assert states(one)["s.a"].held == "suspended"
    commands.give(one.commands_path, commands.RESUME, ["s.a"], why="", who="me")
    for _ in range(3):
        followed.check(server, server, server)  # type: ignore[arg-type]
    assert states(one)["s.a"].held == "suspended"
    assert [o.action for o in commands.read(one.commands_path)] == ["suspend", "resume", "suspend"]
    assert "only a new baseline has them" in states(one)["s.a"].why
    commands.resync(one.commands_path, "s.a", "", who="me")
    for _ in range(3):
        followed.check(server, server, server)  # type: ignore[arg-type]
    assert [o.action for o in commands.read(one.commands_path)][3:] == ["resync"]


def test_a_partition_that_was_never_captured_is_none_of_those(tmp_path: Path) -> None:
    """The checks say what to name instead."""
    one = task(tmp_path)
    noted(one, "s.p")
    server = Server({}, r1="s.a", r2="s.p")
    server.roots = {"s.a": "s.p"}
    assert (follow(one, server).tables, states(one)) == (["s.a", "s.p"], {})
