"""Where subscriptions stand in a key log: before and after it is flushed, with several writers, anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tailrace.model.positions import ChangeRange

from tailrace.errors import OvertakenError
from tailrace.keylog.key_log import KeyLog, Standing
from tailrace.lake import delta as lake

pytestmark = pytest.mark.unit


def keylog(folder: Path, *, at_once: bool = True) -> KeyLog:
    return KeyLog(str(folder / "keylog"), app_id="task", run_id="1", at_once=at_once)


def test_what_waits_counts_and_is_visible_at_once(tmp_path: Path) -> None:
    mine = keylog(tmp_path, at_once=False)
    for table, reached in (("s.t", 3), ("s.u", -1)):
        mine.begin(table, reached)
    mine.flush()
    first, second = ChangeRange("s.t", 3, 9, 2), ChangeRange("s.u", -1, 9, 0)
    assert [mine.reserve(one).sort for one in (first, second)] == [0, 6]
    mine.commit([], first)
    assert (mine.standing("s.t"), mine.visible("s.t")) == (Standing(9, 2, 16), 3)
    assert keylog(tmp_path).standing("s.t") == Standing(3, 0, 0)
    mine.commit([], second)
    mine.flush()
    assert keylog(tmp_path).standing("s.t") == Standing(9, 2, 16)
    assert (mine.visible("s.t"), mine.visible("s.other")) == (9, -1)
    mine.commit([], first)  # comes again
    assert mine.standing("s.t") == Standing(9, 2, 16)


def test_a_stretch_that_is_tried_in_another_way_has_the_same_numbers(tmp_path: Path) -> None:
    mine, one = keylog(tmp_path), ChangeRange("s.t", 0, 7, 0)
    assert [mine.reserve(s).sort for s in (one, one, replace(one, flagged=2))] == [0, 0, 0]
    assert [mine.reserve(s).sort for s in (ChangeRange("s.u", 0, 2, 0), one, one)] == [7, 9, 9]


def test_a_new_baseline_counts_flagged_changes_anew(tmp_path: Path) -> None:
    mine = keylog(tmp_path)
    mine.begin("s.t", 0, baseline=1)
    mine.commit([], ChangeRange("s.t", 0, 5, 3))
    mine.begin("s.t", 5, baseline=1)
    assert keylog(tmp_path).standing("s.t").flagged == 3
    mine.begin("s.t", 5, baseline=2)
    assert keylog(tmp_path).standing("s.t") == Standing(5, 0, 0, 2)


def test_another_writer_is_noticed_and_nothing_is_written_over(tmp_path: Path) -> None:
    mine, other = keylog(tmp_path, at_once=False), keylog(tmp_path)
    mine.begin("s.t", 0)
    mine.flush()
    one = ChangeRange("s.u", 0, 7, 0)
    other.begin("s.u", 0)
    other.reserve(one)
    other.commit([], one)
    mine.reserve(ChangeRange("s.t", 0, 4, 1))
    mine.commit([], ChangeRange("s.t", 0, 4, 1))
    with pytest.raises(OvertakenError):
        mine.flush()
    assert mine.standing("s.t") == Standing(0, 0, 7)  # what stands there counts


def test_a_writer_between_the_look_and_the_commit_is_noticed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = keylog(tmp_path, at_once=False), keylog(tmp_path)
    mine.begin("s.t", 0)
    one = ChangeRange("s.t", 0, 4, 1)
    mine.reserve(one)
    mine.commit([], one)
    commit = lake.commit

    def overtaken(*given: Any, **named: Any) -> int | None:
        monkeypatch.setattr(lake, "commit", commit)
        other.begin("s.u", 0)
        other.reserve(ChangeRange("s.u", 0, 7, 0))
        other.commit([], ChangeRange("s.u", 0, 7, 0))
        return commit(*given, **named)

    monkeypatch.setattr(lake, "commit", overtaken)
    with pytest.raises(OvertakenError, match="another process has written"):
        mine.flush()
    assert keylog(tmp_path).standing("s.u") == Standing(7, 0, 7)
    assert keylog(tmp_path).standing("s.t") == Standing(None, 0, 7)
