"""The tables under a path, and the data files of each: for Spark and for reading without it.

A path is one table (a file, a folder of files of one kind, a Delta table), named after itself, or a folder of
tables. A table's files may be in folders below its own; names with `.` or `_` in front are hidden, and a
Delta table in another table's folder is no part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import ConfigError

KINDS = {
    "parquet": (".parquet",),
    "csv": (".csv", ".csv.gz"),
    "json": (".json", ".jsonl", ".json.gz", ".jsonl.gz"),
}
"""File kind -> endings; a Delta table is a folder that has `_delta_log`."""
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".tar.gz", ".bz2", ".xz", ".zst", ".z", ".parquet.gz")
"""Endings of files that are refused by name."""
ELSEWHERE = (".cd",)
"""Endings of files that formats read by themselves."""
_PARTITION = re.compile(r"[^=]+=.*")


def kind_of(path: Path) -> str | None:
    """The kind of a file or of a folder's files; None if it is not supported, or a folder has several."""
    if _is_delta(path):
        return "delta"
    if path.is_file():
        return _kind(path.name)
    kinds = _kinds(path)
    return kinds[0] if len(kinds) == 1 else None


def data_files(place: Path) -> list[Path]:
    """A table's data files in order: all that is read of it (of a Delta table, its log says that)."""
    if place.is_file():
        return [place]
    return sorted(f for f in _walk(place) if f.is_file() and _kind(f.name))


def is_empty(place: Path) -> bool:
    """Whether a table consists of empty text files."""
    return kind_of(place) in ("csv", "json") and not any(f.stat().st_size for f in data_files(place))


def tables_at(path: str, *, hidden: Sequence[Path] = ()) -> dict[str, Path]:
    """The paths of the tables under a path, by name.

    Args:
        path: a table, or a folder of tables.
        hidden: tables in that folder whose names begin with `_`; they are not listed again.

    Raises:
        ConfigError: there is nothing, nothing that is a table, or an archive; two tables have one name; it
            could be one table as well as several.
    """
    root = existing_path(path)
    refuse_archives([root, *_entries(root)] if root.is_dir() else [root])
    found = {_name(root): root} if _is_table(root, hidden) else _tables_in(root)
    for place in found.values():
        if place.is_dir() and not _is_delta(place):
            refuse_archives(_walk(place))
    return found


def _tables_in(root: Path) -> dict[str, Path]:
    """The tables in a folder of tables."""
    inside = _entries(root) if root.is_dir() else []
    found: dict[str, Path] = {}
    for place in filter(kind_of, inside):
        if (other := found.setdefault(_name(place), place)) != place:
            raise ConfigError(
                f"{other.name} and {place.name} are both the table {_name(place)}",
                where=str(root),
                hint="move one of them away, or all files into one folder, if they are parts of one table",
            )
    if not found:
        mixed = [words for p in inside if (words := several_kinds(p))]
        hint = "Parquet, CSV and JSON files and Delta tables are read"
        raise ConfigError("; ".join([f"{root} contains no table", *mixed]), hint=hint)
    return found


def not_read(root: Path, tables: Iterable[Path]) -> list[str]:
    """What is not read under a path, one sentence each."""
    known = set(tables)
    if root in known:
        return left_over(root, root)
    notes = []
    for place in _entries(root):
        if place in known:
            notes += left_over(place, root)
        elif place.suffix.lower() not in ELSEWHERE:
            notes.append(f"{several_kinds(place) or f'{place.name} is not a table'}: not read")
    return notes


def holds_files(place: Path) -> bool:
    """Whether it is a table, or a folder that is none only because it has files of several kinds."""
    return bool(kind_of(place) or several_kinds(place))


def several_kinds(place: Path) -> str:
    """Says that a folder is no table because its files are of several kinds; empty if it is not so."""
    kinds = _kinds(place) if place.is_dir() and not _is_delta(place) else []
    return f"{place.name} has files of several kinds ({', '.join(kinds)})" if len(kinds) > 1 else ""


def existing_path(path: str) -> Path:
    """That path; ConfigError when nothing is there."""
    root = Path(path)
    if "://" not in path and not root.exists():
        raise ConfigError(f"there is no {path}", hint="give a file, a folder of files, or a folder of tables")
    return root


def refuse_archives(paths: Iterable[Path]) -> None:
    """Raises ConfigError for a file that must be unpacked first."""
    for path in paths:
        lower = path.name.lower()
        if lower.endswith(ARCHIVES) and not lower.endswith(tuple(e for k in KINDS.values() for e in k)):
            raise ConfigError(
                f"{path.name} is an archive",
                where=str(path.parent),
                hint="unpack it; only .gz of CSV and JSON is read",
            )


