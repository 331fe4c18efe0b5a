"""Which of the changes in files no file had before: literal files."""

from __future__ import annotations

import pytest

from tailrace.apply.vendor.applied_files import FilePart, late

pytestmark = pytest.mark.unit


def part(*changes: int) -> FilePart:
    return FilePart(len(changes), sum(1 << n for n in changes), f"{max(changes):02}")


@pytest.mark.parametrize(
    ("known", "now", "many"),
    [
        ({"a": (1, 2, 4)}, {"a": (1, 2, 4)}, 0),
        ({"a": (1, 2, 4)}, {}, 0),
        ({"a": (1, 2, 4)}, {"b": (3,)}, 1),
        ({"a": (1, 2, 4)}, {"a": (1, 2, 4), "b": (3,)}, 1),
        ({"a": (1, 2, 4)}, {"a": (1, 2, 3, 4)}, 1),
        ({"a": (1, 2, 4)}, {"a": (1, 3, 4)}, 3),  # one of them, who knows
        ({"a": (1, 2, 4)}, {"a": (2, 4)}, 0),
        ({"a": (11, 12, 14)}, {"a": (1, 2)}, 2),
        ({"a": (1,), "b": (2,), "c": (4,)}, {"d": (1, 2, 4)}, 0),
        ({"a": (1,), "b": (2,), "c": (4,)}, {"c": (4,), "d": (1, 2)}, 0),
        ({"a": (1,), "b": (2,), "c": (4,)}, {"c": (4,), "d": (1, 2), "e": (3,)}, 3),
        ({"a": (1,), "b": (2,), "c": (4,)}, {"d": (2, 4)}, 0),  # purged up to 1
        ({"a": (1,), "b": (2,)}, {"c": (1,), "d": (2,)}, 0),
        ({"a": (1,), "b": (2,)}, {"c": (1,), "d": (3,)}, 1),
        ({"a": (2, 3), "b": (1,)}, {"a": (3,), "b": (1, 2)}, 0),  # a row that is in both is read of either
        ({"a": (2, 3), "b": (1, 5)}, {"a": (3,), "b": (1, 4, 5)}, 1),
    ],
)
def test_late(known: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]], many: int) -> None:
    found, had = ({f: part(*changes) for f, changes in side.items()} for side in (now, known))
    assert late(found, had) == many


def test_files_that_were_gone_before_may_come_back_in_others() -> None:
    known = {"a": part(1, 2), "b": part(3, 4), "c": part(5)}
    assert late({"c": part(5), "again": part(1, 2)}, known, {"a", "b"}) == 0
    assert late({"c": part(5), "again": part(1, 2, 3, 4)}, known, {"a", "b"}) == 0
    assert late({"c": part(5), "window": part(2, 3, 4)}, known, {"a", "b"}) == 0
    assert late({"c": part(5), "other": part(0, 3)}, known, {"a", "b"}) == 2
