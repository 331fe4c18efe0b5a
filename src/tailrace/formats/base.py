"""The contract of a vendor format: differences declared as data, and `read` and `write` between the vendor's
tables and canonical change tables.

A format never guesses and never repairs. What a vendor's table cannot hold is declared in `Format.cannot`,
and counted when it is lost; a row that is not what the format promises gets its reason in the column `WHY`.

What `read` gives, for each source table, is a `ChangeTable` that keeps these rules:

- all of `HEADERS` in order (NULL where the vendor does not know), then headers of `EXTRA_HEADERS` and
  `header__native_*` as far as the vendor knows them, then the data columns, then `WHY`, `FILE`, `ROW`;
- `change_seq` orders the table's changes as text; (`change_seq`, `change_oper`) is unique; B and U of one
  update share it; a U row has no B row where the vendor keeps no before images;
- bit n of `change_mask` and `column_mask` is the column with ordinal n in that very table; `change_mask` is
  NULL where the vendor does not say what changed; `column_mask` is NULL when the image has every column;
- timestamps are UTC; the order of rows means nothing.

`write` takes change tables of any source and gets nothing else: `read(write(x))` equals x after the
`erase` of every gap in `cannot`, and `write(read(y))` equals y on all declared columns.
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
"""What the name of every column begins with that is added to a vendor's columns; a vendor's table that has
such a column is refused (`refuse_own`)."""

FILE, ROW, WHY, RAW = (OWN + name for name in ("file", "row", "why", "raw"))
"""Columns added to a row when it is read: the file it came from (string), its number in the file from 1
(bigint, NULL if the file kind has none), why it is bad (string, NULL: it is good), and the original row
(JSON text)."""
AGAIN = "the same row again, read once"
"""Reason of a row that is a copy of another one, as of a file that was delivered twice: not read, not bad."""

FINER = OWN + "finer"
"""Added to a row: whether one of its fractions was finer than microseconds, which is lost."""
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
    """A column of a vendor's table.

    Attributes:
        name: as the vendor's newest release spells it; letter case means nothing when read.
        type: Spark SQL type.
        means: the canonical header it becomes, or words that say what it is.
        aliases: other spellings that are read.
        optional: whether a table without it can be read (it is NULL then).
    """

    name: str
    type: str
    means: str
    aliases: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class VendorTable:
    """A table of the vendor.

    Attributes:
        name: its name, or a pattern for people (`{schema}.{table}__ct`).
        about: what its rows are.
        columns: its declared columns.
        declares: whether its rows say how others are read; a preview reads all of them.
    """

    name: str
    about: str
    columns: tuple[VendorColumn, ...]
    declares: bool = False

    def matches(self, columns: Sequence[str]) -> int:
        """The number of its columns that are among these, in any letter case and spelling."""
        there = {c.lower() for c in columns}
        return sum(not there.isdisjoint(s.lower() for s in (c.name, *c.aliases)) for c in self.columns)


@dataclass(frozen=True)
class Gap:
    """Something that a format cannot hold.

    Attributes:
        kind: a short name, the same in all formats for the same thing (`truncate`, `before_image`, ...).
        why: one sentence for the documentation.
        lost: which rows of a change table lose something (a boolean Column).
        erase: the change table as it is afterwards: what `read` gives back of it.
        under: whether it is there when written with these options (None: it always is).
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
        changes: canonical change tables by source table, each with `WHY`, and with `FILE`, `ROW`, `RAW` when
            the rows that came in had `FILE`, `ROW`.
        pending: rows that wait for more input (an unfinished transaction) or change nothing, by the vendor's
            table, with what they say in `WHY`.
        notes: what is odd about the tables as a whole, for people.
        control_tables: tables that hold no changes, by name; with `WHY` when they are declared.
        apart: change tables that no target takes (a log's own records, changes without values), and why;
            those that say how others are read are last.
        keyless: change tables whose key is not known, and why, if more is known than that.
        made_again: change tables some of whose changes do not have the key, because the table was dropped
            and created with another one, and which these are.
        ids: the vendor's id of each change table that has its name from its rows, or from the tables next to
            it: others may give it another one (`Format.ids_option`).
        unnamed: those of `ids` whose rows give none, and why.
        partial: change tables that have the columns of their rows, because nothing else says which there
            are: other rows may have more.
        left_out: the same of JSON lines, which may leave out what is NULL: columns that no line has are NULL
            in all images.
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
        name: what users type.
        title: product and table, for people.
        source: fact sheet sections and vendor pages all of this rests on.
        tables: the vendor's tables with their columns.
        operations: native operation code -> what it means here (an operation of `change.OPERATIONS`, or words
            for codes that are no row change).
        order: native columns that order changes, and within what.
        row_key: how a row's identity is known.
        images: which columns an image carries, before images included, in words.
        masks: how changed columns are marked, in words.
        types: vendor type -> Spark SQL type.
        files: kinds of file it is read from and written to (`parquet`, `csv`, `json`, `delta`).
        holds: canonical headers it keeps, beyond change_seq, change_oper and operation.
        cannot: what is lost when written in it.
        options: what users can set.
        read: vendor's tables -> canonical change tables.
        write: canonical change tables by source table -> vendor's tables.
        knows: whether a table with these column names is one of this vendor's, as a figure from 0 (no) to 1.
        load: reads the vendor's tables from a path (None: `file_reader.load`).
        save: writes them there (None: `file_writer.save`); with an option `start` it also takes folders that
            are not empty.
        control_table: gives a table that holds no changes, by its name, as it is kept next to this format's
            tables (None: it has no place there).
        by_number: whether its tables, written with these options, keep of a change sequence its number alone
            (None: they never do).
        complete: compares the number of rows in files with their metadata; differences, a line for each file.
        refuse: raises ConfigError or FormatError if there is nothing to read at a path, without Spark (None:
            `file_reader.refuse_nothing`).
        columns: the columns of the vendor's tables at a path, by table, without Spark (None:
            `file_reader.columns_at`).
        ids_option: the option that gives the tables of the vendor's ids (`Read.ids`), id -> table (None: no
            table has its name from its rows).
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
        """Whether a table with these columns is one whose rows say how others are read."""
        return max(self.tables, key=lambda t: t.matches(columns)).declares

    def gaps(self, changes: ChangeTable, options: Options | None = None) -> list[Gap]:
        """`cannot`, as far as it is so with these options (None: the defaults), plus a gap for each header of
        a change table that this format does not hold."""
        options = self.options() if options is None else options
        always = ("change_seq", "change_oper", "operation")
        lost = [h for h in changes.headers if h not in always and h not in self.holds]
        mine = [g for g in self.cannot if g.under is None or g.under(options)]
        return [*mine, *(header_gap(h) for h in lost)]


