"""The history of a source's DDL, `<home>/control/ddl_history`, with the columns of Qlik's
`attrep_ddl_history`.

It is derived from the relation history and the catalog events, so it can be written at any time, by capture
alone. Existing rows are not written again. `CHANGE_SEQ` is where the new layout begins; all rows of the old
one have smaller values. `TABLE_VERSION` counts a table's layouts from 1. Times are UTC.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..apply.ddl import between
from ..formats.qlik.control import TABLES
from ..lake import delta as lake
from ..lake import log
from ..lake.failpoints import reach
from ..model import sequence
from ..model.change import Column, Relation
from ..model.positions import ChangeSeq
from ..model.types import arrow_type
from ..sources.postgresql.layout import USING
from ..state.ddl import CatalogEvent

SCHEMA = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in TABLES["attrep_ddl_history"].columns])
SERVER = "tailrace"
BEGINS = "tailrace/begins"
"""Progress: rows with an earlier time part were deleted, and are not written again."""
_TYPES = {"drop_table": "DROP_TABLE", "rename_table": "ALTER_TABLE", "recreate_table": "CREATE_TABLE"}
_NUMBERS = re.compile(r"\((\d+)(?:,(-?\d+))?\)")


def write_missing(
    path: str, task: str, history: Mapping[str, Sequence[log.Layout]], events: Sequence[CatalogEvent]
) -> int:
    """Writes the missing rows and returns their number."""
    names = ["TABLE_OWNER", "TABLE_NAME", "CHANGE_SEQ", "TABLE_VERSION", "DDL_TYPE"]
    have = set()
    if lake.exists(path):
        have = {tuple(r.values()) for r in lake.read(path, names).to_pylist()}
    begins = f"{lake.progress(path, BEGINS) or 0:0{sequence.TIME_DIGITS}d}"
    new = [
        r
        for r in ddl_rows(task, history, events)
        if tuple(r[n] for n in names) not in have
        and (r["CHANGE_SEQ"] >= begins or _time(r["CHANGE_SEQ"]) is None)
    ]
    if new:
        reach("ddl.history")
        lake.append(path, pa.Table.from_pylist(new, SCHEMA))
    return len(new)


def ddl_rows(
    task: str, history: Mapping[str, Sequence[log.Layout]], events: Sequence[CatalogEvent]
) -> Iterator[dict[str, Any]]:
    """Returns all rows, table by table, in order."""
    for table, layouts in history.items():
        steps: list[tuple[ChangeSeq, log.Layout | CatalogEvent]] = [(one.from_seq, one) for one in layouts]
        steps += [(one.change_seq, one) for one in events if one.table == table]
        # Layouts that were read with a baseline belong to no change: they begin before all changes.
        steps.sort(key=lambda each: each[0])
        before: Relation | None = None
        version = 0
        for seq, one in steps:
            if isinstance(one, CatalogEvent):
                version += one.kind != "recreate_table"  # its layout counts
                if one.kind != "recreate_table":
                    yield _row(task, table, seq, version, _TYPES[one.kind], one.noticed_at, one.new_name, {})
                continue
            version += 1
            again = before is None or before.relid != one.relation.relid
            columns = _columns(None if again else before, one.relation)
            kind = "CREATE_TABLE" if again else "ALTER_TABLE"
            yield _row(task, table, seq, version, kind, _time(seq), None, columns)
            before = one.relation


def _row(
    task: str,
    table: str,
    seq: ChangeSeq,
    version: int,
    kind: str,
    at: dt.datetime | None,
    new_name: str | None,
    columns: Mapping[str, Any],
) -> dict[str, Any]:
    owner, _, name = table.partition(".")
    details = {
        "owner": owner,
        "table": name,
        "tableNewName": new_name.partition(".")[2] if new_name else None,
        "version": version,
        "columns": columns,
    }
    return {
        "SERVER_NAME": SERVER,
        "TASK_NAME": task,
        "TABLE_OWNER": owner,
        "TABLE_NAME": name,
        "CHANGE_SEQ": seq,
        "TIMESTAMP": at,
        "TABLE_VERSION": version,
        "DDL_TYPE": kind,
        "DETAILS": json.dumps(details),
    }


def _columns(before: Relation | None, after: Relation) -> dict[str, Any]:
    """Returns what changed by old column name."""
    if before is None:
        return {c.name: _column("ADD", c, after) for c in after.columns}
    found: dict[str, Any] = {}
    for one in between(before, after):
        if one.kind == "rekey":
            keys = [c.name for c in (*before.columns, *after.columns) if c.key]
            for c in after.columns:
                if c.name in keys:
                    found.setdefault(c.name, _column("ALTER", c, after))
        elif one.after is None and one.before is not None:
            found[one.before.name] = _column("DROP", one.before, before)
        elif one.before is None and one.after is not None:
            found[one.after.name] = _column("ADD", one.after, after)
        elif one.before is not None and one.after is not None:
            made = _column("ALTER", one.after, after)
            if one.before.name != one.after.name:
                made["columnNewName"] = one.after.name
            if one.before.source_type != one.after.source_type:
                made["note"] = USING
            found[one.before.name] = made
    return found


def _column(action: str, column: Column, relation: Relation) -> dict[str, Any]:
    numbers = _NUMBERS.search(column.source_type)
    first, second = (int(numbers[1]), int(numbers[2] or 0)) if numbers else (0, 0)
    exact = column.kind == "numeric"
    return {
        "columnNewName": None,
        "action": action,
        "type": column.source_type,
        "length": 0 if exact else first,
        "precision": first if exact else 0,
        "scale": second if exact else 0,
        "primaryKeyPosition": relation.key.index(column.name) + 1 if column.key else 0,
        "nullable": not column.key,
        "ordinal": [c.name for c in relation.columns].index(column.name) + 1,
    } | ({"note": column.note} if column.note and action == "ADD" else {})


def _time(seq: ChangeSeq) -> dt.datetime | None:
    """Returns the time in a change sequence; None for a layout that begins before all changes."""
    text = seq[: sequence.TIME_DIGITS]
    if not int(text):
        return None
    found = dt.datetime.strptime(text[:14], "%Y%m%d%H%M%S")
    return found.replace(microsecond=int(text[14:]) * 10_000, tzinfo=dt.timezone.utc)
