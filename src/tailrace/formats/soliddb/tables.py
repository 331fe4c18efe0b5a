"""Interprets the system tables that define how DATA is read: SYS_TABLES and SYS_COLUMNS, over time.

Source: spec/soliddb.md §6. Both are small and are processed as rows in the driver.

A table's name is `schema.table`, preceded by the catalog if several catalogs have a table of that name. So a
name may change when another catalog gets or loses such a table. `tailrace apply` keeps the names of earlier
runs (`Format.ids_option`), by id, which is the name with its catalog.

An extract may contain the LOGADDR from which a row is valid (`FROM_LOGADDR`, our own column; NULL: from the
start): all rows of a table with the same one are its layout from there on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import FormatError, UnsupportedError
from ...model.change import ChangeTable
from ...wire.soliddb import RowField
from ..base import ADDED_COLUMNS, WHY, VendorColumn, VendorTable
from ..option_names import refuse_columns

Row = Mapping[str, Any]
SYSTEM = "_SYSTEM"
"""The schema of solidDB's system tables."""
FROM = "FROM_LOGADDR"
FIRST_RELID = 10_000
"""The first generated table id; solidDB's own tables have lower ones."""

SYS_TABLES = VendorTable(
    "SYS_TABLES",
    "one row per table; valid from `FROM_LOGADDR`",
    tuple(
        VendorColumn(n, t, m, optional=n not in ("ID", "TABLE_NAME"))
        for n, t, m in (
            ("ID", "int", "SYS_LOG.RELID"), ("TABLE_NAME", "string", "name"),
            ("TABLE_TYPE", "string", "sort"),
            ("TABLE_SCHEMA", "string", "schema"), ("TABLE_CATALOG", "string", "catalog"),
            ("CREATIME", "timestamp", "created at"), ("CHECKSTRING", "string", "constraints"),
            ("REMARKS", "string", "remarks"), (FROM, "binary", "added by tailrace: valid from that LOGADDR"),
        )
    ),
    declares=True,
)  # fmt: skip
SYS_COLUMNS = VendorTable(
    "SYS_COLUMNS",
    "one row per column; valid from `FROM_LOGADDR`",
    tuple(
        VendorColumn(n, t, m, optional=n not in ("REL_ID", "COLUMN_NAME", "COLUMN_NUMBER"))
        for n, t, m in (
            ("ID", "int", "column id"), ("REL_ID", "int", "SYS_TABLES.ID"), ("COLUMN_NAME", "string", "name"),
            ("COLUMN_NUMBER", "int", "order in DATA"), ("DATA_TYPE", "string", "SQL type, in words"),
            ("SQL_DATA_TYPE_NUM", "int", "SQL type, ODBC's number"),
            ("DATA_TYPE_NUMBER", "int", "type family of the engine"), ("CHAR_MAX_LENGTH", "int", "length"),
            ("NUMERIC_PRECISION", "int", "digits"), ("NUMERIC_PREC_RADIX", "int", "radix of digits"),
            ("NUMERIC_SCALE", "int", "digits after the decimal point"), ("NULLABLE", "string", "YES or NO"),
            ("NULLABLE_ODBC", "int", "the same in ODBC's form"), ("FORMAT", "string", "format"),
            ("DEFAULT_VAL", "string", "default"), ("ATTR_TYPE", "int", "0: the user's column"),
            ("REMARKS", "string", "remarks; in tables written by tailrace the lake type and the rank in "
                                  "the key"),
            (FROM, "binary", "added by tailrace: valid from that LOGADDR"),
        )
    ),
    declares=True,
)  # fmt: skip

FAMILIES = {
    0: "CHAR", 1: "INTEGER", 2: "DOUBLE", 3: "DOUBLE", 4: "DATE", 5: "DFLOAT", 6: "BINARY", 7: "UNICODE",
    8: "BIGINT",
}  # fmt: skip
"""DATA_TYPE_NUMBER -> encoding of the values in DATA (2 is the engine's FLOAT)."""
SQL: dict[int, tuple[str, str, str]] = {
    -10: ("LONG WVARCHAR", "UNICODE", "string"), -9: ("WVARCHAR", "UNICODE", "string"),
    -8: ("WCHAR", "UNICODE", "string"), -7: ("BIT", "INTEGER", "boolean"),
    -6: ("TINYINT", "INTEGER", "smallint"),
    -5: ("BIGINT", "BIGINT", "bigint"), -4: ("LONG VARBINARY", "BINARY", "binary"),
    -3: ("VARBINARY", "BINARY", "binary"), -2: ("BINARY", "BINARY", "binary"),
    -1: ("LONG VARCHAR", "CHAR", "string"), 1: ("CHAR", "CHAR", "string"),
    2: ("NUMERIC", "DFLOAT", "decimal"),
    3: ("DECIMAL", "DFLOAT", "decimal"), 4: ("INTEGER", "INTEGER", "int"), 5: ("SMALLINT", "INTEGER", "int"),
    6: ("FLOAT", "DOUBLE", "double"), 7: ("REAL", "DOUBLE", "float"),
    8: ("DOUBLE PRECISION", "DOUBLE", "double"),
    9: ("DATE", "DATE", "date"), 10: ("TIME", "DATE", "string"),
    11: ("TIMESTAMP", "DATE", "timestamp_ntz"),
    12: ("VARCHAR", "CHAR", "string"), 91: ("DATE", "DATE", "date"), 92: ("TIME", "DATE", "string"),
    93: ("TIMESTAMP", "DATE", "timestamp_ntz"),
}  # fmt: skip
"""SQL_DATA_TYPE_NUM -> SQL type, family, Spark SQL type."""
_BY_NAME = {name: number for number, (name, _, _) in reversed(SQL.items())}
_PLAIN = {"UNICODE": "string", "CHAR": "string", "BINARY": "binary", "INTEGER": "int", "BIGINT": "bigint",
          "DOUBLE": "double", "DATE": "timestamp_ntz", "DFLOAT": "string"}  # fmt: skip
