"""tailrace's own change tables as a format: what `store` writes, with any prefix and any subset of the
headers.

Source: design §1, spec/qlik.md §1.1. The tables hold everything that canonical change tables hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from ..errors import FormatError
from ..model import mask
from ..model.change import EXTRA_HEADERS, HEADERS, NATIVE, OPERATIONS, PREFIX, ChangeTable
from ..model.quoting import quoted
from .base import ADDED_COLUMNS, WHY, Format, Options, Read, Tables, VendorColumn, VendorTable
from .json_lines import is_of_lines
from .option_names import key_of, keys_of_none, refuse_columns
from .shape import TypedColumns, canonical, conform, data_start, reasons
from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SUFFIX = "__ct"
_KNOWN = {**HEADERS, **EXTRA_HEADERS}


class TailraceOptions(Options):
    """Options of `tailrace`."""

    key: str = Field(
        "",
        description="The row key: `id,pos` for all tables, or `shop.item=id; shop.line=id,pos`.",
    )
    columns: str = Field(
        "", description="Types of data columns that are text in the files: `id int, at timestamp`."
    )
    suffix: str = Field(SUFFIX, description="The suffix of change tables' names.")


TABLE = VendorTable(
    "{schema}.{table}__ct",
    "one row per image of a change: headers, then the source table's columns",
    tuple(
        VendorColumn(PREFIX + n, t, n, optional=n not in ("change_seq", "change_oper"))
        for n, t in HEADERS.items()
    ),
)


def types_of(text: str) -> dict[str, str]:
    """Parses column types as users write them: `id int, amount decimal(12,2)`.

    >>> types_of("id int, amount decimal(12,2)")
    {'id': 'int', 'amount': 'decimal(12,2)'}
    """
    found: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in _split(text))):
        name, _, kind = part.replace(":", " ", 1).partition(" ")
        found[name] = kind.strip()
    return found


def _split(text: str) -> list[str]:
    """Splits a text at commas outside parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def read(tables: Tables, options: TailraceOptions) -> Read:
    """Returns canonical change tables; masks are shifted if headers are missing."""
    named = _by_table(
        (n for n, df in tables.items() if n != n.removesuffix(options.suffix) or _has_sequences(df.columns)),
        options,
    )
    result = {name: _read_one(tables[vendor], name, options) for name, vendor in named.items()}
    control_tables = {n: df for n, df in tables.items() if n not in named.values()}
    there = {c for ct in result.values() for c in ct.columns}
    notes = [
        f"option columns: no table has a column {c}" for c in types_of(options.columns) if c not in there
    ]
    notes += keys_of_none(options.key, result)
    if tables and not result:
        raise FormatError(
            "no change tables", where=", ".join(tables), hint=f"their names end with {options.suffix}"
        )
    lines = frozenset(n.removesuffix(options.suffix) for n, df in tables.items() if is_of_lines(df))
    return Read(result, notes=tuple(notes), control_tables=control_tables, left_out=lines & result.keys())


def _has_sequences(columns: Sequence[str]) -> bool:
    return PREFIX + "change_seq" in (c.lower() for c in columns)


def _by_table(vendors: Iterable[str], options: TailraceOptions) -> dict[str, str]:
    """Returns table name -> its change table.

    Raises:
        FormatError: a table has two change tables.
    """
    named: dict[str, str] = {}
    for vendor in vendors:
        name = vendor.removesuffix(options.suffix)
        if (other := named.setdefault(name, vendor)) != vendor:
            raise FormatError(
                f"{other} and {vendor} are both the table {name}",
                where=vendor,
                hint="read them one by one, or move one of them away",
            )
    return named


