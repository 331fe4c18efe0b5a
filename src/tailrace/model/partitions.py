"""Partitions of a target as they are written in a task file: `day(made)`, `bucket(16, id)`, `region`."""

from __future__ import annotations

import re
from dataclasses import dataclass

TIMES = ("year", "month", "day", "hour")
_FORM = re.compile(
    r"(?:(?P<time>year|month|day|hour)\(\s*(?P<of>.+?)\s*\)|bucket\(\s*(?P<many>\d+)\s*,\s*(?P<by>.+?)\s*\))"
)


@dataclass(frozen=True)
class PartitionField:
    """A field by which a table is partitioned.

    Attributes:
        column: the column.
        transform: `identity`, `bucket`, or one of `TIMES`.
        buckets: the number of buckets.
    """

    column: str
    transform: str = "identity"
    buckets: int = 0

    @staticmethod
    def parse(text: str) -> PartitionField:
        """Returns the field of a text.

        >>> PartitionField.parse("day(made)")
        PartitionField(column='made', transform='day', buckets=0)
        >>> PartitionField.parse("bucket(16, id)"), PartitionField.parse("region").transform
        (PartitionField(column='id', transform='bucket', buckets=16), 'identity')

        Raises:
            ValueError: the text has another form.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            if "(" in text or not text.strip():
                known = ", ".join([*(f"{one}(column)" for one in TIMES), "bucket(16, column)"])
                raise ValueError(f"{text!r} is no partition: write column, {known}")
            return PartitionField(text.strip())
        if found["time"]:
            return PartitionField(found["of"], found["time"])
        if not int(found["many"]):
            raise ValueError(f"{text!r} has no buckets")
        return PartitionField(found["by"], "bucket", int(found["many"]))