MADE = {
    "boolean": (-7, 1), "tinyint": (-6, 1), "smallint": (5, 1), "int": (4, 1), "bigint": (-5, 8),
    "float": (7, 2),
    "double": (8, 3),
    "string": (-9, 7), "binary": (-4, 6), "date": (9, 4), "timestamp": (11, 4),
    "timestamp_ntz": (11, 4), "decimal": (3, 5),
}  # fmt: skip
"""Spark SQL type -> SQL_DATA_TYPE_NUM and DATA_TYPE_NUMBER of generated columns."""


@dataclass(frozen=True)
class TableName:
    """A table's name, and its id; empty if its catalog is unknown."""

    name: str
    id: str


def bare_name(row: Row) -> str:
    """Returns `schema.table` of a row of SYS_TABLES."""
    return f"{row['TABLE_SCHEMA']}.{row['TABLE_NAME']}" if row["TABLE_SCHEMA"] else str(row["TABLE_NAME"])


def table_names(rows: Collection[Row], given: Mapping[str, str]) -> dict[int, TableName]:
    """Returns the names of tables by RELID, from their rows of SYS_TABLES; `given`: names that are known by
    id.

    Raises:
        FormatError: tables of several catalogs would have the same name.
    """
    places: dict[str, set[object]] = {}
    for row in rows:
        places.setdefault(bare_name(row), set()).add(row["TABLE_CATALOG"])
    owner = {table: id for id, table in given.items()}
    found: dict[int, TableName] = {}
    whose: dict[str, str] = {}
    for row in rows:
        bare, catalog = bare_name(row), row["TABLE_CATALOG"]
        full = f"{catalog}.{bare}" if catalog else ""
        plain = not full or (len(places[bare]) == 1 and owner.get(bare, full) == full)
        name = given.get(full) or (bare if plain else full)
        other = whose.setdefault(name, full or bare)
        if other != (full or bare):
            raise FormatError(
                f"{other} and {full or bare} would both be {name}",
                where="SYS_TABLES",
                hint=f"rename one of them: `--option 'names={full or other}={full or other}'`",
            )
        found[row["ID"]] = TableName(name, full)
    return found


@dataclass(frozen=True)
class SolidLayout:
    """The columns of one table id from a LOGADDR on, in DATA's order, and its key if it is known."""

    relid: int
    start: bytes
    table: str
    names: tuple[str, ...]
    fields: tuple[RowField, ...]
    key: tuple[str, ...]
    known_by: str = ""
    """`TableName.id`"""


def layouts(
    tables: Sequence[Row],
    columns: Sequence[Row],
    keys: Mapping[str, Sequence[str]],
    given: Mapping[str, str] | None = None,
) -> list[SolidLayout]:
    """Returns the layouts in SYS_TABLES and SYS_COLUMNS rows, by table id and start. Views and solidDB's own
    tables are skipped; `table_names` determines a table's name from the `given` names.

    Raises:
        FormatError: a table does not have a column of the option `keys`; tables would have the same name.
    """
    newest: dict[int, Row] = {}
    for row in sorted(tables, key=_start):
        if row["TABLE_SCHEMA"] != SYSTEM and (row["TABLE_TYPE"] or "BASE TABLE") == "BASE TABLE":
            newest[row["ID"]] = row
    called = table_names(newest.values(), given or {})
    grouped: dict[tuple[int, bytes], list[Row]] = {}
    for row in columns:
        if row["REL_ID"] in newest and not row["ATTR_TYPE"]:
            grouped.setdefault((row["REL_ID"], _start(row)), []).append(row)
    found = []
    now = current_columns(grouped)
    for (relid, start), mine in sorted(grouped.items()):
        row = newest[relid]
        name, full, known_by = bare_name(row), called[relid].name, called[relid].id
        ordered = sorted(mine, key=lambda r: r["COLUMN_NUMBER"])
        marked = [(_remark(r, "key"), r["COLUMN_NAME"]) for r in ordered]
        key = keys.get(full) or [c for k, c in sorted((int(k), c) for k, c in marked if k)]
        names = tuple(dict.fromkeys([known_by or name, name, row["TABLE_NAME"]]))
        fields = tuple(replace(field(r), taken=r["COLUMN_NAME"] in now[relid, start]) for r in ordered)
        found.append(SolidLayout(relid, start, full, names, fields, tuple(key), known_by))
    for table in {x.table for x in found}.intersection(keys):
        there = dict(union([x for x in found if x.table == table]))
        refuse_columns("keys", table, keys[table], there)
    return found


