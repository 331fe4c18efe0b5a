"""A target that is removed is there until all of it is gone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.capture.snapshot_sink import DeltaLanding
from tailrace.lake import delta as lake

pytestmark = pytest.mark.unit


class Cut:
    """A file system that removes so many files, and then nothing more; Delta's log first, if it may."""

    def __init__(self, real: Any, left: int) -> None:
        self._real, self._left = real, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def delete_file(self, path: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError("killed")
        self._real.delete_file(path)

    def delete_dir(self, path: str) -> None:
        for one in sorted(Path(path).rglob("*"), key=lambda p: "_delta_log" not in p.parts):
            if one.is_file():
                self.delete_file(str(one))
        self._real.delete_dir(path)


def test_a_removal_that_is_cut_off_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "s.t", lake.filesystem
    for _ in range(3):
        lake.append(str(path), pa.table({"id": [1]}))
    for left in range(8):  # three files of rows, and those of the log
        monkeypatch.setattr(lake, "filesystem", lambda p, n=left: (Cut(real(p)[0], n), real(p)[1]))
        with suppress(OSError):
            DeltaLanding(str(path)).drop("s.t")
        assert lake.exists(str(path)) or not list(path.glob("*.parquet"))
    monkeypatch.undo()
    DeltaLanding(str(path)).drop("s.t")
    assert not list(path.glob("*.parquet"))
