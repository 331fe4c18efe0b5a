"""The contract of a vendor format: differences declared as data, and functions `read` and `write` that
convert between the vendor's tables and canonical change tables.

A format never guesses and never repairs. Gaps of a vendor's tables are declared in `Format.cannot`, and
losses are counted; a row that violates the format gets a reason in the column `WHY`.

`read` returns for each source table a `ChangeTable` that follows these rules:

- all of `HEADERS` in order (NULL if unknown to the vendor), then headers of `EXTRA_HEADERS` and
  `header__native_*` that the vendor knows, then the data columns, then `WHY`, `FILE`, `ROW`;
- `change_seq` orders the table's changes as text; (`change_seq`, `change_oper`) is unique; B and U of one
  update have the same one; a U row has no B row if the vendor keeps no before images;
- bit n of `change_mask` and `column_mask` is the column with ordinal n in that table; `change_mask` is
  NULL if the vendor does not record what changed; `column_mask` is NULL if the image has every column;
- timestamps are UTC; the order of rows has no meaning.

`write` gets only change tables, of any source: `read(write(x))` equals x after the `erase` of every gap in
`cannot`, and `write(read(y))` equals y on all declared columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ..errors import FormatError
from ..model.change import ChangeTable
from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OWN = "tailrace__"
"""The prefix of every column that is added to a vendor's columns; vendor's tables with such columns are
refused (`refuse_own`)."""

FILE, ROW, WHY, RAW = (OWN + name for name in ("file", "row", "why", "raw"))
"""Columns added to each row that is read: its file (string), its number in the file from 1 (bigint, NULL if
the file kind has none), why it is bad (string, NULL: it is good), and the original row (JSON text)."""
AGAIN = "the same row again, read once"
"""Reason of a row that is a copy of another row, e.g. in a file that was delivered twice: ignored, but not
bad."""

FINER = OWN + "finer"
"""Added to each row: whether a fraction was finer than microseconds; these digits are lost."""
ADDED_COLUMNS = (FILE, ROW, WHY, RAW, FINER)

Tables = Mapping[str, "DataFrame"]
"""The vendor's tables by name, e.g. `dbo.item__ct` or `_Cdc-Change-Tracking`."""


