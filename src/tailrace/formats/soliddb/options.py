"""Options for solidDB's tables. Most of them cover questions that the vendor's public pages leave open."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from ...model.patterns import fits, fitting
from ...wire.soliddb import Style
from ..base import Options
from ..option_names import columns_in, lists_in, names_in, no_table


class SolidOptions(Options):
    """Options of `soliddb`."""

    row_layout: str = Field(
        default="A", description="The layout of rows in DATA: A, B, or your own `package.module:LAYOUT`."
    )
    binary: Literal["hex", "base64"] = Field(
        default="hex", description="The form of binary columns in CSV and JSON."
    )
    logaddr_bytes: Annotated[Literal[0, 20, 28], BeforeValidator(int)] = Field(
        default=0, description="Bytes of LOGADDR; 0: read the length found, write 20."
    )
    capture_off: Literal["skip-all", "skip-deletes", "keep"] = Field(
        default="skip-all",
        description="Transactions with CAPTURE_OFF: none of their records is a change, their deletes are "
        "not changes, or all are changes. Skipped records are kept among the other records.",
    )
    starts: Literal["required", "optional"] = Field(
        default="required",
        description="Whether each transaction starts with a TRX_START record. If one has none, its "
        "changes are bad rows (required), or are read (optional), e.g. for an extract without such records.",
    )
    char_encoding: Literal["utf-8", "latin-1"] = Field(
        default="utf-8", description="Encoding of CHAR and VARCHAR."
    )
    year_bias: bool = Field(default=False, description="Write years with 0x8000 added; both forms are read.")
    trailing_nul: bool = Field(
        default=True, description="Write one 0x00 after CHAR and UNICODE values; both forms are read."
    )
    keys: str = Field(
        default="",
        description="Key columns, if the tables do not contain them: `SHOP.ITEM=ID; SHOP.LINE=ORDER_ID,POS`.",
    )
    tables: str = Field(
        default="",
        description="Tables whose changes are read, `SHOP.*, HR.STAFF`; other records stay unchanged.",
    )
    names: dict[str, str] = Field(
        default={},
        description="Names of tables, by catalog, schema and table: `DBA.SHOP.ITEM=SHOP.ITEM`; "
        "otherwise the catalog is left out where only one has such a table (`tailrace apply` keeps "
        "the names that it gave before).",
    )
    keep_records: bool = Field(
        default=True,
        description="Keep records that are not row changes, and the system tables, as tables of `_SYSTEM`.",
    )

    @field_validator("names", mode="before")
    @classmethod
    def _names_of_tables(cls, value: object) -> object:
        return names_in(value, "DBA.SHOP.ITEM=SHOP.ITEM; TEST.SHOP.ITEM=TEST.ITEM")

    def style(self) -> Style:
        """Returns the style in which DATA is read and written."""
        return Style(self.row_layout, self.char_encoding, self.year_bias, self.trailing_nul)

    def key_columns(self) -> dict[str, list[str]]:
        """Returns key columns by table.

        >>> SolidOptions(keys="S.A=ID; S.B=X, Y").key_columns()
        {'S.A': ['ID'], 'S.B': ['X', 'Y']}
        """
        return lists_in(self.keys)

    def wants(self, table: str) -> bool:
        """Whether a table's changes are read."""
        patterns = columns_in(self.tables)
        return not patterns or fits(table, *patterns)

    def unknown_tables(self, there: Collection[str]) -> list[str]:
        """Returns a note for each table that the options name and that is not one of these.

        >>> SolidOptions(keys="S.B=ID", tables="S.A, S.C*").unknown_tables(["S.A"])
        ['option keys: there is no table S.B; did you mean S.A?', \
'option tables: there is no table S.C*; did you mean S.A?']
        """
        notes = [no_table("keys", t, there) for t in self.key_columns() if t not in there]
        return notes + [no_table("tables", p, there) for p in self.unfit(there)]

    def unfit(self, names: Collection[str]) -> list[str]:
        """Returns the patterns of `tables` that match none of these tables."""
        return [p for p in columns_in(self.tables) if not fitting(names, p)]