Layouts = Mapping[tuple[int, bytes], Sequence[Mapping[str, Any]]]
"""Rows of SYS_COLUMNS by table id and the LOGADDR from which they are valid."""


def column_id(relid: int, number: int) -> int:
    """Returns SYS_COLUMNS.ID of a generated row, from the column's number in its table."""
    return (relid * 1000 + number) % 2**31


def current_columns(layouts: Layouts) -> dict[tuple[int, bytes], set[str]]:
    """Returns the columns of each layout that are the last ones with their names, without columns that were
    dropped before another one got the name. That one has another id, or a layout in between does not have the
    name.

    A table that was dropped and created again has different ids throughout; its columns stay the same.
    """
    numbered = _numbered(layouts)
    found: dict[tuple[int, bytes], set[str]] = {}
    names: dict[int, set[str]] = {}
    after: dict[int, dict[str, Any]] = {}
    last: dict[int, set[str]] = {}
    newest: dict[tuple[int, str], Any] = {}
    for (relid, start), rows in sorted(layouts.items(), reverse=True):
        ids = {r["COLUMN_NAME"]: r["ID"] for r in rows}
        known, later = names.setdefault(relid, set()), after.get(relid, {})
        stay = last.get(relid, set()).intersection(ids)
        if relid in numbered:
            stay -= _others(ids, later)
            # A column with another name in between still has its id.
            stay |= {n for n, one in ids.items() if one is not None and one == newest.get((relid, n))}
        found[relid, start] = last[relid] = stay | (ids.keys() - known)
        known.update(ids)
        newest = {**{(relid, n): one for n, one in ids.items()}, **newest}
        after[relid] = ids
    return found


def _others(ids: Mapping[str, Any], later: Mapping[str, Any]) -> set[str]:
    """Returns the names that belong to another column in the next layout. If no column has its id there, ids
    have no meaning: they number the rows."""
    both = {n for n in ids.keys() & later.keys() if None not in (ids[n], later[n])}
    other = {n for n in both if ids[n] != later[n]}
    return other if other != both else set()


def _numbered(layouts: Layouts) -> set[int]:
    """Returns the tables whose columns have ids. Ids that only repeat the column's position are from an
    `export-log` that changed a column's id when an earlier column was dropped."""
    return {
        relid
        for (relid, _), rows in layouts.items()
        if any(r["ID"] != column_id(relid, r["COLUMN_NUMBER"]) for r in rows)
    }


def field(row: Row) -> RowField:
    """Returns the encoding of one column of SYS_COLUMNS in DATA. A column of an unknown type stays as
    bytes."""
    number = row["SQL_DATA_TYPE_NUM"]
    if number not in SQL:
        number = _BY_NAME.get((row["DATA_TYPE"] or "").upper().split("(")[0].strip())
    family = FAMILIES.get(row["DATA_TYPE_NUMBER"]) or (SQL[number][1] if number is not None else "BINARY")
    kind = SQL[number][2] if number is not None and SQL[number][1] == family else _PLAIN[family]
    if kind == "decimal":
        precision, scale = row["NUMERIC_PRECISION"] or 0, row["NUMERIC_SCALE"] or 0
        fits = 0 < precision <= 38 and 0 <= scale <= precision
        kind = f"decimal({precision},{scale})" if fits else "string"
    said = _remark(row, "type")
    if said and said in MADE and FAMILIES[MADE[said][1]] == family:
        kind = said
    return RowField(row["COLUMN_NAME"], family, kind)


def union(found: Sequence[SolidLayout]) -> list[tuple[str, str]]:
    """Returns names and types of the columns of all layouts of a table, the newest's first. A column whose
    type changed has the wider of its numeric types (a boolean is 0 or 1), or is text."""
    types: dict[str, str] = {}
    for one in sorted(found, key=lambda x: x.start, reverse=True):
        for f in filter(lambda f: f.taken, one.fields):
            types[f.name] = wider(types.get(f.name, f.type), f.type)
    return list(types.items())


