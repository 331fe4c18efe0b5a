"""Rows of Delta tables are read by Arrow alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import tailrace
from tailrace.lake.reading import dataset

from ..examples import rounds

pytestmark = pytest.mark.unit
CODE = Path(tailrace.__file__).parent
ENDS = """
import sys
from deltalake import DeltaTable
from tailrace.lake.reading import dataset
batches = dataset(DeltaTable(sys.argv[1])).to_batches(batch_size=1000)
print(next(iter(batches)).num_rows)
"""
"""Ends with most of the files unread, and Arrow's threads at work on them."""


def test_a_version_in_folders_of_any_name(tmp_path: Path) -> None:
    table = str(tmp_path / "Größe ~1; 100%")
    rows = pa.table({"p": ["a b/c%", "é", None, "x:y"], "v": [1, 2, 3, 4]})
    write_deltalake(table, rows, partition_by=["p"])
    write_deltalake(table, rows, mode="append")
    assert dataset(DeltaTable(table, version=0)).to_table().sort_by("v").equals(rows)
    assert dataset(DeltaTable(table)).count_rows() == 8


@pytest.mark.slow
def test_a_process_ends_in_the_middle_of_a_read(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    for n in range(16):
        write_deltalake(
            table, pa.table({"n": [n] * 20_000, "v": [str(k) for k in range(20_000)]}), mode="append"
        )
    for _ in range(rounds(1)):
        command = [sys.executable, "-c", ENDS, table]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr


def test_nobody_reads_through_a_file_system_in_python() -> None:
    """Which is what delta-rs gives Arrow."""
    reads = re.compile(r"\.to_pyarrow_(table|dataset)\(")
    found = {path.name for path in CODE.rglob("*.py") if reads.search(path.read_text())}
    assert found == set()
