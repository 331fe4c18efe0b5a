"""Tables that failed, and then turn out to have nothing to do: their row of errors ends."""

from __future__ import annotations

import pytest

from .apply_world import World
from .test_catching_up import same, world

__all__ = ["world"]
pytestmark = pytest.mark.unit


def unseen_once(world: World) -> None:
    """The targets cannot be looked at, once."""
    failures = iter([True])

    def point(what: str, table: str) -> None:
        if what == "progress" and next(failures, False):
            raise OSError("connection reset")

    world.point = point


def test_a_table_that_turns_out_to_lack_nothing_is_not_tried_for_ever(world: World) -> None:
    """A new process takes all tables for behind, until it has looked at them."""
    world.groups = {"s.a"}
    world.applier().catch_up()
    unseen_once(world)
    applier = world.applier()
    assert (applier.catch_up(), world.errors, world.failing) == ([], ["s.a"], {"s.a"})
    assert applier.catch_up() == []
    same(world, applier)


def test_a_table_for_which_no_batch_waits_is_not_tried_for_ever(world: World) -> None:
    """It stands before the front, and no batch up to there has changes of it."""
    world.groups = {"s.b"}
    applier = world.applier()
    applier.catch_up()
    world.baseline("s.b", after=7)()
    unseen_once(world)
    assert (applier.catch_up(), world.errors, world.failing) == ([], ["s.b"], {"s.b"})
    assert applier.catch_up() == []
    same(world, applier)
