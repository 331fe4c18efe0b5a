"""A target is filled through one mapping: another one is told, whatever happened to the calls before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.apply.mapping.table_map import TableMap
from tailrace.apply.vendor.mapping_notes import MappingNotes
from tailrace.errors import ApplyError

pytestmark = pytest.mark.unit
PLAIN, SOME = TableMap("s.t", "s.t").digest, TableMap("s.t", "s.t", where="id = 1").digest


def call(root: Path, digest: str, reached: int, task: str = "task") -> None:
    notes, found = MappingNotes(str(root), task), {"s.t": (digest, reached)}
    notes.check(found)
    notes.note(found)


@pytest.mark.parametrize(("one", "other"), [(SOME, PLAIN), (PLAIN, SOME)])
def test_another_mapping_is_refused_once_the_target_is_filled(tmp_path: Path, one: str, other: str) -> None:
    call(tmp_path, other, -1)  # ended before it filled anything
    call(tmp_path, one, -1)
    call(tmp_path, one, 7)
    with pytest.raises(ApplyError, match="the mapping has changed") as told:
        call(tmp_path, other, 7)
    assert told.value.where == "s.t"
    call(tmp_path, one, 7)
    call(tmp_path, other, -1)  # the target was removed
    call(tmp_path, other, 9)


def test_a_target_that_an_older_version_filled_keeps_the_mapping_of_the_next_call(tmp_path: Path) -> None:
    call(tmp_path, SOME, 7)
    with pytest.raises(ApplyError):
        call(tmp_path, PLAIN, 7)
    call(tmp_path, PLAIN, 7, task="since")