def made_again(found: Sequence[SolidLayout]) -> str | None:
    """Returns which RELIDs of a table that was dropped and created do not have its whole key; None if all
    have it."""
    relids, key = sorted({x.relid for x in found}), found[-1].key
    missing = {x.relid: [c for c in key if c not in {f.name for f in x.fields}] for x in found}
    said = [
        f"RELID {relid} has no {', '.join(columns)}" for relid, columns in sorted(missing.items()) if columns
    ]
    if len(relids) < 2 or not said:
        return None
    all_ids = ", ".join(map(str, relids))
    return f"the table was created again (RELIDs {all_ids}): {'; '.join(said)}, which is in the key"


def wider(a: str, b: str) -> str:
    """Returns a type that holds both.

    >>> wider("int", "bigint"), wider("decimal(5,2)", "decimal(8,1)"), wider("int", "date")
    ('bigint', 'decimal(9,2)', 'string')
    """
    if a == b:
        return a
    for order in (("boolean", "tinyint", "smallint", "int", "bigint"), ("float", "double")):
        if a in order and b in order:
            return max(a, b, key=order.index)
    if a.startswith("decimal") and b.startswith("decimal"):
        (p, s), (q, t) = ([int(n) for n in re.findall(r"\d+", x)] for x in (a, b))
        digits = max(p - s, q - t) + max(s, t)
        return f"decimal({digits},{max(s, t)})" if digits <= 38 else "string"
    return "string"


Spec = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""A table to generate: its name, names and types of its columns, its key."""


def generated_rows(specs: Iterable[Spec], first: int = FIRST_RELID) -> tuple[list[Row], list[Row]]:
    """Returns SYS_TABLES and SYS_COLUMNS rows for tables that solidDB does not know.

    Raises:
        UnsupportedError: solidDB has no type for a column.
    """
    tables, columns = [], []
    for relid, (name, cols, key) in enumerate(sorted(specs), first):
        schema, dot, table = name.partition(".")
        known = {"ID": relid, "TABLE_NAME": table or name, "TABLE_TYPE": "BASE TABLE"}
        tables.append(_row(SYS_TABLES, known | ({"TABLE_SCHEMA": schema} if dot else {})))
        for place, (column, kind) in enumerate(cols, 1):
            columns.append(_made_column(relid, place, column, kind, key))
    return tables, columns


def _made_column(relid: int, place: int, column: str, kind: str, key: Sequence[str]) -> Row:
    plain = kind.partition("(")[0]
    if plain not in MADE:
        raise UnsupportedError(
            f"solidDB has no type for {kind}", where=f"column {column}", hint="cast the column to string"
        )
    number, family = MADE[plain]
    precision, scale = [int(n) for n in re.findall(r"\d+", kind)] if plain == "decimal" else (None, None)
    remarks = [] if SQL[number][2] == plain else [f"type={plain}"]
    remarks += [f"key={list(key).index(column) + 1}"] if column in key else []
    return _row(
        SYS_COLUMNS,
        {
            "ID": column_id(relid, place), "REL_ID": relid, "COLUMN_NAME": column, "COLUMN_NUMBER": place,
            "DATA_TYPE": SQL[number][0], "SQL_DATA_TYPE_NUM": number, "DATA_TYPE_NUMBER": family,
            "NUMERIC_PRECISION": precision, "NUMERIC_SCALE": scale,
            "NULLABLE": "NO" if column in key else "YES",
            "ATTR_TYPE": 0, "REMARKS": " ".join(["tailrace", *remarks]) if remarks else None,
        },
    )  # fmt: skip


def same(a: Sequence[Row], b: Sequence[Row], table: VendorTable) -> bool:
    """Whether two sets of rows of a system table are equal."""
    names = [c.name for c in table.columns]
    one, other = (sorted(repr([_plain(r[n]) for n in names]) for r in rows) for rows in (a, b))
    return one == other


def rows_of(ct: ChangeTable, table: VendorTable) -> list[Row]:
    """Returns the good rows of a system table that was read as a change table."""
    df = ct.df.filter(f"{WHY} is null") if WHY in ct.df.columns else ct.df
    return [r.asDict() for r in df.drop(*ADDED_COLUMNS).select(*[c.name for c in table.columns]).collect()]


def _row(table: VendorTable, known: Row) -> Row:
    return {c.name: known.get(c.name) for c in table.columns}


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray) else value


def _start(row: Row) -> bytes:
    return bytes(row[FROM] or b"")


def _remark(row: Row, name: str) -> str | None:
    remarks = row["REMARKS"] or ""
    found = re.search(rf"\b{name}=(\S+)", remarks) if remarks.startswith("tailrace ") else None
    return found[1] if found else None
