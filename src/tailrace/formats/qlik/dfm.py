"""Parses and writes DFM 1.1, the metadata file of each data file (spec/qlik.md §6), as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ...errors import FormatError

TYPES: dict[str, str] = {
    "BOOLEAN": "boolean",
    "INT1": "tinyint",
    "INT2": "smallint",
    "INT4": "int",
    "INT8": "bigint",
    "UINT1": "smallint",
    "UINT2": "int",
    "UINT4": "bigint",
    "UINT8": "decimal(20,0)",
    "NUMERIC": "decimal(p,s)",
    "REAL4": "float",
    "REAL8": "double",
    "DATE": "date",
    "TIME": "string",
    "DATETIME": "timestamp",
    "STRING": "string",
    "WSTRING": "string",
    "CLOB": "string",
    "NCLOB": "string",
    "BYTES": "binary",
    "BLOB": "binary",
}
"""DFM type -> Spark SQL type."""
_BACK = {
    "boolean": "BOOLEAN",
    "tinyint": "INT1",
    "smallint": "INT2",
    "int": "INT4",
    "bigint": "INT8",
    "float": "REAL4",
    "double": "REAL8",
    "date": "DATE",
    "timestamp": "DATETIME",
    "timestamp_ntz": "DATETIME",
    "binary": "BYTES",
}
_MOST_DIGITS = 38
LAKE = "lakeType"
"""tailrace's attribute of a column: the exact lake type, if DFM uses the same name for several."""


@dataclass(frozen=True)
class DfmColumn:
    """A column of a data file; `ordinal` counts from 1, `key` is the rank in the primary key (0: none)."""

    ordinal: int
    name: str
    type: str
    length: int = 0
    precision: int = 0
    scale: int = 0
    key: int = 0
    lake: str | None = None

    def spark(self, datetime_as: str = "timestamp") -> str:
        """Returns the Spark SQL type; string if the number of digits is unknown or too large for a decimal.

        >>> DfmColumn(1, "n", "NUMERIC", precision=10, scale=2).spark()
        'decimal(10,2)'
        >>> DfmColumn(1, "n", "NUMERIC").spark()
        'string'
        """
        kind = self.type.upper()
        if self.lake and column(1, self.name, self.lake).type == kind:
            return self.lake
        if kind == "NUMERIC":
            fits = 0 <= self.scale <= self.precision <= _MOST_DIGITS and self.precision
            return f"decimal({self.precision},{self.scale})" if fits else "string"
        return datetime_as if kind == "DATETIME" else TYPES.get(kind, "string")


@dataclass(frozen=True)
class Dfm:
    """The content of a DFM file.

    Attributes:
        name: the data file, without the outer extension.
        extension: the data file's extension.
        content: `data` (full load) or `changes`.
        start, end: when writing the file started and ended, as ISO-8601 text (UTC).
        first, last: first and last transaction in it, also as text.
        records, errors: the number of rows, and of refused rows.
        format: `delimited`, `json` or `parquet`.
        options: delimiters of a delimited file.
        schema, table: schema and table at the target.
        source: schema and table at the source (written files have those of the target).
        version: increases with each DDL.
        columns: in order of their ordinals.
        task, server: the task and server that wrote it.
    """

    name: str
    columns: tuple[DfmColumn, ...]
    extension: str = "csv"
    content: str = "changes"
    start: str | None = None
    end: str | None = None
    first: str | None = None
    last: str | None = None
    records: int | None = None
    errors: int = 0
    format: str = "delimited"
    options: Mapping[str, Any] = field(default_factory=dict)
    schema: str = ""
    table: str = ""
    source: tuple[str, str] = field(default=("", ""), compare=False)
    version: int = 0
    task: str = ""
    server: str = ""

    def is_of(self, name: str) -> bool:
        """Whether it may belong to a table of this name: it has no name, or this one, at target or source.

        >>> made = Dfm("f.csv", (), schema="dbo", table="item", source=("SHOP", "ITEM"))
        >>> [made.is_of(n) for n in ("dbo.Item", "item", "shop.item", "dbo.other", "x.item")]
        [True, True, True, False, False]
        """
        schema, _, table = name.lower().rpartition(".")
        pairs = [(s.lower(), t.lower()) for s, t in ((self.schema, self.table), self.source) if t]
        whole = any(name.lower() in (t, f"{s}.{t}") for s, t in pairs)
        return not pairs or whole or any(t == table and not (s and schema) for s, t in pairs)

    def to_json(self) -> str:
        """Returns the text of the DFM file."""
        keys = ("ordinal", "name", "type", "length", "precision", "scale")
        columns = [
            {k: getattr(c, k) for k in keys} | {"primaryKeyPos": c.key} | ({LAKE: c.lake} if c.lake else {})
            for c in self.columns
        ]
        named: dict[str, str | int] = {"sourceSchema": self.schema, "sourceTable": self.table}
        named |= {"targetSchema": self.schema, "targetTable": self.table, "tableVersion": self.version}
        whole = {
            "dfmVersion": "1.1",
            "taskInfo": {
                "name": self.task, "sourceEndpoint": "", "sourceEndpointType": "", "sourceEndpointUser": "",
                "replicationServer": self.server, "operation": "dataProduced",
            },
            "fileInfo": {
                "name": self.name, "extension": self.extension, "location": "",
                "startWriteTimestamp": self.start, "endWriteTimestamp": self.end,
                "firstTransactionTimestamp": self.first, "lastTransactionTimestamp": self.last,
                "content": self.content, "recordCount": self.records, "errorCount": self.errors,
            },
            "formatInfo": {"format": self.format} | ({"options": dict(self.options)} if self.options else {}),
            "dataInfo": {**named, "columns": columns},
        }  # fmt: skip
        return json.dumps(whole, indent=2) + "\n"