class Options(BaseModel):
    """Options of a format that users can set; formats subclass it and document each field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    encoding: str = Field(
        default="utf-8",
        description="Read: the encoding of text files, e.g. `latin-1`, `cp1252`, `utf-16`. UTF-8 is written.",
    )
    delimiter: str = Field(
        default="",
        description="Read: the delimiter of text files, `\\t` for a tab; by default it is detected in "
        "the first "
        "line (comma, semicolon, tab or bar).",
    )

    @field_validator("encoding")
    @classmethod
    def _an_encoding(cls, value: str) -> str:
        try:
            "".encode(value)
        except LookupError:
            raise ValueError(f"there is no encoding {value!r}") from None
        return value


@dataclass(frozen=True)
class VendorColumn:
    """Declaration of a column of a vendor's table.

    Attributes:
        name: spelled as in the vendor's newest release; letter case is ignored when a table is read.
        type: Spark SQL type.
        means: the canonical header that it becomes, or a description.
        aliases: other spellings that are accepted.
        optional: whether a table without it can be read (its values are NULL then).
    """

    name: str
    type: str
    means: str
    aliases: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class VendorTable:
    """Declaration of a table of the vendor.

    Attributes:
        name: its name, or a pattern for people (`{schema}.{table}__ct`).
        about: description of its rows.
        columns: its declared columns.
        declares: whether its rows define how other tables are read; a preview reads all of them.
    """

    name: str
    about: str
    columns: tuple[VendorColumn, ...]
    declares: bool = False

    def matches(self, columns: Sequence[str]) -> int:
        """Returns how many of its columns are among these, in any letter case and spelling."""
        there = {c.lower() for c in columns}
        return sum(not there.isdisjoint(s.lower() for s in (c.name, *c.aliases)) for c in self.columns)


@dataclass(frozen=True)
class Gap:
    """Something that a format cannot hold.

    Attributes:
        kind: a short name, used in all formats for the same gap (`truncate`, `before_image`, ...).
        why: a sentence for the documentation.
        lost: returns which rows of a change table lose something (a boolean Column).
        erase: returns the change table without what is lost, as `read` returns it.
        under: whether the gap exists with these options of `write` (None: always).
    """

    kind: str
    why: str
    lost: Callable[[ChangeTable], Column]
    erase: Callable[[ChangeTable], ChangeTable]
    under: Callable[[Any], bool] | None = None


@dataclass(frozen=True)
class Read:
    """Result of reading a vendor's tables.

    Attributes:
        changes: canonical change tables by source table, each with `WHY`, and with `FILE`, `ROW`, `RAW` if
            the input rows had `FILE`, `ROW`.
        pending: rows that wait for more input (an unfinished transaction) or change nothing, by the vendor's
            table, with their reason in `WHY`.
        notes: observations about whole tables, for the user.
        control_tables: tables without changes, by name; with `WHY` if they are declared.
        apart: change tables that no target accepts (a log's own records, changes without values), and why;
            those that define how others are read are last.
        keyless: change tables with an unknown key, with the reason if more is known.
        made_again: change tables with changes that do not have the key, because the table was dropped and
            created with another one, and which changes these are.
        ids: the vendor's id of each change table that is named after its rows or after neighbouring tables;
            other input may name it differently (`Format.ids_option`).
        unnamed: those of `ids` whose rows contain no name, and why.
        partial: change tables whose columns are known from their rows only: other rows may have more.
        left_out: partial change tables of JSON lines, which may omit NULL values: columns that no line has
            are NULL in all images.
    """

    changes: dict[str, ChangeTable]
    pending: dict[str, DataFrame] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    control_tables: dict[str, DataFrame] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)
    keyless: Mapping[str, str] = field(default_factory=dict)
    made_again: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    unnamed: Mapping[str, str] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Format:
    """One vendor's change tables, as declared differences.

    Attributes:
        name: the name that users type.
        title: product and table, for the user.
        source: the sections of the fact sheet and vendor pages that it is based on.
        tables: the vendor's tables with their columns.
        operations: native operation code -> its meaning (an operation of `change.OPERATIONS`, or a
            description of codes that are no row change).
        order: native columns that order changes, and their scope.
        row_key: how a row is identified.
        images: description of the columns of images, including before images.
        masks: description of how changed columns are marked.
        types: vendor type -> Spark SQL type.
        files: kinds of file that it is read from and written to (`parquet`, `csv`, `json`, `delta`).
        holds: canonical headers that it keeps, in addition to change_seq, change_oper and operation.
        cannot: gaps: what is lost when changes are written in it.
        options: settings for users.
        read: vendor's tables -> canonical change tables.
        write: canonical change tables by source table -> vendor's tables.
        knows: how likely a table with these column names is one of this vendor's, from 0 (no) to 1.
        load: reads the vendor's tables from a path (None: `file_reader.load`).
        save: writes them to a path (None: `file_writer.save`); with an option `start` it also accepts folders
            that are not empty.
        control_table: converts a table without changes, by its name, to the form that is stored with this
            format's tables (None: it cannot be stored there).
        by_number: whether its tables, written with these options, keep only the number of a change sequence
            (None: never).
        complete: compares the number of rows in files with their metadata; returns a line for each
            difference.
        refuse: raises ConfigError or FormatError if a path has nothing to read, without Spark (None:
            `file_reader.refuse_nothing`).
        columns: returns the columns of the vendor's tables at a path, by table, without Spark (None:
            `file_reader.columns_at`).
        ids_option: the option that maps the vendor's ids (`Read.ids`) to tables (None: no table is named
            after its rows).
    """

    name: str
    title: str
    source: str
    tables: tuple[VendorTable, ...]
    operations: Mapping[str, str]
    order: tuple[str, ...]
    row_key: str
    images: str
    masks: str
    types: Mapping[str, str]
    files: tuple[str, ...]
    holds: frozenset[str]
    cannot: tuple[Gap, ...]
    options: type[Options]
    read: Callable[[Tables, Any], Read]
    write: Callable[[Mapping[str, ChangeTable], Any], dict[str, DataFrame]]
    knows: Callable[[Sequence[str]], float]
    load: Callable[[SparkSession, str, Any], dict[str, DataFrame]] | None = None
    save: Callable[[Tables, str, str, Any], None] | None = None
    complete: Callable[[SparkSession, str, Any], list[str]] | None = None
    control_table: Callable[[str, DataFrame], DataFrame | None] | None = None
    by_number: Callable[[Any], bool] | None = None
    refuse: Callable[[str, Any], None] | None = None
    columns: Callable[[str, Any], dict[str, Sequence[str]]] | None = None
    ids_option: str | None = None

    def declares(self, columns: Sequence[str]) -> bool:
        """Whether the rows of a table with these columns define how other tables are read."""
        return max(self.tables, key=lambda t: t.matches(columns)).declares

    def gaps(self, changes: ChangeTable, options: Options | None = None) -> list[Gap]:
        """Returns the gaps of `cannot` that exist with these options (None: the defaults), and a gap for each
        header of a change table that this format does not hold."""
        options = self.options() if options is None else options
        always = ("change_seq", "change_oper", "operation")
        lost = [h for h in changes.headers if h not in always and h not in self.holds]
        mine = [g for g in self.cannot if g.under is None or g.under(options)]
        return [*mine, *(header_gap(h) for h in lost)]


def value_gap(kind: str, why: str, header: str, written: Callable[[ChangeTable, Column], Column]) -> Gap:
    """Returns the gap of a header of which some values are changed when written: `written` returns them for a
    change table and the header's values."""

    def lost(ct: ChangeTable) -> Column:
        full = ct.header(header)
        if full not in ct.df.columns:
            return F.lit(False)
        return ~F.col(full).eqNullSafe(written(ct, F.col(full)))

    def erase(ct: ChangeTable) -> ChangeTable:
        full = ct.header(header)
        if full not in ct.df.columns:
            return ct
        return ct.with_df(ct.df.withColumn(full, written(ct, F.col(full)).cast(ct.df.schema[full].dataType)))

    return Gap(kind, why, lost, erase)


