"""One data file of a Qlik table, as its path, its DFM and its head describe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import dfm
from .names import LOAD, stem_of


@dataclass(frozen=True)
class DataFile:
    """One data file.

    Attributes:
        path: below the root, with `/`.
        kind: `parquet`, `csv` or `json`.
        folder: the table's folder (its last name), without that of a partition.
        partition: the partition that its folder names.
        meta: its DFM.
        names: its columns in order.
        types: their types as the file itself tells them (Parquet), to tell layouts apart.
        ends, delimiter: of its lines and values, when the file was looked at.
    """

    path: str
    kind: str
    folder: str
    partition: str | None = None
    meta: dfm.Dfm | None = None
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    ends: str | None = None
    delimiter: str | None = None

    @property
    def stem(self) -> str:
        """The file's name without extensions."""
        return stem_of(self.path.rpartition("/")[2])

    @property
    def is_load(self) -> bool:
        """Whether its name or its DFM says that it is of a full load."""
        return bool(LOAD.fullmatch(self.stem)) or (self.meta is not None and self.meta.content == "data")

    @property
    def layout(self) -> tuple[Any, ...]:
        """What files must have in common to be read together."""
        keys = () if self.meta is None else tuple((c.name, c.spark(), c.key) for c in self.meta.columns)
        options = () if self.meta is None else tuple(sorted(map(str, self.meta.options.items())))
        return (self.kind, self.names, self.types, keys, options, self.ends, self.delimiter)

    @property
    def age(self) -> tuple[Any, ...]:
        """Sort key by when a file's layout began: full loads first, then by version, start and name."""
        full = (
            self.meta.content == "data"
            if self.meta and self.meta.content
            else bool(LOAD.fullmatch(self.stem))
        )
        from_dfm = (self.meta.version, self.meta.start or "") if self.meta else (0, "")
        return (not full, *from_dfm, self.stem)
