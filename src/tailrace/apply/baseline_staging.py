"""Staging tables, which hold baselines until they are mapped: a Delta table for each number of a baseline.

Capture fills the folder of the baseline that it reads, and apply removes the folders of earlier baselines. So
they never work on the same folder.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyarrow.fs import FileSelector, FileType

from ..lake import delta as lake
from ..lake import guards
from ..lake.file_names import file_name


@dataclass(frozen=True)
class Staging:
    """The staging tables below a folder: `<number>/<schema.table>`.

    >>> Staging("home/staging").path("s.t", 2)
    'home/staging/2/s.t'
    """

    root: str

    def path(self, table: str, number: int) -> str:
        """The staging table of a baseline."""
        return f"{self.root}/{number}/{file_name(table)}"

    def remove(self, table: str, number: int) -> None:
        """Removes the staging table of a baseline, if there is one."""
        _remove(self.path(table, number))

    def done(self, table: str, number: int) -> None:
        """Removes the staging tables of a table up to a number: they are not read again."""
        for other in self._numbers():
            if other <= number:
                self.remove(table, other)

    def clear(self, table: str) -> None:
        """Removes all staging tables of a table."""
        self.done(table, max(self._numbers(), default=0))

    def _numbers(self) -> list[int]:
        fs, folder = lake.filesystem(self.root)
        found = fs.get_file_info(FileSelector(folder, allow_not_found=True))
        return sorted(int(one.base_name) for one in found if one.base_name.isdecimal())


def _remove(path: str) -> None:
    guards.check()
    fs, folder = lake.filesystem(path)
    if fs.get_file_info(folder).type == FileType.Directory:
        fs.delete_dir(folder)
