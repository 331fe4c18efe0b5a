"""What the first rows of tables show without Spark: as they lie in files, and as changes of source tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..errors import UnsupportedError
from ..model.types import spark_type


@dataclass(frozen=True)
class TableSample:
    """The first rows of a table.

    Attributes:
        rows: values as they lie in the files; of text kinds as text, nothing as NULL.
        total: how many rows there are; None: they were not counted.
        text: whether all values are text.
        older: the first rows of files with other columns.
    """

    rows: pa.Table
    total: int | None
    text: bool = False
    older: tuple[TableSample, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The columns' names, in order."""
        return list(self.rows.column_names)

    def types(self) -> dict[str, str]:
        """The columns with their Spark SQL types, `string` for those of text kinds."""
        return {f.name: _type_of(f.type) for f in self.rows.schema}

    def named(self, names: Mapping[str, str]) -> list[dict[str, Any]]:
        """The rows as dictionaries of some columns: wanted name -> column."""
        some = self.rows.select(list(dict.fromkeys(names.values())))
        return [{want: row[have] for want, have in names.items()} for row in some.to_pylist()]


def _type_of(kind: pa.DataType) -> str:
    try:
        return spark_type(kind)
    except UnsupportedError:  # a type that the lake does not support
        return str(kind)


@dataclass(frozen=True)
class Glance:
    """The first rows of a source table.

    Attributes:
        name: the source table.
        key: its key, as far as the tables say it.
        columns: its columns with types.
        changes: the first images of changes: canonical headers by name, and `changed` and `carried`, names in
            the change mask and those that the image carries (None: not told, or all).
    """

    name: str
    key: list[str]
    columns: dict[str, str]
    changes: list[dict[str, Any]] = field(default_factory=list)
