"""Maps change tables of other products, as a file of table settings says."""

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
from .change_stats import relation_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class MappedTables:
    """Change tables as their targets have them, by name of the source table.

    Attributes:
        changes: the changes.
        target_of: returns the target of a table; None if each target has the name of its table.
        digests: the digest of each mapping (`TableMap.digest`).
    """

    changes: dict[str, ChangeTable]
    target_of: Callable[[str], TargetLocation] | None
    digests: dict[str, str]


def map_vendor_tables(
    spark: SparkSession,
    changes: Mapping[str, ChangeTable],
    settings: Callable[[str], TableSettings] | None,
    task: str,
    incomplete: Collection[str] = (),
) -> MappedTables:
    """Maps change tables to their targets.

    Args:
        spark: the session.
        changes: the change tables by name of the source table.
        settings: the settings of each; None without a file of settings.
        task: the value of `@TASK`.
        incomplete: tables that were applied before, and may not have all of their columns now.

    Raises:
        ConfigError: all mistakes in the mappings.
    """
    if settings is None:
        return MappedTables(dict(changes), None, dict.fromkeys(changes, ""))
    maps = {name: map_of(settings(name), name, task) for name in changes}
    layouts = {name: relation_of(table) for name, table in changes.items()}
    wrong = [
        f"{n}: {w}"
        for n, m in maps.items()
        for w in (
            *(() if n in incomplete else unknown_drops(m, changes[n].columns)),
            *mistakes(lambda: spark, m, layouts[n]),
        )
    ]
    if not wrong:
        prepared = {n: prepare(lambda: spark, m, layouts[n]) for n, m in maps.items()}
        for several in shared(list(maps.values())).values():
            wrong += clashes([prepared[m.source] for m in several])
    if wrong:
        raise ConfigError("\n".join(wrong), where="--tables", hint="docs/mapping.md says what is valid there")
    tables = {n: t if maps[n].plain else mapped(t, prepared[n]) for n, t in changes.items()}
    targets = {n: place_of(m) for n, m in maps.items()}
    return MappedTables(tables, targets.__getitem__, {n: m.digest for n, m in maps.items()})
