"""What `apply` looks at before and after it reads a vendor's files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.errors import FormatError
from tailrace.operate.vendor_reading import WholeFiles

pytestmark = pytest.mark.unit


def test_files_that_come_while_others_are_looked_at_are_looked_at_too(tmp_path: Path) -> None:
    def odd(*_: object) -> list[str]:
        """Files with less than two lines."""
        return [p.name for p in sorted(tmp_path.iterdir()) if len(p.read_text().splitlines()) < 2]

    side: Any = SimpleNamespace(path=str(tmp_path), options=None, form=SimpleNamespace(complete=odd))
    spark: Any = None
    (tmp_path / "a.csv").write_text("1\n2\n")
    files = WholeFiles(spark, side, fail=True)
    files.again()
    (tmp_path / "b.csv").write_text("1\n")
    with pytest.raises(FormatError, match=r"b\.csv") as error:
        files.again()
    assert error.value.where == str(tmp_path)
    assert WholeFiles(spark, side, fail=False).notes == ["b.csv"]
    side.path = str(tmp_path / "a.csv")  # one file
    WholeFiles(spark, side, fail=False).again()
