"""Finds the tables under a path, and the data files of each; without Spark.

A path is one table (a file, a folder of files of one kind, a Delta table), named after itself, or a folder of
tables. A table's files may be in subfolders. Names that start with `.` or `_` are hidden, and a Delta table
in another table's folder is not part of it.
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
"""File kind -> suffixes; a Delta table is a folder with `_delta_log`."""
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".tar.gz", ".bz2", ".xz", ".zst", ".z", ".parquet.gz")
"""Suffixes of files that are refused."""
ELSEWHERE = (".cd",)
"""Suffixes of files that formats read themselves."""
_PARTITION = re.compile(r"[^=]+=.*")


def kind_of(path: Path) -> str | None:
    """Returns the kind of a file or of a folder's files; None if it is not supported, or a folder has
    several."""
    if _is_delta(path):
        return "delta"
    if path.is_file():
        return _kind(path.name)
    kinds = _kinds(path)
    return kinds[0] if len(kinds) == 1 else None


def data_files(path: Path) -> list[Path]:
    """Returns a table's data files in order; those of a Delta table are listed by its log instead."""
    if path.is_file():
        return [path]
    return sorted(f for f in _walk(path) if f.is_file() and _kind(f.name))


def is_empty(path: Path) -> bool:
    """Whether a table consists of empty text files."""
    return kind_of(path) in ("csv", "json") and not any(f.stat().st_size for f in data_files(path))


def tables_at(path: str, *, hidden: Sequence[Path] = ()) -> dict[str, Path]:
    """Returns the paths of the tables under a path, by name.

    Args:
        path: a table, or a folder of tables.
        hidden: tables in that folder whose names start with `_`; they are not listed again.

    Raises:
        ConfigError: there is nothing, no table, or an archive; two tables have one name; the path could be
            one table as well as several.
    """
    root = existing_path(path)
    refuse_archives([root, *_entries(root)] if root.is_dir() else [root])
    found = {_name(root): root} if _is_table(root, hidden) else _tables_in(root)
    for table_path in found.values():
        if table_path.is_dir() and not _is_delta(table_path):
            refuse_archives(_walk(table_path))
    return found


def _tables_in(root: Path) -> dict[str, Path]:
    """Returns the tables in a folder of tables."""
    inside = _entries(root) if root.is_dir() else []
    found: dict[str, Path] = {}
    for path in filter(kind_of, inside):
        if (other := found.setdefault(_name(path), path)) != path:
            raise ConfigError(
                f"{other.name} and {path.name} are both the table {_name(path)}",
                where=str(root),
                hint="move one of them away, or all files into one folder, if they are parts of one table",
            )
    if not found:
        mixed = [words for p in inside if (words := several_kinds(p))]
        hint = "Parquet, CSV and JSON files and Delta tables are read"
        raise ConfigError("; ".join([f"{root} contains no table", *mixed]), hint=hint)
    return found


def not_read(root: Path, tables: Iterable[Path]) -> list[str]:
    """Returns a sentence for each path that is not read."""
    known = set(tables)
    if root in known:
        return left_over(root, root)
    notes = []
    for table_path in _entries(root):
        if table_path in known:
            notes += left_over(table_path, root)
        elif table_path.suffix.lower() not in ELSEWHERE:
            notes.append(f"{several_kinds(table_path) or f'{table_path.name} is not a table'}: not read")
    return notes


def holds_files(table_path: Path) -> bool:
    """Whether a path is a table, or would be one if its files were of one kind."""
    return bool(kind_of(table_path) or several_kinds(table_path))


def several_kinds(path: Path) -> str:
    """Returns a message if a folder is no table because it has files of several kinds; otherwise empty."""
    kinds = _kinds(path) if path.is_dir() and not _is_delta(path) else []
    return f"{path.name} has files of several kinds ({', '.join(kinds)})" if len(kinds) > 1 else ""


def existing_path(path: str) -> Path:
    """Returns the path; raises ConfigError if it does not exist."""
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


def firsts(path: Path) -> list[Path]:
    """Returns the first file that is not empty of each folder below a table's, without partitions'
    folders."""
    found: dict[Path, Path] = {}
    for file in data_files(path):
        if file.stat().st_size:
            found.setdefault(_plain_folder(path, file), file)
    return list(found.values())


def unglobbed(path: str) -> str:
    """Returns a path for Spark in which `*`, `?` and brackets are literal.

    >>> print(unglobbed("a[1]"))
    a\\[1\\]
    """
    return re.sub(r"([*?{}\[\]\\])", r"\\\1", path)


def below(path: Path, folder: Path) -> str:
    """Returns the path relative to a folder, for messages."""
    return path.relative_to(folder).as_posix() if path != folder else path.name


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
        hint="put all files of each table into a separate folder",
    )


def _parts(root: Path) -> list[Path]:
    """Returns the files of a folder if their names mark them as parts of one table."""
    files = [f for f in _entries(root) if f.is_file() and _kind(f.name)]
    numbered = any(_is_part(f) for f in files)
    return files if numbered and len({_kind(f.name) for f in files}) == 1 else []


def _stems_differ(inside: Iterable[Path]) -> bool:
    """Whether the files in a folder are separate tables: their names are not part numbers."""
    files = [f for f in inside if f.is_file() and _kind(f.name)]
    return len(files) > 1 and not any(_is_part(f) for f in files)


def _is_part(file: Path) -> bool:
    return file.name.startswith("part-") or file.name[0].isdigit()


def left_over(table_path: Path, root: Path) -> list[str]:
    """Returns a sentence for each path that is not read below a table's path."""
    if table_path.is_file() or _is_delta(table_path):
        return []
    read = set(data_files(table_path))
    notes = []
    for path in sorted(set(_walk(table_path)) - read):
        if path.is_dir():
            notes.append(f"{below(path, root)} is a Delta table in the folder of another table: not read")
        elif path.suffix.lower() not in ELSEWHERE:
            notes.append(f"{below(path, root)} is not a table: not read")
    return notes


def _walk(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder that are not hidden, and Delta tables without their contents."""
    for path in _entries(folder):
        if path.is_symlink() and folder.resolve().is_relative_to(path.resolve()):
            continue  # a link back to a parent folder
        if not path.is_dir() or _is_delta(path):
            yield path
        else:
            yield from _walk(path)


def _entries(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.iterdir()) if not p.name.startswith((".", "_"))]


def _is_delta(path: Path) -> bool:
    return (path / "_delta_log").is_dir()


def _kinds(folder: Path) -> list[str]:
    """Returns the kinds of a folder's data files, each once."""
    return sorted({kind for f in data_files(folder) if (kind := _kind(f.name))})


def _kind(name: str) -> str | None:
    return next((k for k, ends in KINDS.items() if name.lower().endswith(ends)), None)


def _plain_folder(path: Path, file: Path) -> Path:
    """Returns the folder of a file, without partitions' folders."""
    parts = file.relative_to(path).parts[:-1] if file != path else ()
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
