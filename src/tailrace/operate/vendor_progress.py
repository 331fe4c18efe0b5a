"""How far the targets of `tailrace apply` are, and what of the change tables that is."""

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
    """One call's part of it, by table.

    Attributes:
        passed, full, maps: what earlier calls wrote down.
        changes, numbers: the change tables as they were read, and how their numbers go with their sequences.
        digests: of their mappings.
        reached: where the targets stood when the call began.
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
        """That of a call under a name (`task`), whose notes are below `root`."""
        full, maps = FullLoads(root, task), MappingNotes(root, task)
        return VendorProgress(passed, full, maps, changes, numbers, digests, reached)

    def check(self, where: str, *, skip_late: bool) -> dict[str, int]:
        """How many changes have come late, at the most, by table, if any.

        Raises:
            ApplyError: some have, and are not to be skipped; or rows of a full load have; or a target was
                filled through another mapping.
        """
        self.maps.check(self._maps())
        self.full.check(self._loads())
        found = {table: one.passed for table, one in self.numbers.items()}
        late = self.passed.late(found, self.reached, self._look)
        late_changes.refuse({} if skip_late else late, where)
        return late

    def begins(self) -> None:
        """Writes down what the targets are going to get, before they do."""
        self.maps.note(self._maps())
        self.full.note(self._loads())
        ends = {t: Passed(one.end(self.reached[t]), one.files) for t, one in self.numbers.items()}
        self.passed.plan(ends, self.reached)

    def ends(self, target: Target) -> None:
        """Writes down what the targets have passed."""
        self.passed.note({t: self._passed(t, reached(target, t)) for t in self.numbers}, self.reached)

    def _passed(self, table: str, stands: int) -> Passed:
        """What a target has passed of its changes; read once more where it has stopped before their end."""
        if self.numbers[table].end_at(stands):
            return Passed(stands, self.numbers[table].files)
        return Passed(stands, self._look(table, stands) if stands >= 0 else {})

    def _look(self, table: str, upto: int) -> Files:
        return numbering.look(self.changes[table], upto).passed

    def _maps(self) -> mapping_notes.Found:
        return {table: (self.digests[table], self.reached[table]) for table in self.numbers}

    def _loads(self) -> Found:
        return {table: (one.load, self.reached[table]) for table, one in self.numbers.items()}


def followed(changes: ChangeTable, numbers: Numbers, reached: int) -> ChangeTable:
    """The changes, with numbers that can express the target's progress, which has `reached` one."""
    return changes if numbers.unclear else numbering.followed(changes, numbers, reached)