def firsts(place: Path) -> list[Path]:
    """The first file that is not empty of each folder in a table's folder; a partition's is not counted."""
    found: dict[Path, Path] = {}
    for file in data_files(place):
        if file.stat().st_size:
            found.setdefault(_plain_folder(place, file), file)
    return list(found.values())


def unglobbed(path: str) -> str:
    """A path for Spark in which `*`, `?` and brackets are literal.

    >>> print(unglobbed("a[1]"))
    a\\[1\\]
    """
    return re.sub(r"([*?{}\[\]\\])", r"\\\1", path)


def below(path: Path, place: Path) -> str:
    """The path below a folder, for messages."""
    return path.relative_to(place).as_posix() if path != place else path.name


def _is_table(root: Path, hidden: Sequence[Path]) -> bool:
    """Whether a path is one table, not a folder of tables.

    Raises:
        ConfigError: it could be both.
    """
    if not root.is_dir() or _is_delta(root):
        return kind_of(root) is not None
    folders = [p for p in [*_entries(root), *hidden] if p.is_dir() and (_is_delta(p) or _kinds(p))]
    table = next((p for p in folders if _is_delta(p) or not _PARTITION.fullmatch(p.name)), None)
    if table is not None:
        if parts := _parts(root):
            _refuse_both(root, f"{parts[0].name} is part of a table, but {table.name} is a folder of one")
        return False
    separate = _stems_differ([*_entries(root), *hidden])
    if not folders:
        return kind_of(root) is not None and not separate
    if separate:
        _refuse_both(root, f"{folders[0].name} is a table's partition, but the files are tables")
    if words := several_kinds(root):
        raise ConfigError(words, where=str(root), hint="give a table's folder files of one kind")
    return True


def _refuse_both(root: Path, words: str) -> None:
    raise ConfigError(
        f"{root.name} is neither one table nor a folder of tables: {words}",
        where=str(root),
        hint="put all files of each table into a folder of its own",
    )


def _parts(root: Path) -> list[Path]:
    """The files of a folder if they are parts of one table by their names."""
    files = [f for f in _entries(root) if f.is_file() and _kind(f.name)]
    numbered = any(_is_part(f) for f in files)
    return files if numbered and len({_kind(f.name) for f in files}) == 1 else []


def _stems_differ(inside: Iterable[Path]) -> bool:
    """Whether the files in a folder are separate tables: their names are not part numbers."""
    files = [f for f in inside if f.is_file() and _kind(f.name)]
    return len(files) > 1 and not any(_is_part(f) for f in files)


def _is_part(file: Path) -> bool:
    return file.name.startswith("part-") or file.name[0].isdigit()


def left_over(place: Path, root: Path) -> list[str]:
    """What is not read in a table's place."""
    if place.is_file() or _is_delta(place):
        return []
    read = set(data_files(place))
    notes = []
    for path in sorted(set(_walk(place)) - read):
        if path.is_dir():
            notes.append(f"{below(path, root)} is a Delta table in the folder of another table: not read")
        elif path.suffix.lower() not in ELSEWHERE:
            notes.append(f"{below(path, root)} is not a table: not read")
    return notes


def _walk(folder: Path) -> Iterator[Path]:
    """All files below a folder that are not hidden, and the Delta tables, which are not looked into."""
    for path in _entries(folder):
        if path.is_symlink() and folder.resolve().is_relative_to(path.resolve()):
            continue  # it leads back here
        if not path.is_dir() or _is_delta(path):
            yield path
        else:
            yield from _walk(path)


def _entries(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.iterdir()) if not p.name.startswith((".", "_"))]


def _is_delta(path: Path) -> bool:
    return (path / "_delta_log").is_dir()


def _kinds(folder: Path) -> list[str]:
    """The kinds of a folder's data files, each once."""
    return sorted({kind for f in data_files(folder) if (kind := _kind(f.name))})


def _kind(name: str) -> str | None:
    return next((k for k, ends in KINDS.items() if name.lower().endswith(ends)), None)


def _plain_folder(place: Path, file: Path) -> Path:
    """The folder of a file, without those of partitions."""
    parts = file.relative_to(place).parts[:-1] if file != place else ()
    return Path(*(p for p in parts if not _PARTITION.fullmatch(p)))


def _name(path: Path) -> str:
    name = path.name
    for end in (".gz", ".parquet", ".csv", ".jsonl", ".json"):
        if path.is_file() and name.lower().endswith(end):
            name = name[: -len(end)]
    return name


__all__ = [
    "KINDS",
    "below",
    "data_files",
    "existing_path",
    "firsts",
    "holds_files",
    "is_empty",
    "kind_of",
    "left_over",
    "not_read",
    "refuse_archives",
    "several_kinds",
    "tables_at",
    "unglobbed",
]  # fmt: skip
