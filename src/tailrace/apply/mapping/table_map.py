"""What a task file says of how a source table becomes a target: its mapping, before any layout is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ...config.table_settings import TableSettings
from ...model.change import split
from ...targets.multi_source import TargetLocation

if TYPE_CHECKING:
    from ...config.task import Task

PLACEHOLDERS = ("@SCHEMA", "@TABLE", "@TASK")
STAGED_FOR = "tailrace.mapping"
"""Commit info of a staging table (`mapped_snapshots`): the digest of the mapping that its rows are for."""


@dataclass(frozen=True)
class TableMap:
    """How one source table becomes (a part of) a target.

    Attributes:
        source: `schema.table`.
        target: the target's name.
        where: Spark SQL over the source's columns; rows for which it is not true stay out. None: all rows.
        columns: target column -> source column, or Spark SQL over the source's columns. Source columns that
            none names alone, and that are not dropped, keep their names.
        drop: source columns that the target does not get.
        constants: target column -> its text in every row of this source.
        key: the target's key; empty: the constants and the source's key.
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
        """The constant columns of the target's key: what tells this source's rows from others'."""
        return {n: v for n, v in self.constants.items() if not self.key or n in self.key}

    @property
    def digest(self) -> str:
        """A word that differs when the mapping does; empty when it changes nothing.

        >>> TableMap("s.t", "s.t").digest, len(TableMap("s.t", "s.u").digest)
        ('', 16)
        """
        if self.plain:
            return ""
        words = json.dumps(asdict(self), sort_keys=True, default=list)
        return hashlib.sha256(words.encode()).hexdigest()[:16]


def map_of(said: TableSettings, table: str, task: str) -> TableMap:
    """The mapping that settings give a table.

    >>> map_of(TableSettings(constants={"site": "@SCHEMA"}), "eu.orders", "shop").constants
    {'site': 'eu'}
    """
    constants = constants_of(said.constants, table, task)
    return TableMap(
        table,
        said.target or table,
        said.where,
        dict(said.columns),
        tuple(said.drop),
        constants,
        tuple(said.key),
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
    """Where a table's rows are; with a constant in the key others may be there, too. `named`: the names of
    targets that are called otherwise (`TableStates.target_names`).

    >>> place_of(TableMap("us.t", "all.t", constants={"site": "us"}))
    TargetLocation(target='all.t', partition={'site': 'us'})
    """
    return TargetLocation((named or {}).get(one.source, one.target), one.partition)
