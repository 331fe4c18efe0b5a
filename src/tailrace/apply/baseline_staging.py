"""Staging tables, which hold baselines until they are mapped: a Delta table for each number of a baseline.

Capture fills the folder of the baseline that it reads, and apply removes the folders of earlier baselines. So
they never work on the same folder.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lake import guards
from ..lake.file_names import file_name
from ..lake.folders import remove_folder, subfolders


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
        return sorted(int(name) for name in subfolders(self.root) if name.isdecimal())


def _remove(path: str) -> None:
    guards.check()
    remove_folder(path)
