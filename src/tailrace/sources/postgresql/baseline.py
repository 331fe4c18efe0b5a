"""Reads tables in an exported snapshot: split by pages, with COPY as CSV, as typed Arrow batches.

`read_part` is a function of picklable arguments, so that each part can be read by another process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import psycopg
from psycopg.pq import ExecStatus

from ...errors import ConnectionLostError, TableMovedError, UnsupportedError
from ...model.change import Column, Relation
from ...wire import pgcopy
from ..base import NO_COLUMNS, OR_LEAVE_OUT, BadValue, BaselineBatch, BaselinePart, Snapshot
from .address import address
from .connect import Session, asking, connect, connect_when_free, failure, literal, quoted, refused
from .locks import READ, READ_PATIENCE, locked_by

BATCH_BYTES = 16 << 20
_LEAVES = """
select l.relid::regclass::text, pg_relation_size(l.relid) / current_setting('block_size')::int,
  greatest(c.reltuples, 0)::bigint, c.relpages, current_setting('block_size')::int
from (select relid from pg_partition_tree(%(relid)s::oid::regclass) where isleaf
      union select %(relid)s::oid::regclass from pg_class where oid = %(relid)s and relkind = 'r') l
join pg_class c on c.oid = l.relid and c.relkind <> 'f' order by 1
"""
_ROWS_PER_PAGE = 50
"""Assumed rows per page of tables without statistics."""
WIDE = 256
"""Bytes above which a row counts as several, so that a part has at most this many bytes per row."""


def parts(session: Session, relation: Relation, rows_per_part: int, only: str = "true") -> list[BaselinePart]:
    """Returns the parts of a table, leaf partition by leaf partition, with about `rows_per_part` rows each.

    Wide rows count as several (`WIDE`). The last part of a leaf has no end. `only` is an SQL condition on the
    wanted rows.
    """
    pieces: list[BaselinePart] = []
    for leaf, pages, tuples, counted, page in session.execute(_LEAVES, {"relid": relation.relid}):
        per_page = max(tuples / counted if counted and tuples else _ROWS_PER_PAGE, 1 / 1024)
        step = max(1, round(rows_per_part / max(per_page, page / WIDE)))
        starts = list(range(0, max(pages, 1), step))
        for first, last in zip(starts, [*starts[1:], None], strict=True):
            size = (pages if last is None else last) - first
            pieces.append(BaselinePart(leaf, first, last, round(size * per_page), only))
    return pieces


@dataclass(frozen=True)
class PgPartReader:
    """`read_part` for one server, as a function for worker processes; fields as its parameters."""

    url: str = field(repr=False)
    only: str = "true"
    numbered: bool = True

    def __call__(self, snapshot: Snapshot, relation: Relation, part: BaselinePart) -> Iterator[BaselineBatch]:
        """Yields the rows of one part in the snapshot."""
        return read_part(self.url, snapshot.name, relation, part, self.only, numbered=self.numbered)


_MOVED = """
select not exists (select from pg_class where oid = {leaf}::regclass
                   and relfilenode = pg_relation_filenode({leaf}::regclass))
"""
"""Detects TRUNCATE and ALTER TABLE statements that rewrite a table, which ignore snapshots: in an older one
the table looks empty.

pg_class is read in the snapshot, the function is not. The lock taken before keeps both unchanged.
"""


_RENAMED = """
select exists (select from (values {columns}) as c (number, name), pg_identify_object_as_address(
    'pg_class'::regclass, {relid}, c.number) as now where now.object_names[3] is distinct from c.name)
or {relid} not in (select {leaf}::regclass::oid
    union all select a.relid::oid from pg_partition_ancestors({leaf}::regclass) a)
"""
"""Detects renamed tables and columns. COPY uses the names when it begins, whatever the snapshot, and a name
may belong to another column by then.

