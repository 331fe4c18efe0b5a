"""Declares OpenEdge's CDC tables: policies, change tracking, change tables, and the schema tables with files
and fields.

Column names are those of OpenEdge 12.8; names of 12.2, other letter cases, and names with `_` instead of `-`
are accepted. Source: spec/openedge.md §1.1, §1.2, §2.1, §3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import FormatError
from ...model.types import element_type
from ..base import VendorColumn, VendorTable


def _column(name: str, type: str, means: str, *aliases: str, optional: bool = True) -> VendorColumn:
    """Declares a column that is also accepted with underscores for hyphens, as many tools write it."""
    spelled = dict.fromkeys([*aliases, *(a.replace("-", "_") for a in (name, *aliases))])
    return VendorColumn(name, type, means, tuple(s for s in spelled if s != name), optional)


TABLE_POLICY = VendorTable(
    "_Cdc-Table-Policy",
    "what is captured of a source table; at most one current policy per table, any number of previous ones",
    (
        _column("_Policy-Id", "string", "referenced by tracking rows, case-sensitive", optional=False),
        _column("_Policy-Name", "string", "name given by the users"),
        _column("_Policy-Desc", "string", "description"),
        _column("_Policy-State", "int", "0 active, 1 inactive"),
        _column("_Policy-Instance", "int", "0 current, 1 previous, 2 pending"),
        _column("_Source-File-Recid", "bigint", "Recid of the source table in _File"),
        _column("_Area-Ianum", "int", "area of the change table"),
        _column("_Index-Area-Ianum", "int", "area of its indexes", "_Area_Index-Ianum", "_Area-Index-Ianum"),
        _column("_Change-Tablename", "string", "the change table"),
        _column("_Object-Id", "int", "_File-Number of the change table"),
        _column("_Identifying-Fields", "boolean", "whether identifying fields are indexed"),
        _column("_Level", "int", "0 to 3: how much of a change is stored"),
        _column("_Change-Table-Owner", "string", "owner of the change table"),
        _column("_Encrypt-Policy", "boolean", "whether the change table is encrypted as its source is"),
        _column("_Last-Modified", "timestamp", "when _Policy-Instance changed"),
        _column("_First-User-Field", "int", "physical position of the change table's first user column"),
        _column("_Misc", "string", "reserved"),
    ),
    declares=True,
)
FIELD_POLICY = VendorTable(
    "_Cdc-Field-Policy",
    "the fields a policy captures",
    (
        _column("_Policy-Id", "string", "its table policy", optional=False),
        _column("_Field-Position", "int", "physical position of the field in the source table"),
        _column("_Identifying-Field", "int", "0: none; 1 to 15: rank in the row's identity"),
        _column("_Field-Recid", "bigint", "Recid of the source's field in _Field"),
        _column("_Misc", "string", "reserved"),
    ),
    declares=True,
)
TRACKING = VendorTable(
    "_Cdc-Change-Tracking",
    "one row per change of any captured table",
    (
        _column("_Policy-Id", "string", "the policy under which the change was captured"),
        _column("_Tran-Id", "int", "transaction_id"),
        _column("_Time-Stamp", "timestamp", "timestamp"),
        _column("_Change-Sequence", "bigint", "change_seq, within a source table", optional=False),
        _column("_Operation", "int", "change_oper", optional=False),
        _column("_Change-FieldMap", "binary", "change_mask of updates", "_Source-FieldMap"),
        _column("_Recid", "bigint", "recid", "_Source-Rowid"),
        _column("_Source-Table-Number", "int", "_File-Number of the source table"),
        _column("_Partition-Id", "int", "partition_id", "_Source-Partition-Id"),
        _column("_Tenant-Id", "int", "tenant_id"),
        _column("_Version", "int", "reserved for versions of the format"),
        _column("_User-Misc", "string", "for the users, e.g. to mark a change as applied"),
        _column("_User-Name", "string", "user_name"),
        _column("_Misc", "string", "reserved"),
        _column("change_seq", "string", "change_seq of other sources, 35 digits: an addition of tailrace"),
    ),
)
CHANGE = VendorTable(
    "{owner}.CDC_{table}",
    "images of one source table's changes: metadata, then the captured fields",
    (
        _column("_Tran-Id", "int", "transaction_id"),
        _column("_Time-Stamp", "timestamp", "timestamp"),
        _column("_Change-Sequence", "bigint", "change_seq", optional=False),
        _column("_Continuation-Position", "int", "not 0: half of a split record", "_Continuation"),
        _column("_ArrayIndex", "int", "the array element at which a split record is cut", "_Array-Index"),
        _column("_Fragment", "int", "1: a split record is cut inside a value"),
        _column("_Operation", "int", "change_oper", optional=False),
        _column(
            "_Column-Map", "binary", "column_mask of other sources as field map: an addition of tailrace"
        ),
    ),
)
FILE_TABLE = VendorTable(
    "_File",
    "the database's tables; optional, without it names come from the change tables' names",
    (
        _column("_File-Number", "int", "referenced by tracking rows", optional=False),
        _column("_File-Name", "string", "table", optional=False),
        _column("_Owner", "string", "schema"),
        _column("Recid", "bigint", "the row's own recid", "_Recid", "Rowid", "_Rowid"),
    ),
    declares=True,
)
FIELD_TABLE = VendorTable(
    "_Field",
    "the fields of tables; optional, with physical positions, types, array extents and key columns",
    (
        _column("_File-Recid", "bigint", "Recid of the field's table", optional=False),
        _column("_Field-Name", "string", "column", optional=False),
        _column("_Field-Physpos", "int", "physical position, from 2", optional=False),
        _column("_Data-Type", "string", "ABL data type"),
        _column("_Decimals", "int", "digits after the decimal point"),
        _column("_Extent", "int", "elements of an array, 0: not an array"),
        _column("Recid", "bigint", "the row's own recid", "_Recid", "Rowid", "_Rowid"),
    ),
    declares=True,
)
TABLES = (TABLE_POLICY, FIELD_POLICY, TRACKING, CHANGE, FILE_TABLE, FIELD_TABLE)
KNOWN = {t.name.lower().replace("-", "_"): t for t in TABLES if t is not CHANGE}
"""Tables with a fixed name, keyed by it in lower case with underscores."""
DUMPED = "_Cdc-Policy-Dump"
"""The only column of a table that represents a `.cd` file: its bytes."""
ADDED = {"change_seq", "_Column-Map"}
"""Columns that OpenEdge's own tables do not have."""

