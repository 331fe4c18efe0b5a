"""The tables of a task's targets, if they are made of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..lake.storage import is_remote
from .delta.tables import DeltaTables

if TYPE_CHECKING:
    from ..config.task import Task
    from ..lake.iceberg.partitions import PhysicalLayout
    from ..lake.iceberg.tables import IcebergTables
    from ..lake.table import LakeTables


def target_tables(task: Task) -> LakeTables:
    """Returns the tables of a task's targets. Not for a target that is a database."""
    return iceberg_tables(task) if task.target.type == "iceberg" else DeltaTables(task.target.path)


def physical_layout(task: Task, table: str) -> PhysicalLayout:
    """Returns the partitions and the order that a task gives a new Iceberg table."""
    from ..lake.iceberg.partitions import PhysicalLayout

    one = task.table(table)
    return PhysicalLayout(tuple(one.partition), tuple(one.sort))


def iceberg_tables(task: Task) -> IcebergTables:
    """Returns the Iceberg tables of a task's targets.

    Raises:
        ConfigError: pyiceberg is not installed.
    """
    try:
        from ..lake.iceberg.tables import IcebergTables
    except ImportError as error:
        raise ConfigError(
            f"Iceberg targets need pyiceberg: {error}",
            where="target.type",
            hint="pip install 'tailrace[iceberg]'",
        ) from None
    properties = task.target.catalog_properties
    if is_remote(task.target.path) and properties["type"] == "sql" and "uri" not in task.target.catalog:
        properties["uri"] = f"sqlite:///{task.folder}/{task.name}-catalog.db"  # SQLite needs a local file
    name = properties.pop("name")
    # Other catalogs decide where their tables are.
    warehouse = properties.get("warehouse", "") if properties["type"] == "sql" else ""
    return IcebergTables(name, tuple(sorted(properties.items())), warehouse, task.target.table_name)
