"""Which Delta tables lie under a path; a name that two places have is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...errors import ConfigError

_LOG = "_delta_log"


def is_hidden(name: str) -> bool:
    """Whether a path below the root is passed over: it, or a folder on the way, begins with `.` or `_`.

    >>> [is_hidden(n) for n in ("_trash/a/b.csv", "a/.b.csv", "a_b/c.csv")]
    [True, True, False]
    """
    return any(part.startswith((".", "_")) for part in name.split("/"))


def folders_of(names: Iterable[str]) -> tuple[str, ...]:
    """The Delta tables' folders that these files lie in, hidden ones too; the root's is empty.

    >>> folders_of(["a/_delta_log/0.json", "_delta_log/0.json", "my_delta_log/x.csv"])
    ('a', '')
    """
    parts = [name.split("/") for name in names]
    return tuple(dict.fromkeys("/".join(p[: p.index(_LOG)]) for p in parts if _LOG in p[:-1]))


def by_name(folders: Sequence[str], root: str, others: Mapping[str, str]) -> dict[str, str]:
    """Table name -> its Delta table's folder.

    Args:
        folders: of the Delta tables, below the root.
        root: the folder that was given.
        others: the tables that are files: name -> one of their folders.

    Raises:
        ConfigError: two places have one name. Files of several folders are one table; a Delta table is one.
    """
    found: dict[str, str] = {}
    for folder in folders:
        name = folder.rpartition("/")[2] or root.rpartition("/")[2]
        if (other := found.get(name, others.get(name))) is not None:
            places = " and ".join(place or "." for place in (other, folder))
            raise ConfigError(
                f"{places} are both the table {name}",
                where=root,
                hint="move one of them away: a Delta table is whole, nothing is read into it",
            )
        found[name] = folder
    return found
