"""A target that is removed is there until all of it is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.capture.snapshot_sink import DeltaLanding
from tailrace.lake import delta as lake

pytestmark = pytest.mark.unit


class Full:
    """A file system that removes so many things, and then nothing more."""

    def __init__(self, real: Any, left: int) -> None:
        self._real, self._left = real, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return self._counted(found) if name.startswith("delete_") else found

    def _counted(self, remove: Any) -> Any:
        def call(path: str) -> None:
            self._left -= 1
            if self._left < 0:
                raise OSError("killed")
            remove(path)

        return call


def test_a_removal_that_is_cut_off_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = str(tmp_path / "s.t"), lake.filesystem
    for _ in range(3):
        lake.append(path, pa.table({"id": [1]}))
    (tmp_path / "s.t" / "_change_data").mkdir()
    for left in range(6):  # three files, two folders
        monkeypatch.setattr(lake, "filesystem", lambda p, n=left: (Full(real(p)[0], n), real(p)[1]))
        if not lake.exists(path):
            assert left > 1
            break
        try:
            DeltaLanding(path).drop("s.t")
        except OSError:
            assert lake.exists(path)
    assert not Path(path).exists()
