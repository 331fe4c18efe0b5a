"""Options for Qlik change tables: the settings of the Store Changes page, and properties that the files do
not contain (spec/qlik.md §1.3)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from ...model.change import PREFIX
from ..base import Options

HEADERS = {
    "change_seq": "string",
    "change_oper": "string",
    "change_mask": "binary",
    "stream_position": "string",
    "operation": "string",
    "transaction_id": "string",
    "timestamp": "timestamp",
    "partition_name": "string",
}
"""Qlik's header columns in order, with Spark types; the last only with Change Data Partitioning."""
DEFAULT_HEADERS = tuple(HEADERS)[:7]
SUFFIX = "__ct"


class QlikOptions(Options):
    """Options of `qlik`."""

    suffix: str = Field(SUFFIX, description="Suffix of change tables' names, in any letter case.")
    prefix: str | None = Field(
        None,
        description="Prefix of header columns' names. Read: detected. Written: `header__`.",
    )
    headers: str = Field(
        "",
        description="Header columns to write, separated by commas; by default the usual seven, with "
        "partition_name if there are partitions. change_seq and change_oper are always written.",
    )
    key: str = Field(
        "",
        description="The row key, if there is no DFM: `id` for all tables, or `dbo.item=id;dbo.line=no,pos`.",
    )
    before_images: bool = Field(
        True, description="Whether an UPDATE is written with its before image, or only with the after image."
    )
    ddl: Literal["apply", "ignore"] = Field(
        "apply",
        description="How to write to an existing table with other columns: new files have the new columns, "
        "or the table keeps its columns.",
    )
    start: Literal["drop", "truncate", "keep"] = Field(
        "drop",
        description="Existing tables when writing starts: drop and create, delete the changes and keep the "
        "columns, or keep the changes.",
    )
    masks: Literal["table", "queue"] = Field(
        "table",
        description="The columns that bits of masks count: those of the table, headers included, or (queue "
        "messages) only the data columns.",
    )
    mask_order: Literal["auto", "big", "little"] = Field(
        "auto",
        description="Byte order of masks: most significant byte first (big), least significant byte first "
        "(little), or detected from some rows. Hex text is always big unless little is given; auto "
        "writes big.",
    )
    mask_bytes: int = Field(
        0,
        ge=0,
        le=1024,
        description="Minimum number of bytes of written masks; 0: zero bytes are trimmed.",
    )
    truncate_code: str = Field(
        "T", min_length=1, max_length=1, description="The letter that TRUNCATE rows have in change_oper."
    )
    partitions: Literal["all", "closed"] = Field(
        "all",
        description="With Change Data Partitioning: read all rows, or those of partitions that "
        "attrep_cdc_partitions lists as closed (the others wait).",
    )
    partition_minutes: int = Field(
        0,
        ge=0,
        description="Write partitions of this many minutes of commit time; 0: as in the rows.",
    )
    datetime: Literal["timestamp", "timestamp_ntz"] = Field(
        "timestamp", description="The type of a DFM's DATETIME in CSV and JSON files."
    )
    binary_text: Literal["hex", "base64"] = Field(
        "hex",
        description="The form of BYTES columns in CSV and JSON, and of bytes that become text because other "
        "files have text.",
    )
    csv_header: bool = Field(True, description="Whether CSV files start with a line of column names.")
    reference: str = Field(
        "",
        description="Read: a reference file; only the files it names are read. Written: the prefix of "
        "reference "
        "files' names; none if empty.",
    )
    gzip: bool = Field(False, description="Whether CSV and JSON files are written compressed (`.gz`).")
    server: str = Field(
        "tailrace", description="SERVER_NAME in control tables and DFM files that are written."
    )
    task: str = Field("tailrace", description="TASK_NAME in control tables and DFM files that are written.")

    @field_validator("headers")
    @classmethod
    def _known(cls, value: str) -> str:
        for name in filter(None, (n.strip() for n in value.split(","))):
            if name not in HEADERS:
                raise ValueError(f"{name!r} is none of {', '.join(HEADERS)}")
        return value

    @field_validator("truncate_code")
    @classmethod
    def _free(cls, value: str) -> str:
        if value in "IUDB":
            raise ValueError(f"{value} is another operation")
        return value

    def written_prefix(self) -> str:
        """The prefix of written header columns."""
        return PREFIX if self.prefix is None else self.prefix

    def written_headers(self, partitioned: bool) -> list[str]:
        """Returns the header columns to write, in Qlik's order.

        >>> QlikOptions(headers="timestamp,change_seq").written_headers(False)
        ['change_seq', 'change_oper', 'timestamp']
        """
        named = {n.strip() for n in self.headers.split(",") if n.strip()}
        wanted = named or {*DEFAULT_HEADERS, *(["partition_name"] if partitioned else [])}
        return [h for h in HEADERS if h in wanted | {"change_seq", "change_oper"}]

    def source_of(self, name: str) -> str | None:
        """Returns the source table of a change table's name; None if the name does not have the suffix.

        >>> QlikOptions().source_of("HR.EMPLOYEES__CT")
        'HR.EMPLOYEES'
        """
        if self.suffix and name.lower().endswith(self.suffix.lower()):
            return name[: -len(self.suffix)]
        return None


__all__ = ["DEFAULT_HEADERS", "HEADERS", "SUFFIX", "QlikOptions"]
