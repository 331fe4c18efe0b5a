"""Maintenance of Iceberg tables: joins small files, expires snapshots, and deletes files that no snapshot
has."""

from __future__ import annotations

from ..thinning import Past
from .tables import IcebergTables


def maintain(tables: IcebergTables, name: str, small_files: int, past: Past) -> None:
    """Maintains a table, see `Target.maintain`."""
