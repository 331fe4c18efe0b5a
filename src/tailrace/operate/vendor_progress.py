"""The progress of the targets of `tailrace apply`, and the changes that it includes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..apply.vendor import late_changes, mapping_notes, numbering
from ..apply.vendor.applied_files import Files
from ..apply.vendor.full_loads import Found, FullLoads
from ..apply.vendor.incoming import reached
from ..apply.vendor.late_changes import LateChanges, Passed
from ..apply.vendor.mapping_notes import MappingNotes
from ..apply.vendor.numbering import Numbers
from ..model.change import ChangeTable
from ..targets.base import Target


@dataclass(frozen=True)
class VendorProgress:
    """The progress that one call makes, by table.

    Attributes:
        passed, full, maps: the notes of earlier calls. changes, numbers: the change tables as they were read,
        and the relation of their numbers and sequences. digests: the digests of their mappings. reached: the
        progress of the targets when the call began.
    """

    passed: LateChanges
    full: FullLoads
    maps: MappingNotes
    changes: Mapping[str, ChangeTable]
    numbers: Mapping[str, Numbers]
    digests: Mapping[str, str]
    reached: Mapping[str, int]

    @staticmethod
    def of(
        root: str,
        task: str,
        passed: LateChanges,
        changes: Mapping[str, ChangeTable],
        numbers: Mapping[str, Numbers],
        digests: Mapping[str, str],
        reached: Mapping[str, int],
    ) -> VendorProgress:
        """Returns the progress of a call under a name (`task`), with notes below `root`."""
        full, maps = FullLoads(root, task), MappingNotes(root, task)
        return VendorProgress(passed, full, maps, changes, numbers, digests, reached)

    def check(self, where: str, *, skip_late: bool) -> dict[str, int]:
        """Returns the maximum number of late changes by table.

        Raises:
            ApplyError: there are late changes, and they are not skipped; rows of a full load are late; or a
                target was filled through another mapping.
        """
        self.maps.check(self._maps())
        self.full.check(self._loads())
        found = {table: one.passed for table, one in self.numbers.items()}
        late = self.passed.late(found, self.reached, self._files)
        late_changes.refuse({} if skip_late else late, where)
        return late

    def begins(self) -> None:
        """Notes the changes that the targets are about to get."""
        self.maps.note(self._maps())
        self.full.note(self._loads())
        ends = {t: Passed(one.end(self.reached[t]), one.files) for t, one in self.numbers.items()}
        self.passed.plan(ends, self.reached)

    def ends(self, target: Target) -> None:
        """Notes the changes that the targets have."""
        self.passed.note({t: self._passed(t, reached(target, t)) for t in self.numbers}, self.reached)

    def _passed(self, table: str, progress: int) -> Passed:
        """Returns the changes that a target has. They are read again if it stopped before their end."""
        if self.numbers[table].end_at(progress):
            return Passed(progress, self.numbers[table].files)
        return Passed(progress, self._files(table, progress) if progress >= 0 else {})

    def _files(self, table: str, upto: int) -> Files:
        return numbering.look(self.changes[table], upto).passed

    def _maps(self) -> mapping_notes.Found:
        return {table: (self.digests[table], self.reached[table]) for table in self.numbers}

    def _loads(self) -> Found:
        return {table: (one.load, self.reached[table]) for table, one in self.numbers.items()}


def followed(changes: ChangeTable, numbers: Numbers, reached: int) -> ChangeTable:
    """Returns the changes with numbers that can express the target's progress, given its current one
    (`reached`)."""
    return changes if numbers.unclear else numbering.followed(changes, numbers, reached)