def value_gap(kind: str, why: str, header: str, written: Callable[[ChangeTable, Column], Column]) -> Gap:
    """The gap of a header some of whose values are written as others: `written` gives them for a change table
    and the header's values."""

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
    """The gap of a header column that a format has no place for."""
    return value_gap(f"header {name}", f"there is no place for {name}", name, lambda ct, value: F.lit(None))


def operation_gap(oper: str, kind: str, why: str) -> Gap:
    """The gap of a whole kind of rows, e.g. truncates: they are not written."""

    def lost(ct: ChangeTable) -> Column:
        return F.col(ct.header("change_oper")) == oper

    return Gap(kind, why, lost, lambda ct: ct.with_df(ct.df.filter(~lost(ct))))


def refuse_own(tables: Mapping[str, DataFrame], where: str) -> None:
    """Raises FormatError if one of the tables that were read has such a column."""
    for name, df in tables.items():
        own = [c for c in df.columns if c.lower().startswith(OWN)]
        if odd := [c for c in own if c not in ADDED_COLUMNS or own.count(c) > 1]:
            raise FormatError(
                f"{name} has a column {odd[0]}: names that begin with {OWN} are those that tailrace adds",
                where=where,
                hint="give it another name where the files are made",
            )


def shown(columns: Sequence[str]) -> dict[str, str]:
    """Column -> its name in what is kept or shown of rows, for those that were added to them.

    >>> shown(["id", "tailrace__why", "tailrace__row", "_Row"])
    {'tailrace__why': '_why'}
    """
    theirs = {c.lower() for c in columns}
    short = {c: "_" + c.removeprefix(OWN) for c in columns if c in ADDED_COLUMNS}
    return {c: name for c, name in short.items() if name not in theirs}
