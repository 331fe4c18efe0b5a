"""Interprets the names of Qlik's files and of Delta tables, and describes a data file by its path, DFM and
head (spec/qlik.md §6).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from . import dfm

ENDINGS = {
    ".parquet": "parquet", ".csv": "csv", ".csv.gz": "csv", ".json": "json", ".json.gz": "json",
    ".jsonl": "json", ".jsonl.gz": "json",
}  # fmt: skip
"""Suffix of a file -> kind."""
DFM = ".dfm"
LOAD = re.compile(r"LOAD(_?\w+?_)?\d+", re.IGNORECASE)
CHANGES = re.compile(r"\d{8}-\d{9,10}(_\w+)?")


def stem_of(name: str) -> str:
    """Returns a file's name without the extensions of data and DFM files.

    >>> stem_of("20211201-112233444.csv.gz"), stem_of("LOAD00000001.dfm")
    ('20211201-112233444', 'LOAD00000001')
    """
    lower = name.lower()
    for end in sorted([*ENDINGS, DFM], key=len, reverse=True):
        if lower.endswith(end):
            return name[: -len(end)]
    return name


def kind_of(name: str) -> str | None:
    """Returns the kind of a data file by its name; None for other files.

    >>> kind_of("LOAD00000001.csv.gz"), kind_of("LOAD00000001.dfm")
    ('csv', None)
    """
    lower = name.lower()
    return next((kind for end, kind in ENDINGS.items() if lower.endswith(end)), None)


_LOG = "_delta_log"


def is_hidden(name: str) -> bool:
    """Whether a path below the root is ignored: its name, or that of a parent folder, starts with `.` or `_`.

    >>> [is_hidden(n) for n in ("_trash/a/b.csv", "a/.b.csv", "a_b/c.csv")]
    [True, True, False]
    """
    return any(part.startswith((".", "_")) for part in name.split("/"))


def folders_of(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the Delta tables' folders that have these files, including hidden ones; the root's is empty.

    >>> folders_of(["a/_delta_log/0.json", "_delta_log/0.json", "my_delta_log/x.csv"])
    ('a', '')
    """
    parts = [name.split("/") for name in names]
    return tuple(dict.fromkeys("/".join(p[: p.index(_LOG)]) for p in parts if _LOG in p[:-1]))


def by_name(folders: Sequence[str], root: str, others: Mapping[str, str]) -> dict[str, str]:
    """Returns table name -> its Delta table's folder.

    Args:
        folders: of the Delta tables, below the root.
        root: the folder that was given.
        others: the tables that are files: name -> one of their folders.

    Raises:
        ConfigError: two paths have the same name, and one of them is a Delta table.
    """
    found: dict[str, str] = {}
    for folder in folders:
        name = folder.rpartition("/")[2] or root.rpartition("/")[2]
        if (other := found.get(name, others.get(name))) is not None:
            both = " and ".join(path or "." for path in (other, folder))
            raise ConfigError(
                f"{both} are both the table {name}",
                where=root,
                hint="move one of them away: a Delta table cannot be combined with other files",
            )
        found[name] = folder
    return found


@dataclass(frozen=True)
class DataFile:
    """A data file.

    Attributes:
        path: below the root, with `/`.
        kind: `parquet`, `csv` or `json`.
        folder: the table's folder (its last name), without that of a partition.
        partition: the partition in its folder's name.
        meta: its DFM.
        names: its columns in order.
        types: their types in the file itself (Parquet), to distinguish layouts.
        ends, delimiter: line end and delimiter, as found in its first line.
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
        """Whether it belongs to a full load, by its name or its DFM."""
        return bool(LOAD.fullmatch(self.stem)) or (self.meta is not None and self.meta.content == "data")

    @property
    def layout(self) -> tuple[Any, ...]:
        """The properties that files must have in common to be read together."""
        keys = () if self.meta is None else tuple((c.name, c.spark(), c.key) for c in self.meta.columns)
        options = () if self.meta is None else tuple(sorted(map(str, self.meta.options.items())))
        return (self.kind, self.names, self.types, keys, options, self.ends, self.delimiter)

    @property
    def age(self) -> tuple[Any, ...]:
        """Sort key by the age of a file's layout: full loads first, then by version, start and name."""
        full = (
            self.meta.content == "data"
            if self.meta and self.meta.content
            else bool(LOAD.fullmatch(self.stem))
        )
        from_dfm = (self.meta.version, self.meta.start or "") if self.meta else (0, "")
        return (not full, *from_dfm, self.stem)