def _read_one(df: DataFrame, name: str, options: TailraceOptions) -> ChangeTable:
    came = [c for c in df.columns if c not in ADDED_COLUMNS]
    data = [c for c in came if not c.lower().startswith(PREFIX)]
    extra = {h: c for c in came if c not in data and (h := _header(c)) not in HEADERS}
    came_as = df.schema
    df = conform(df, TABLE, where=name)
    start = data_start(extra)
    # Ordinals count the columns that are present; if headers are missing, bits are at lower positions than
    # in the result.
    places = {came.index(c): start + i for i, c in enumerate(data)}
    headers = {h: F.col(PREFIX + h) for h in HEADERS}
    headers |= {h: F.col(quoted(c)) for h, c in extra.items()}
    for h in ("change_mask", "column_mask"):
        headers[h] = mask.move(headers[h], places)
    oper = headers["change_oper"]
    del headers["operation"]  # it is derived from `change_oper`
    why = reasons(
        [
            (F.col(WHY).isNotNull(), F.col(WHY)),
            (oper.isNull() | ~oper.isin(*OPERATIONS), F.concat(F.lit("unknown operation "), oper)),
            (F.col(PREFIX + "change_seq").isNull(), "no change_seq"),
            (mask.beyond(F.col(PREFIX + "change_mask"), len(came)), "change mask longer than the columns"),
            (mask.beyond(F.col(PREFIX + "column_mask"), len(came)), "column mask longer than the columns"),
        ]
    )
    typed = TypedColumns({c: F.col(quoted(c)) for c in data})
    for c, kind in types_of(options.columns).items():
        if c in typed.values:
            typed.add(c, F.col(quoted(c)), kind, df.schema[c].dataType.simpleString())
    df = typed.marked(df.withColumn(WHY, why))
    key = key_of(options.key, name)
    hint = "give the keys of single tables with `key=shop.item=id; shop.line=id,pos`"
    refuse_columns("key", name, key, data, hint=hint)
    converted = canonical(df, headers, typed.values, key=key, name=name)
    # Header metadata of other formats (policies, layouts) stays available to them.
    for field in came_as:
        if field.metadata and field.name in converted.df.columns:
            converted = converted.with_df(converted.df.withMetadata(field.name, field.metadata))
    return converted


def _header(column: str) -> str:
    """Returns a header column's canonical name: in lower case, except the vendor's column after which it is
    named.

    >>> _header("HEADER__USER_NAME"), _header("header__native__Policy-Id")
    ('user_name', 'native__Policy-Id')
    """
    name = column[len(PREFIX) :]
    return NATIVE + name[len(NATIVE) :] if name.lower().startswith(NATIVE) else name.lower()


def write(changes: Mapping[str, ChangeTable], options: TailraceOptions) -> dict[str, DataFrame]:
    """Returns the change tables unchanged, under their own names."""
    return {name + options.suffix: ct.df.drop(*ADDED_COLUMNS) for name, ct in changes.items()}


def knows(columns: Sequence[str]) -> float:
    """Recognises tailrace's tables by `header__column_mask`; without it they are Qlik's."""
    have = {c.lower() for c in columns}
    return 1.0 if {PREFIX + "change_seq", PREFIX + "column_mask"} <= have else 0.0


class _Everything(frozenset[str]):
    """Every header, including those of other vendors."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in _KNOWN or name.startswith(NATIVE))


FORMAT = Format(
    name="tailrace",
    title="tailrace change tables",
    source="design §1; spec/qlik.md §1.1",
    tables=(TABLE,),
    operations=OPERATIONS,
    order=(PREFIX + "change_seq", PREFIX + "change_oper"),
    row_key="the columns that the task (or the option `key`) names",
    images="full, or sparse with `column_mask`; before images where the source sent them",
    masks="change mask: big-endian bytes, bit n is the column with ordinal n, headers included",
    types={
        t: t
        for t in (
            "boolean",
            "int",
            "bigint",
            "double",
            "decimal(p,s)",
            "string",
            "binary",
            "date",
            "timestamp",
        )
    },
    files=("delta", "parquet", "json", "csv"),
    holds=_Everything(),
    cannot=(),
    options=TailraceOptions,
    read=read,
    write=write,
    knows=knows,
    control_table=lambda _, df: df,
)
