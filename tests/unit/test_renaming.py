"""Targets of renamed tables: which names they end with, whatever interrupts, and what keeps a name."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.target_rename import TargetRenames
from tailrace.config.task import Task, read
from tailrace.errors import ConfigError
from tailrace.state import commands, ddl, lifecycle
from tailrace.validate.validation import wait_for_renames

from ..examples import examples

pytestmark = pytest.mark.unit

FILE = """
name: shop
source: {url: "postgresql://me@db/shop", tables: ["s.*"]}
target: {path: lake}
apply: {ddl: {rename_table: apply}}
"""
NAMES = ("s.a", "s.b", "s.c")


def task(folder: Path, more: str = "", exclude: str = "") -> Task:
    text = FILE.replace('["s.*"]', f'["s.*"], exclude: [{exclude}]')
    made = read(text + more, folder)
    assert isinstance(made, Task)
    return made


def target(one: Task, name: str, mark: str = "") -> Path:
    """The folder of a target, with a file that says whose it is."""
    folder = Path(one.target_path(name))
    folder.mkdir(parents=True)
    (folder / (mark or name)).touch()
    return folder


def renamed(one: Task, *names: tuple[str, str], at: int = 1, policy: str = "apply") -> None:
    """Tables were renamed at the source, all between two looks at it."""
    seq = f"{at:035d}"
    ddl.record_events(
        one.control_path("ddl_events"), [ddl.CatalogEvent(t, 7, "rename_table", seq, new) for t, new in names]
    )
    made = [((t, seq, "rename_table", 0), policy) for t, _ in names]
    ddl.record_decisions(one.control_path("ddl_decisions"), made)


def there(one: Task) -> dict[str, str]:
    """Whose target is where: name of the folder -> table."""
    return {p.name: next(p.iterdir()).name for p in Path(one.target.path).iterdir()}


def states(one: Task) -> lifecycle.TableStates:
    return lifecycle.of_task(one.commands_path, {})


def known(one: Task, *names: str) -> None:
    """Tables that the task has, with targets."""
    for name in names:
        target(one, name)
    commands.give(one.commands_path, commands.RESUME, names, why="", who="test")


def test_a_target_gets_the_new_name_and_gives_it_back(tmp_path: Path) -> None:
    one = task(tmp_path)
    known(one, "s.a")
    renamed(one, ("s.a", "t.x"))
    TargetRenames(one).continue_all(one)
    assert there(one) == {"t.x": "s.a"}
    assert states(one).target_names == {"s.a": "t.x"} and not states(one)["s.a"].waits
    renamed(one, ("s.a", "s.a"), at=2)
    TargetRenames(one).continue_all(one)
    assert there(one) == {"s.a": "s.a"} and states(one).target_names == {}


class Killed(BaseException):
    """The process is gone."""


def give_or_die(lives: list[int]) -> object:
    real = commands.give

    def give(*args: object, **more: object) -> int:
        lives[0] -= 1
        if lives[0] == 0:
            raise Killed
        done = real(*args, **more)  # type: ignore[arg-type]
        if lives[0] == -1:
            raise Killed
        return done

    return give


@examples(2)
@given(
    st.lists(st.permutations(["s.a", "s.b", "s.c", "s.d"]), min_size=1, max_size=2),
    st.lists(st.integers(1, 6), max_size=3),
)
def test_whatever_tables_exchange_and_whenever_it_dies_each_target_has_its_table_s_name(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[str]], kills: list[int]
) -> None:
    one = task(tmp_path_factory.mktemp("t"))
    known(one, *NAMES)
    for at, names in enumerate(steps, 1):
        renamed(one, *zip(NAMES, names, strict=False), at=at)
        for life in kills:
            with mock.patch.object(commands, "give", give_or_die([life])):
                try:
                    TargetRenames(one).continue_all(one)
                except Killed:
                    continue
        TargetRenames(one).continue_all(one)
        assert there(one) == dict(zip(names, NAMES, strict=False))
        assert {t: states(one).target_names.get(t, t) for t in NAMES} == dict(zip(NAMES, names, strict=False))


def test_a_validation_waits_for_the_name_that_a_target_is_about_to_get(tmp_path: Path) -> None:
    one = task(tmp_path)
    known(one, "s.a", "s.b")
    renamed(one, ("s.a", "t.x"))
    with mock.patch.object(commands, "give", give_or_die([2])), pytest.raises(Killed):
        TargetRenames(one).continue_all(one)
    wait_for_renames(one, ["s.b"], 0)
    with pytest.raises(ConfigError, match=r"the target of s\.a is about to be renamed to t\.x"):
        wait_for_renames(one, ["s.a", "s.b"], 0.1)
    later = threading.Timer(0.3, lambda: TargetRenames(one).continue_all(one))
    later.start()
    wait_for_renames(one, ["s.a", "s.b"], 30)
    later.join()
    assert there(one) == {"t.x": "s.a", "s.b": "s.b"}


def test_a_name_that_others_have_is_not_taken(tmp_path: Path) -> None:
    one = task(tmp_path)
    known(one, "s.a", "s.b", "s.c")
    strange = target(one, "s.strange", "mine")
    renamed(one, ("s.a", "s.strange"), ("s.b", "s.c"))
    watch = TargetRenames(one)
    watch.continue_all(one)
    assert there(one) == {"s.a": "s.a", "s.b": "s.b", "s.c": "s.c", "s.strange": "mine"}
    why = {t: s.why for t, s in states(one).items() if s.held}
    assert "s.strange: something that is not a target of this task has that name" in why["s.a"]
    assert "s.c: the target of s.c has that name" in why["s.b"] and set(why) == {"s.a", "s.b"}
    (strange / "mine").unlink()
    strange.rmdir()
    commands.give(one.commands_path, commands.RESUME, ["s.a", "s.b"], why="", who="test")
    watch.continue_all(task(tmp_path, "tables: {s.b: {ddl: {rename_table: ignore}}}"))
    assert there(one) == {"s.b": "s.b", "s.c": "s.c", "s.strange": "s.a"}
    # One that is removed keeps its name, until its target is gone.
    for action in (commands.REMOVE, commands.DROP, commands.DROPPED):
        assert there(one)["s.b"] == "s.b"
        commands.give(one.commands_path, action, ["s.c"], why="", who="test")
        if action == commands.DROP:
            (Path(one.target_path("s.c")) / "s.c").unlink()
            Path(one.target_path("s.c")).rmdir()
        watch.continue_all(one)
        if action == commands.REMOVE:
            assert "the target of s.c has that name" in states(one)["s.b"].why
            commands.give(one.commands_path, commands.RESUME, ["s.b"], why="", who="test")
    assert there(one) == {"s.c": "s.b", "s.strange": "s.a"}
    assert not any(s.held for s in states(one).values())


def test_what_is_under_both_names_is_touched_by_nobody(tmp_path: Path) -> None:
    one = task(tmp_path)
    known(one, "s.a")
    renamed(one, ("s.a", "s.x"))
    commands.give(one.commands_path, commands.RENAME, ["s.a"], why="", who="ddl", target="s.x")
    target(one, "s.x", "mine")
    TargetRenames(one).continue_all(one)
    state = states(one)["s.a"]
    assert state.held == "suspended" and f"both {tmp_path}/lake/s.a and {tmp_path}/lake/s.x" in state.why
    assert there(one) == {"s.a": "s.a", "s.x": "mine"}


def test_what_holds_a_rename_up(tmp_path: Path) -> None:
    one = task(tmp_path, "tables: {s.c: {target: s.other}, s.e: {target: s.d}}")
    known(one, "s.a", "s.b", "s.c", "s.d")
    commands.give(one.commands_path, commands.RESUME, ["s.e"], why="", who="test")
    commands.give(one.commands_path, commands.PAUSE, ["s.b"], why="", who="test")
    renamed(one, ("s.a", "s.x"), ("s.b", "s.y"), ("s.c", "s.z"), ("s.d", "s.w"))
    renamed(one, ("s.a", "s.v"), at=2, policy="ignore")
    TargetRenames(one).continue_all(one, busy={"s.a"})
    assert set(there(one)) == {"s.a", "s.b", "s.c", "s.d"}
    TargetRenames(one).continue_all(one)
    # A mapping says where s.c goes, and s.e goes where s.d does.
    assert set(there(one)) == {"s.x", "s.b", "s.c", "s.d"}
    commands.give(one.commands_path, commands.RESUME, ["s.b"], why="", who="test")
    TargetRenames(one).continue_all(one)
    assert set(there(one)) == {"s.x", "s.y", "s.c", "s.d"}


def test_what_cannot_be_done_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = task(tmp_path)
    known(one, "s.a")
    renamed(one, ("s.a", "s.x"))
    watch = TargetRenames(one)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
        for _ in range(2):
            watch.continue_all(one)
    assert there(one) == {"s.a": "s.a"} and states(one)["s.a"].waits and not states(one)["s.a"].held
    assert [r.getMessage().count("Permission denied") for r in caplog.records] == [1]
    watch.continue_all(one)
    assert there(one) == {"s.x": "s.a"}