CREATE, DELETE, BEFORE_UPDATE, AFTER_UPDATE = 1, 2, 3, 4
FIELD_DELETE, MERGE_DROP, FIELD_ADD = 5, 11, 12
GONE = {
    6: "partition drop",
    7: "partition truncate",
    8: "partition deallocate",
    9: "tenant partition deallocate",
    10: "tenant partition drop",
}
"""Operations that remove rows without a change for each row."""
OTHER_OPERATIONS = {
    FIELD_DELETE: "a field was removed from the policy or the table: its column stays NULL from here on",
    MERGE_DROP: "a partition was merged into another: its rows moved, none changed",
    FIELD_ADD: "the change table has a new column from here on, or captures one again",
}
"""Operations that change no row: they go to `Read.pending`."""
OPERATIONS = {
    "0": "no operation: a bad row",
    "1": "I",
    "2": "D",
    "3": "B",
    "4": "U",
    **{str(code): f"{words}: a bad row, or T with `partitions=truncate`" for code, words in GONE.items()},
    **{str(code): words for code, words in OTHER_OPERATIONS.items()},
}
OPER = {1: "I", 2: "D", 3: "B", 4: "U", **dict.fromkeys(GONE, "T")}
"""`_Operation` -> `change_oper`."""
LEVELS = {0: "Minimal", 1: "MinimalWithBitMap", 2: "Medium", 3: "Maximum"}
VALUED = 2
"""The lowest level whose change tables have rows."""
FIRST_USER_FIELD = 9
"""Positions count from 2, and seven metadata columns come first."""