def header_gap(name: str) -> Gap:
    """Returns the gap of a header column that a format cannot hold."""
    return value_gap(f"header {name}", f"there is no column for {name}", name, lambda ct, value: F.lit(None))


def operation_gap(oper: str, kind: str, why: str) -> Gap:
    """Returns the gap of a whole kind of rows, e.g. truncates: they are not written."""

    def lost(ct: ChangeTable) -> Column:
        return F.col(ct.header("change_oper")) == oper

    return Gap(kind, why, lost, lambda ct: ct.with_df(ct.df.filter(~lost(ct))))


def refuse_own(tables: Mapping[str, DataFrame], where: str) -> None:
    """Raises FormatError if one of the tables has a column with the prefix `OWN`."""
    for name, df in tables.items():
        own = [c for c in df.columns if c.lower().startswith(OWN)]
        if odd := [c for c in own if c not in ADDED_COLUMNS or own.count(c) > 1]:
            raise FormatError(
                f"{name} has a column {odd[0]}: names that begin with {OWN} are reserved for "
                "columns that tailrace adds",
                where=where,
                hint="rename it where the files are created",
            )


def shown(columns: Sequence[str]) -> dict[str, str]:
    """Returns, for columns that were added to rows, the names under which they are stored and shown.

    >>> shown(["id", "tailrace__why", "tailrace__row", "_Row"])
    {'tailrace__why': '_why'}
    """
    theirs = {c.lower() for c in columns}
    short = {c: "_" + c.removeprefix(OWN) for c in columns if c in ADDED_COLUMNS}
    return {c: name for c, name in short.items() if name not in theirs}
