"""The mapping from a source table to a target, as a task file declares it, without any layout."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ...config.policies import MEDIUM
from ...config.table_settings import TableSettings
from ...model.change import split
from ...state import lifecycle
from ...targets.multi_source import TargetLocation

if TYPE_CHECKING:
    from ...config.task import Task

PLACEHOLDERS = ("@SCHEMA", "@TABLE", "@TASK")
STAGED_FOR = "tailrace.mapping"
"""Key in the commit info of a staging table: the digest of the mapping that its rows are for."""


@dataclass(frozen=True)
class TableMap:
    """The mapping from one source table to a target, or to a part of one.

    Attributes:
        source: `schema.table`.
        target: the target's name.
        where: Spark SQL over the source's columns; rows for which it is not true are left out.
        columns: target column -> source column, or Spark SQL over the source's columns. Source columns that
            are neither renamed here nor dropped keep their names.
        drop: source columns that the target does not have.
        constants: target column -> its value in every row of this source.
        key: the target's key; by default the constants and the source's key.
    """

    source: str
    target: str
    where: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether it changes nothing."""
        return self == TableMap(self.source, self.source)

    @property
    def partition(self) -> dict[str, str]:
        """The constants in the target's key, which identify the rows of this source."""
        return {n: v for n, v in self.constants.items() if not self.key or n in self.key}

    @property
    def digest(self) -> str:
        """A text that differs for different mappings; empty if the mapping changes nothing.

        >>> TableMap("s.t", "s.t").digest, len(TableMap("s.t", "s.u").digest)
        ('', 16)
        """
        if self.plain:
            return ""
        text = json.dumps(asdict(self), sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def map_of(settings: TableSettings, table: str, task: str) -> TableMap:
    """The mapping that settings give a table.

    >>> map_of(TableSettings(constants={"site": "@SCHEMA"}), "eu.orders", "shop").constants
    {'site': 'eu'}
    """
    constants = constants_of(settings.constants, table, task)
    return TableMap(
        table,
        settings.target or table,
        settings.where,
        dict(settings.columns),
        tuple(settings.drop),
        constants,
        tuple(settings.key),
    )


def task_map(task: Task, table: str) -> TableMap:
    """The mapping that a task gives a table."""
    return map_of(task.table(table), table, task.name)


def constants_of(given: Mapping[str, str], table: str, task: str) -> dict[str, str]:
    """Constant columns with `@SCHEMA`, `@TABLE` and `@TASK` replaced.

    >>> constants_of({"site": "@SCHEMA", "kind": "x"}, "eu.orders", "shop")
    {'site': 'eu', 'kind': 'x'}
    >>> constants_of({"site": "@SCHEMA", "of": "@TABLE"}, "eu.order.lines", "shop")
    {'site': 'eu', 'of': 'order.lines'}
    """
    schema, name = split(table)
    known = dict(zip(PLACEHOLDERS, (schema, name, task), strict=True))
    return {column: known.get(value, value) for column, value in given.items()}


def place_of(one: TableMap, named: Mapping[str, str] | None = None) -> TargetLocation:
    """The location of a table's rows in a target, which other sources may share if the key has a constant.

    `named`: the names of targets that were renamed (`TableStates.target_names`).

    >>> place_of(TableMap("us.t", "all.t", constants={"site": "us"}))
    TargetLocation(target='all.t', partition={'site': 'us'})
    """
    return TargetLocation((named or {}).get(one.source, one.target), one.partition)


def applied_places(task: Task, tables: Sequence[str]) -> dict[str, TargetLocation]:
    """The locations of the rows of those of the tables that are applied."""
    named = lifecycle.read(task).target_names
    applied = [t for t in tables if task.policy(t).level >= MEDIUM]
    return {t: place_of(task_map(task, t), named) for t in applied}