TYPES = {
    "character": "string", "integer": "int", "int64": "bigint", "decimal": "decimal(38,10)",
    "logical": "boolean", "date": "date", "datetime": "timestamp_ntz", "datetime-tz": "timestamp",
    "raw": "binary", "recid": "bigint", "rowid": "string",
    "double": "double", "real": "float", "float": "double",
}  # fmt: skip
"""ABL data type -> Spark SQL type (spec/openedge.md §7); the last three are of OpenEdge SQL only."""


def spark_type(data_type: str, decimals: int | None = None) -> str | None:
    """Returns the Spark SQL type of an ABL data type; None if it is unknown.

    >>> spark_type("DECIMAL", 2), spark_type("logical"), spark_type("blob")
    ('decimal(38,2)', 'boolean', None)
    """
    found = TYPES.get(data_type.lower())
    return f"decimal(38,{decimals})" if found == "decimal(38,10)" and decimals is not None else found


def abl_type(kind: str) -> tuple[str, int | None]:
    """Returns the ABL data type, and the decimals, for a Spark SQL type, or for the elements of an array.

    >>> abl_type("decimal(12,2)"), abl_type("smallint"), abl_type("float"), abl_type("array<double>")
    (('decimal', 2), ('integer', None), ('real', None), ('double', None))
    """
    if element := element_type(kind):
        return abl_type(element)
    if kind.startswith("decimal"):
        return "decimal", int(kind.rstrip(")").split(",")[1])
    if kind in ("smallint", "tinyint"):
        return "integer", None
    back = {spark: abl for abl, spark in reversed(TYPES.items())}
    return back.get(kind, "character"), None


def knows(columns: Sequence[str]) -> float:
    """Returns how likely a table with these columns is one of OpenEdge's.

    >>> knows(["_TRAN-ID", "_Change-Sequence", "_Operation", "Name"]), knows(["id", "name"])
    (1.0, 0.0)
    """
    have = {c.lower().replace("-", "_") for c in columns}
    for marks in (
        {"_change_sequence", "_operation"},
        {"_policy_id", "_policy_name"},
        {"_policy_id", "_field_position"},
        {"_file_number", "_file_name"},
        {"_file_recid", "_field_name"},
        {"_cdc_policy_dump"},
    ):
        if marks <= have:
            return 1.0
    return 0.0


DUMP = ".cd"
"""Suffix of policy dumps' names."""


def plain_name(name: str) -> str:
    """Returns a table's name without owner, in lower case, with underscores.

    >>> plain_name("PUB._Cdc-Change-Tracking")
    '_cdc_change_tracking'
    """
    return name.rpartition(".")[2].lower().replace("-", "_")


def is_dump(name: str) -> bool:
    """Whether a file is a policy dump.

    >>> is_dump("policies.cd"), is_dump("POLICIES.CD"), is_dump("PUB._File.csv")
    (True, True, False)
    """
    return name.lower().endswith(DUMP)


def by_plain_name(names: Iterable[str]) -> dict[str, str]:
    """Returns the names of tables by their plain names.

    Raises:
        FormatError: one of OpenEdge's own tables exists under two names.

    >>> by_plain_name(["PUB._File", "PUB.CDC_item"])
    {'_file': 'PUB._File', 'cdc_item': 'PUB.CDC_item'}
    """
    found: dict[str, str] = {}
    for name in names:
        plain = plain_name(name)
        if (other := found.setdefault(plain, name)) != name and plain in KNOWN:
            raise FormatError(
                f"{other} and {name} are both the table {plain}",
                where=f"{other}, {name}",
                hint="move one of them away, or all files into one folder, if they are parts of one table",
            )
    return found
