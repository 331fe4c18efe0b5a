"""Delta tables in memory, in the place of `tailrace.lake.delta`: a commit takes microseconds, and each look at a
table or write to it is a place where a scheduler may let another process go on, fail or kill.

It keeps what the code above goes by: commits are atomic, progress travels in them, and one that would not move
it forward is skipped.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import acero

from tailrace.lake import delta as lake
from tailrace.lake import log, log_retention, removed
from tailrace.lake.delta import admits
from tailrace.state import ledger, rolling, state_table

_ledger_files = rolling._files


@dataclass(frozen=True)
class Version:
    """One version of a table."""

    files: tuple[str, ...]
    schema: pa.Schema
    progress: Mapping[str, int] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)


class RamLake:
    """All tables; `at(what, path)` is called before each access, and with what = `wrote` after each commit."""

    def __init__(self, at: Callable[[str, str], None] = lambda what, path: None) -> None:
        self.at = at
        self.tables: dict[str, list[Version]] = {}
        self.parts: dict[str, pa.Table] = {}
        self.numbers = count()
        self._rows: dict[str, tuple[Version, pa.Table]] = {}
        self._stats: dict[str, dict[str, Any]] = {}
        self._actions: dict[str, tuple[Version, pa.Table]] = {}
        self._ledgers: dict[str, tuple[Version, list[rolling.File]]] = {}

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """Nobody is called while the context lasts."""
        told, self.at = self.at, lambda what, path: None
        try:
            yield
        finally:
            self.at = told

    def rows(self, path: str) -> pa.Table:
        """A table, without being noticed."""
        if path not in self.tables:
            return pa.table({})
        newest = self.tables[path][-1]
        if path not in self._rows or self._rows[path][0] is not newest:
            self._rows[path] = newest, self.chosen(newest.files, newest.schema).combine_chunks()
        return self._rows[path][1]

    def chosen(self, files: Sequence[str], schema: pa.Schema) -> pa.Table:
        """The rows of some files."""
        parts = [self._part(f, schema) for f in files]
        return pa.concat_tables(parts) if parts else pa.Table.from_batches([], schema)

    def _part(self, file: str, schema: pa.Schema) -> pa.Table:
        rows = self.parts[file]
        if rows.schema.equals(schema):
            return rows
        have = set(rows.column_names)
        arrays = [
            rows[f.name].cast(f.type) if f.name in have else pa.nulls(len(rows), f.type) for f in schema
        ]
        return pa.table(arrays, schema=schema)

    def actions(self, path: str, one: Version) -> pa.Table:
        """What the log says of a version's files."""
        if path not in self._actions or self._actions[path][0] is not one:
            rows = [self._file(f) for f in one.files]
            names = sorted({n for r in rows for n in r} | {"path", "size_bytes"})
            self._actions[path] = one, pa.table({n: [r.get(n) for r in rows] for n in names})
        return self._actions[path][1]

    def _file(self, file: str) -> dict[str, Any]:
        if file not in self._stats:
            part = self.parts[file]
            row: dict[str, Any] = {"path": file, "size_bytes": part.num_rows}
            for f in part.schema:
                if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type):
                    values = [v for v in part[f.name].to_pylist() if v is not None]
                    row[f"min.{f.name}"], row[f"max.{f.name}"] = (
                        min(values, default=None),
                        max(values, default=None),
                    )
            self._stats[file] = row
        return self._stats[file]

    def files(self, delta: _Delta, book: rolling.Book) -> list[rolling.File]:
        """The files of a ledger, as `rolling` has them: worked out once a version."""
        now = delta.now
        if delta.path not in self._ledgers or self._ledgers[delta.path][0] is not now:
            self._ledgers[delta.path] = now, list(_ledger_files(delta, book))  # type: ignore[arg-type]
        return self._ledgers[delta.path][1]

    # what `tailrace.lake.delta` has

    def exists(self, path: str) -> bool:
        self.at("look at", path)
        return path in self.tables

    def create(self, path: str, schema: pa.Schema, properties: Mapping[str, str] | None = None) -> None:
        if path not in self.tables:
            self.at("make", path)
            self.tables.setdefault(path, [Version((), lake.plain_schema(schema))])

    def version(self, path: str) -> int | None:
        self.at("look at", path)
        return len(self.tables[path]) - 1 if path in self.tables else None

    def progress(self, path: str, app_id: str) -> int | None:
        self.at("look at", path)
        return self.tables[path][-1].progress.get(app_id) if path in self.tables else None

    def progresses(self, path: str, app_ids: Sequence[str]) -> list[int | None]:
        self.at("look at", path)
        newest = self.tables[path][-1].progress if path in self.tables else {}
        return [newest.get(a) for a in app_ids]

    def commit(
        self,
        path: str,
        files: Sequence[lake.AddedFile],
        *,
        progress: Mapping[str, int],
        schema: pa.Schema | None = None,
        overwrite: bool = False,
        info: Mapping[str, str] | None = None,
        only_after: int | None = None,
        begin: bool = False,
        after: Mapping[str, int | None] | None = None,
    ) -> int | None:
        self.at("commit to", path)
        versions = self.tables[path]
        newest = versions[-1]
        asked = {"only_after": only_after, "begin": begin, "after": after}
        if not admits(path, newest.progress, len(versions) - 1, progress, **asked):  # type: ignore[arg-type]
            return None
        kept = () if overwrite else newest.files
        made = lake.plain_schema(schema) if overwrite and schema is not None else newest.schema
        added = (*kept, *[f.path for f in files])
        versions.append(Version(added, made, {**newest.progress, **progress}, dict(info or {})))
        done = len(versions) - 1
        self.at("wrote", path)
        return done

    def overwrite(self, path: str, files: Sequence[lake.AddedFile], **more: Any) -> int | None:
        return self.commit(path, files, overwrite=True, **more)

    def replace_all(self, path: str, files: Sequence[lake.AddedFile], **more: Any) -> int | None:
        return self.commit(path, files, overwrite=True, begin=True, **more)

    def read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        self.at("read", path)
        with removed.told(path):
            if path not in self.tables:
                raise TableNotFoundError(path)
        rows = self.rows(path)
        return rows.select(list(columns)) if columns else rows

    def read_at(self, path: str, columns: Sequence[str] | None = None) -> tuple[int, pa.Table]:
        rows = self.read(path, columns)
        return len(self.tables[path]) - 1, rows

    def add_columns(self, path: str, fields: Sequence[pa.Field]) -> None:
        newest = self.tables[path][-1]
        if new := [f for f in fields if f.name not in newest.schema.names]:
            self.at("add columns to", path)
            newest = self.tables[path][-1]
            self.tables[path].append(replace(newest, schema=pa.schema([*newest.schema, *new])))

    def arrow_schema(self, path: str) -> pa.Schema:
        return self.tables[path][-1].schema

    def part(self, table: str, schema: pa.Schema, *, name: str = "part") -> _Part:
        return _Part(self, schema, name)

    def delta(self, path: str, version: int | None = None) -> _Delta:
        self.at("look at", path)
        return _Delta(self, path, len(self.tables[path]) - 1 if version is None else version)

    @contextmanager
    def opened(self, path: str) -> Iterator[_Delta]:
        yield self.delta(path)

    def swap(self, path: str, after: int, gone: set[str], new: Sequence[str]) -> None:
        """Takes files away and adds others, on that version and no other."""
        self.at("commit to", path)
        newest = self.tables[path][-1]
        if len(self.tables[path]) - 1 != after:
            raise CommitFailedError("somebody else committed")
        files = tuple(f for f in newest.files if f not in gone)
        self.tables[path].append(replace(newest, files=(*files, *new)))
        self.at("wrote", path)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Everything goes here while the context lasts."""
        names = ("exists", "create", "version", "progress", "commit", "overwrite", "replace_all", "read")
        names += ("add_columns", "arrow_schema", "read_at")
        # What stands here alone may reach disk, or not at all.
        others = {n for n, f in vars(lake).items() if inspect.isfunction(f) and f.__module__ == lake.__name__}
        plain = {
            "admits",
            "append",
            "write_part",
            "write_pieces",
            "retried",
            "hours",
            "file_name",
            "after_commit",
            "schema_json",
            "progresses",
        }
        names_left = others - {*names, *plain}

        def read(one: rolling.Ledger, files: Sequence[rolling.File]) -> _Dataset:
            return _Dataset(self.chosen([f.path for f in files], one._book.schema))

        with ExitStack() as put:
            for name in names:
                put.enter_context(mock.patch.object(lake, name, getattr(self, name)))
            for name in names_left:
                put.enter_context(mock.patch.object(lake, name, _nowhere(name)))
            put.enter_context(mock.patch.object(lake, "progresses", self.progresses))
            put.enter_context(mock.patch.object(lake, "Part", self.part))
            put.enter_context(mock.patch.object(lake, "dataset", _Delta.dataset))
            put.enter_context(mock.patch.object(lake, "opened", self.opened))
            put.enter_context(mock.patch.object(lake, "vacuum", lambda path, after_s: None))
            put.enter_context(mock.patch.object(log_retention, "forget", lambda path: None))
            put.enter_context(mock.patch.object(state_table, "_TRIM_FROM", 0))
            for module in (ledger, log, rolling):
                if hasattr(module, "open_table"):
                    put.enter_context(mock.patch.object(module, "open_table", self.delta))
            put.enter_context(mock.patch.object(rolling.Ledger, "_dataset", read))
            put.enter_context(mock.patch.object(rolling, "_files", self.files))
            yield


def _nowhere(name: str) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        raise NotImplementedError(f"lake.{name} has no counterpart in memory")

    return call


class _Part:
    """A part that is being written."""

    def __init__(self, ram: RamLake, schema: pa.Schema, name: str) -> None:
        self._ram, self._schema, self.path = ram, schema, f"{name}-{next(ram.numbers):06d}"
        self._tables: list[pa.Table] = []
        self.rows = 0

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        if not batch.num_rows:
            return
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        assert table.schema.equals(self._schema), f"{table.schema} is not {self._schema}"
        self._tables.append(table)
        self.rows += table.num_rows

    def close(self) -> lake.AddedFile | None:
        if not self.rows:
            return None
        self._ram.parts[self.path] = pa.concat_tables(self._tables).combine_chunks()
        return lake.AddedFile(self.path, self.rows, self.rows, json.dumps({}), 0)

    def discard(self) -> None:
        self._tables = []


def _where(rows: pa.Table, condition: ds.Expression) -> pa.Table:
    """Rows that meet a condition, without threads: for a few rows they cost more than they save."""
    plan = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
        acero.Declaration("filter", acero.FilterNodeOptions(condition)),
    ]
    return acero.Declaration.from_sequence(plan).to_table(use_threads=False)


@dataclass(frozen=True)
class _Dataset:
    """What control tables ask of a dataset."""

    rows: pa.Table

    def to_table(self, columns: Sequence[str] | None = None, filter: ds.Expression | None = None) -> pa.Table:
        rows = self.rows if filter is None or not self.rows.num_rows else _where(self.rows, filter)
        return rows.select(list(columns)) if columns else rows

    def scanner(self, **more: Any) -> _Dataset:
        return self

    def to_batches(self, **more: Any) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = self.rows.combine_chunks().to_batches()
        return found


@dataclass(frozen=True)
class _Delta:
    """What control tables ask of delta-rs, as of one version."""

    ram: RamLake
    path: str
    number: int

    @property
    def now(self) -> Version:
        return self.ram.tables[self.path][self.number]

    def version(self) -> int:
        return self.number

    def schema(self) -> None:
        """Nobody looks at it."""

    def transaction_version(self, app_id: str) -> int | None:
        return self.now.progress.get(app_id)

    def dataset(self) -> _Dataset:
        return _Dataset(self.ram.chosen(self.now.files, self.now.schema))

    def get_add_actions(self, flatten: bool) -> pa.Table:
        return self.ram.actions(self.path, self.now)

    @property
    def table_uri(self) -> str:
        return self.path

    def create_write_transaction(self, actions: Sequence[Any], **more: Any) -> None:
        gone = {a.path for a in actions if isinstance(a, RemoveAction)}
        self.ram.swap(self.path, self.number, gone, [a.path for a in actions if isinstance(a, AddAction)])