pg_attribute is read in the snapshot, the functions are not.
"""
_GONE = ("42P01", "42703")
"""SQL states: undefined table, undefined column."""
LOCKED, _LOCKED = "it will be read again; end that transaction, or wait", "55P03"
"""Hint and SQL state for a lock that was not available in time."""
_IMPORT = "SET TRANSACTION SNAPSHOT"
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.COPY_OUT, ExecStatus.TUPLES_OK)


def read_part(
    url: str,
    snapshot: str,
    relation: Relation,
    part: BaselinePart,
    only: str = "true",
    *,
    numbered: bool = True,
) -> Iterator[BaselineBatch]:
    """Yields the rows of one part, in batches of about 16 MiB of text.

    Args:
        url: the server.
        snapshot: name of the exported snapshot; empty for the rows when the statement begins.
        relation: the columns and their lake types.
        part: the part.
        only: SQL condition on its rows.
        numbered: whether the columns have the table's numbers; otherwise only their names count.

    Raises:
        TableMovedError: the table was truncated, rewritten, dropped or altered since the snapshot.
        ConnectionLostError: the snapshot ended with its session, or the server stopped the query (cancelled,
            storage full).
        SourceError: a privilege is missing.
        UnsupportedError: the table has no columns.
    """
    if not relation.columns:
        hint = f"add a column, {OR_LEAVE_OUT % relation.table}"
        raise UnsupportedError(NO_COLUMNS, where=f"{address(url)}, {relation.table}", hint=hint)
    with closing(
        connect_when_free(url)
    ) as session:  # not "with connect": that would commit in the middle of COPY
        where = f"{address(url)}, {relation.table}"
        pg = session.pgconn
        known = [c for c in relation.columns if numbered and c.attnum > 0]
        renamed = [_renamed(relation.relid, part.leaf, known)] if known else []
        for statement in [*_beginning(snapshot, part), *renamed, _copy(relation, part, only)]:
            result = pg.exec_(statement.encode())
            error = None if result.status in _DONE else failure(pg, result)
            gone = result.status == ExecStatus.TUPLES_OK and result.get_value(0, 0) != b"f"
            if gone or (error and error.sqlstate in _GONE):
                raise TableMovedError(
                    f"{part.leaf} was truncated, rewritten, dropped or altered since its baseline began",
                    where=where,
                    hint="it will be read again; if this continues, stop such statements for a while",
                )
            if error and error.sqlstate == _LOCKED:
                with closing(connect(url)) as other:
                    by = locked_by(other, part.leaf, READ)
                raise TableMovedError(f"{part.leaf} {by}", where=where, hint=LOCKED)
            if error and error.sqlstate and statement.startswith(_IMPORT):
                raise ConnectionLostError(
                    f"the snapshot {snapshot} of the baseline has ended with the session that held it",
                    where=where,
                    hint="it will be read again in a new snapshot",
                )
            if error:
                raise refused(error, where)
        with asking(where):
            for data, count in _texts(pg):
                yield _typed(relation, data, count)


def _beginning(snapshot: str, part: BaselinePart) -> list[str]:
    lock = f"SET LOCAL lock_timeout = '{READ_PATIENCE}'; LOCK TABLE ONLY {part.leaf} IN ACCESS SHARE MODE"
    if not snapshot:
        return ["BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY", lock]
    return [
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        f"{_IMPORT} {literal(snapshot)}",
        lock,
        _MOVED.format(leaf=literal(part.leaf)),
    ]


def _renamed(relid: int, leaf: str, known: Sequence[Column]) -> str:
    columns = ", ".join(f"({c.attnum}, {literal(c.name)})" for c in known)
    return _RENAMED.format(columns=columns, relid=relid, leaf=literal(leaf))


def _typed(relation: Relation, data: bytes, count: int) -> BaselineBatch:
    batch, bad = pgcopy.batch(relation.columns, data, rows=count)
    if not bad:
        return BaselineBatch(batch, [])
    texts = dict(zip(batch.schema.names, pgcopy.tables(data, batch.num_columns), strict=True))
    found = [
        BadValue(int(row), name, texts[name][int(row)].as_py())
        for name, mask in bad.items()
        for row in np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
    ]
    return BaselineBatch(batch, found)


def _copy(relation: Relation, part: BaselinePart, only: str) -> str:
    names = ", ".join(quoted(c.name) for c in relation.columns)
    until = "" if part.last is None else f" AND ctid < '({part.last},0)'"
    wanted = f"ctid >= '({part.first},0)'{until} AND {only} AND ({part.only})"
    rows = f"SELECT {names} FROM ONLY {part.leaf} WHERE {wanted}"
    return f"COPY ({rows}) TO STDOUT (FORMAT csv)"


def _texts(pg: psycopg.pq.abc.PGconn) -> Iterator[tuple[bytes, int]]:
    """Yields the text that COPY sends, split between rows, and the number of rows. One CopyData message is
    one row."""
    get = pg.get_copy_data
    rows: list[bytes] = []
    size = 0
    append = rows.append
    while True:
        length, data = get(0)
        if length <= 0:
            break
        append(bytes(data))
        size += length
        if size >= BATCH_BYTES:
            yield b"".join(rows), len(rows)
            rows.clear()
            size = 0
    result = pg.get_result()
    if result is not None and result.status == ExecStatus.FATAL_ERROR:
        raise failure(pg, result)
    if rows:
        yield b"".join(rows), len(rows)