def parse(text: str, *, where: str) -> Dfm:
    """Parses the text of a DFM file.

    Raises:
        FormatError: it is not JSON, or has no columns or no names of columns.

    >>> text = '{"dataInfo": {"columns": [{"ordinal": 1, "name": "id", "type": "INT4"}]}}'
    >>> [(c.name, c.spark()) for c in parse(text, where="x.dfm").columns]
    [('id', 'int')]
    """
    try:
        raw = json.loads(text.lstrip("\ufeff"))
        file, data = raw.get("fileInfo") or {}, raw["dataInfo"]
        shape, task = raw.get("formatInfo") or {}, raw.get("taskInfo") or {}
        columns = tuple(_column(c, i) for i, c in enumerate(data["columns"], 1))
        return Dfm(
            name=_text(file, "name") or "",
            columns=tuple(sorted(columns, key=lambda c: c.ordinal)),
            extension=_text(file, "extension") or "",
            content=_text(file, "content") or "",
            start=_text(file, "startWriteTimestamp"),
            end=_text(file, "endWriteTimestamp"),
            first=_text(file, "firstTransactionTimestamp"),
            last=_text(file, "lastTransactionTimestamp"),
            records=None if file.get("recordCount") is None else int(file["recordCount"]),
            errors=int(file.get("errorCount") or 0),
            format=_text(shape, "format") or "",
            options=dict(shape.get("options") or {}),
            schema=_text(data, "targetSchema") or _text(data, "sourceSchema") or "",
            table=_text(data, "targetTable") or _text(data, "sourceTable") or "",
            source=(_text(data, "sourceSchema") or "", _text(data, "sourceTable") or ""),
            version=int(data.get("tableVersion") or 0),
            task=_text(task, "name") or "",
            server=_text(task, "replicationServer") or "",
        )
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        hint = "restore the file, or remove it: the data file is then read without it"
        raise FormatError(f"no DFM: {type(error).__name__} {error}", where=where, hint=hint) from error


def _column(raw: Mapping[str, Any], index: int) -> DfmColumn:
    digits = {k: int(raw.get(k) or 0) for k in ("length", "precision", "scale")}
    return DfmColumn(
        int(raw.get("ordinal") or index),
        str(raw["name"]),
        str(raw.get("type") or "STRING"),
        **digits,
        key=int(raw.get("primaryKeyPos") or 0),
        lake=_text(raw, LAKE),
    )


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{key} is not text: {str(value)[:40]}")


_LENGTHS = {
    "change_seq": 35, "change_oper": 1, "change_mask": 128, "stream_position": 128, "operation": 12,
    "transaction_id": 32,
}  # fmt: skip


def column(ordinal: int, name: str, kind: str, *, key: int = 0, header: str | None = None) -> DfmColumn:
    """Returns the DFM column for a column of a Spark SQL type; `header` is its name without prefix if it is a
    header.

    >>> made = column(8, "price", "decimal(10,2)")
    >>> made.type, made.precision, made.scale
    ('NUMERIC', 10, 2)
    """
    if found := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind):
        digits = {"precision": int(found[1]), "scale": int(found[2])}
        return DfmColumn(ordinal, name, "NUMERIC", **digits, key=key, lake=kind)
    if header in _LENGTHS and kind in ("string", "binary"):
        word = "STRING" if kind == "string" else "BYTES"
        return DfmColumn(ordinal, name, word, length=_LENGTHS[header], lake=kind)
    return DfmColumn(ordinal, name, _BACK.get(kind, "WSTRING"), key=key, lake=kind)


def iso(moment: datetime) -> str:
    """Returns a time as in DFM files: UTC, milliseconds, no zone.

    >>> iso(datetime(2016, 8, 2, 10, 5, 4, 802000, tzinfo=timezone.utc))
    '2016-08-02T10:05:04.802'
    """
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="milliseconds")


__all__ = ["TYPES", "Dfm", "DfmColumn", "column", "iso", "parse"]
