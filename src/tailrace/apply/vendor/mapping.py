"""Change tables that others made, through the mappings that a file gives them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...config.table_settings import TableSettings
from ...errors import ConfigError
from ...model.change import ChangeTable
from ...targets.multi_source import TargetLocation
from ..mapping.mapped import mapped
from ..mapping.multi_source import clashes, shared
from ..mapping.prepare import mistakes, prepare
from ..mapping.static_checks import unknown_drops
from ..mapping.table_map import map_of, place_of
from .incoming import relation_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class MappedTables:
    """Change tables as their targets', by the source table's name.

    Attributes:
        changes: the changes.
        places: where the rows of each table are (None: in targets of their own names).
        digests: of each the mapping's (`TableMap.digest`).
    """

    changes: dict[str, ChangeTable]
    places: Callable[[str], TargetLocation] | None
    digests: dict[str, str]


def map_vendor_tables(
    spark: SparkSession,
    changes: Mapping[str, ChangeTable],
    said: Callable[[str], TableSettings] | None,
    task: str,
    some: Collection[str] = (),
) -> MappedTables:
    """The changes as their targets'.

    Args:
        spark: the session.
        changes: by name of the source table.
        said: the settings of each; None: there are none.
        task: what `@TASK` stands for.
        some: tables that had changes before, and now perhaps not all of their columns.

    Raises:
        ConfigError: everything that is wrong with the mappings.
    """
    if said is None:
        return MappedTables(dict(changes), None, dict.fromkeys(changes, ""))
    maps = {name: map_of(said(name), name, task) for name in changes}
    layouts = {name: relation_of(table) for name, table in changes.items()}
    wrong = [
        f"{n}: {w}"
        for n, m in maps.items()
        for w in (
            *(() if n in some else unknown_drops(m, changes[n].columns)),
            *mistakes(lambda: spark, m, layouts[n]),
        )
    ]
    if not wrong:
        made = {n: prepare(lambda: spark, m, layouts[n]) for n, m in maps.items()}
        for many in shared(list(maps.values())).values():
            wrong += clashes([made[m.source] for m in many])
    if wrong:
        raise ConfigError(
            "\n".join(wrong), where="--tables", hint="docs/mapping.md says what may stand there"
        )
    through = {n: t if maps[n].plain else mapped(t, made[n]) for n, t in changes.items()}
    places = {n: place_of(m) for n, m in maps.items()}
    return MappedTables(through, places.__getitem__, {n: m.digest for n, m in maps.items()})
