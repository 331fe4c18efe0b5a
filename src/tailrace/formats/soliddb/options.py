"""Options for solidDB's tables. Most of them cover what the vendor's public pages leave open."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ...wire.soliddb import Style
from ..base import Options


class SolidOptions(Options):
    """Options of `soliddb`."""

    row_layout: str = Field(
        default="A", description="How rows are laid out in DATA: A, B, or your own `package.module:LAYOUT`."
    )
    binary: Literal["hex", "base64"] = Field(
        default="hex", description="How binary columns are written in CSV and JSON."
    )
    logaddr_bytes: Annotated[Literal[0, 20, 28], BeforeValidator(int)] = Field(
        default=0, description="Bytes of LOGADDR; 0: read the length found, write 20."
    )
    capture_off: Literal["skip-all", "skip-deletes", "keep"] = Field(
        default="skip-all",
        description="Transactions with CAPTURE_OFF: none of their records is a change, their deletes "
        "are not, or "
        "all are changes. Skipped records are kept among the other records.",
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
        description="Key columns, if the tables do not name them: `SHOP.ITEM=ID; SHOP.LINE=ORDER_ID,POS`.",
    )
    tables: str = Field(
        default="",
        description="Tables whose changes are wanted, `SHOP.*, HR.STAFF`; other records are kept unchanged.",
    )
    keep_records: bool = Field(
        default=True,
        description="Keep records that are not row changes, and the system tables, as tables of `_SYSTEM`.",
    )

    def style(self) -> Style:
        """How DATA is read and written."""
        return Style(self.row_layout, self.char_encoding, self.year_bias, self.trailing_nul)

    def key_columns(self) -> dict[str, list[str]]:
        """Key columns by table.

        >>> SolidOptions(keys="S.A=ID; S.B=X, Y").key_columns()
        {'S.A': ['ID'], 'S.B': ['X', 'Y']}
        """
        parts = [p.partition("=") for p in self.keys.split(";") if p.strip()]
        return {t.strip(): [c.strip() for c in cs.split(",")] for t, _, cs in parts}

    def wants(self, table: str) -> bool:
        """Whether a table's changes are wanted."""
        patterns = [p.strip() for p in self.tables.split(",") if p.strip()]
        return not patterns or any(fnmatchcase(table, p) for p in patterns)
