"""Schedules that found something, shrunk: each is run again by every test run."""

from __future__ import annotations

from .applying import Setup
from .world import Step

KEPT: dict[str, tuple[Setup, tuple[Step, ...]]] = {
    "the first batch of a table is stored while the record is shortened": (
        Setup(tables=1, keyless=True, max_changes=1, opened=True),
        (
            Step("land", 1),
            Step("land", 1),
            Step("transaction"),
            Step("capture"),
            Step("transaction", 1),
            Step("capture"),
            Step("shorten"),
            Step("shorten", 0, 1, at=(5, Step("store", 1))),
            Step("apply", at=(10, Step("store", 2, 1))),
        ),
    ),
    "a table is removed after its new baseline has landed, and before that is recorded": (
        Setup(tables=2, group=True, together=1, max_changes=1),
        (
            Step("look", 0, 2),
            Step("order", 1, at=(1, Step("order", 2))),
            Step("land"),
            Step("land", 1, 2),
            Step("transaction"),
            Step("capture", at=(1, "kill")),
            Step("transaction"),
            Step("land", 0, 1, at=(38, "kill")),
            Step("order", 3),
        ),
    ),
    "a table is altered, loaded, and altered back": (
        Setup(tables=1, keyless=True, group=True, together=2, max_changes=2),
        (
            Step("capture"),
            Step("order", 5, 0),
            Step("ddl"),
            Step("land", 0, 1),
            Step("look"),
            Step("ddl", 47172),
            Step("transaction"),
        ),
    ),
    "order numbers are given twice when two commands meet": (
        Setup(tables=2, together=2, max_changes=8),
        (Step("order", 0, -1, at=(2, Step("order", 3, 1))),),
    ),
    "a group that failed in the first slice has the counts of the second": (
        Setup(tables=1, keyless=True, group=True, max_changes=1),
        (
            Step("apply", at=(4, Step("land", 0, 1))),
            Step("transaction"),
            Step("refuses", 0, 1),
            Step("capture"),
            Step("store"),
            Step("transaction"),
            Step("capture"),
            Step("store", at=(28, "kill")),
            Step("transaction", 1),
            Step("capture", at=(15, Step("apply"))),
            Step("store"),
            Step("apply"),
        ),
    ),
    "a group that failed in the first slice, and a baseline that lands meanwhile": (
        Setup(tables=2, keyless=True, group=True, max_changes=2),
        (
            Step("land", 0, 1),
            Step("transaction"),
            Step("capture", at=(19, "kill")),
            Step("transaction"),
            Step("store"),
            Step("capture"),
            Step("store"),
            Step("land", at=(4, "kill")),
            Step("refuses"),
            Step("land"),
            Step("apply", 0, 2),
        ),
    ),
    "an order is lost that two others have overtaken": (
        Setup(tables=2, group=True, together=2, max_changes=2, opened=True),
        (
            Step("land", 0, 2),
            Step("store", 0, 2, at=(4, Step("capture", 1))),
            Step("order", 2, 0),
            Step("land", 1, 2, at=(10, "kill")),
            Step("transaction"),
            Step("kill"),
            Step("capture"),
            Step("land", 0, 2, at=(2, Step("order", 1, -1))),
            Step("apply", 0, 1),
        ),
    ),
    "an order that comes while capture carries out others is passed by": (
        Setup(tables=3, group=True, together=1, max_changes=1000),
        (Step("capture", at=(15, Step("order", 3, 0))),),
    ),
    "a target that somebody removed is made again, with later changes only": (
        Setup(tables=1),
        (
            Step("transaction"),
            *[Step("land")] * 3,
            Step("lose"),
            Step("transaction", 1),
            Step("capture", 9),
            Step("store", 9),
            Step("apply"),
        ),
    ),
}
"""What it is about -> what does not change in it, and the steps."""
