"""Where subscriptions stand in a key log: before and after it is flushed, with several writers, anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import OvertakenError
from tailrace.keylog.key_log import KeyLog, KeyLogState
from tailrace.lake import delta as lake
from tailrace.model.positions import ChangeRange

pytestmark = pytest.mark.unit


def keylog(folder: Path, *, at_once: bool = True) -> KeyLog:
    return KeyLog(str(folder / "keylog"), app_id="task", run_id="1", at_once=at_once)


def test_what_waits_counts_and_is_visible_at_once(tmp_path: Path) -> None:
    mine = keylog(tmp_path, at_once=False)
    for table, reached in (("s.t", 3), ("s.u", -1)):
        mine.begin(table, reached)
    mine.flush()
    assert mine.reserve("s.t", ChangeRange(3, 9)).sort == 0
    assert mine.reserve("s.u", ChangeRange(None, 9)).sort == 6
    mine.commit("s.t", 9, flagged=2)
    assert (mine.state("s.t"), mine.visible("s.t")) == (KeyLogState(9, 2, 16), 3)
    assert keylog(tmp_path).state("s.t") == KeyLogState(3, 0, 0)
    mine.commit("s.u", 9)
    mine.flush()
    assert keylog(tmp_path).state("s.t") == KeyLogState(9, 2, 16)
    assert (mine.visible("s.t"), mine.visible("s.other")) == (9, -1)
    mine.commit("s.t", 9, flagged=2)  # the same commit again
    assert mine.state("s.t") == KeyLogState(9, 2, 16)


def test_a_range_that_is_tried_again_has_the_same_numbers(tmp_path: Path) -> None:
    mine, one = keylog(tmp_path), ("s.t", ChangeRange(0, 7))
    assert [mine.reserve(*each).sort for each in (one, one)] == [0, 0]
    assert [mine.reserve(*each).sort for each in (("s.u", ChangeRange(0, 2)), one, one)] == [7, 9, 9]


def test_a_new_baseline_counts_flagged_changes_anew(tmp_path: Path) -> None:
    mine = keylog(tmp_path)
    mine.begin("s.t", 0, baseline=1)
    mine.commit("s.t", 5, flagged=3)
    mine.begin("s.t", 5, baseline=1)
    assert keylog(tmp_path).state("s.t").flagged == 3
    mine.begin("s.t", 5, baseline=2)
    assert keylog(tmp_path).state("s.t") == KeyLogState(5, 0, 0, 2)


def test_another_writer_is_noticed_and_nothing_is_written_over(tmp_path: Path) -> None:
    mine, other = keylog(tmp_path, at_once=False), keylog(tmp_path)
    mine.begin("s.t", 0)
    mine.flush()
    other.begin("s.u", 0)
    other.reserve("s.u", ChangeRange(0, 7))
    other.commit("s.u", 7)
    mine.reserve("s.t", ChangeRange(0, 4))
    mine.commit("s.t", 4, flagged=1)
    with pytest.raises(OvertakenError):
        mine.flush()
    assert mine.state("s.t") == KeyLogState(0, 0, 7)  # what stands there counts


def test_a_writer_between_the_look_and_the_commit_is_noticed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = keylog(tmp_path, at_once=False), keylog(tmp_path)
    mine.begin("s.t", 0)
    mine.reserve("s.t", ChangeRange(0, 4))
    mine.commit("s.t", 4, flagged=1)
    commit = lake.commit

    def overtaken(*given: Any, **named: Any) -> int | None:
        monkeypatch.setattr(lake, "commit", commit)
        other.begin("s.u", 0)
        other.reserve("s.u", ChangeRange(0, 7))
        other.commit("s.u", 7)
        return commit(*given, **named)

    monkeypatch.setattr(lake, "commit", overtaken)
    with pytest.raises(OvertakenError, match="another process has written"):
        mine.flush()
    assert keylog(tmp_path).state("s.u") == KeyLogState(7, 0, 7)
    assert keylog(tmp_path).state("s.t") == KeyLogState(None, 0, 7)
