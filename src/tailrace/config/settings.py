"""The sections of a task file. Every setting is declared once: here, in `table_settings.py` (settings of
tables) or in `task.py` (the top level).

The docstring under a field is its documentation: `docs/task-file.md` and the comments that `tailrace init`
writes come from it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ..lake.storage import SCHEMES, s3_options
from ..model.patterns import fits
from .base import (
    ConfText,
    Folder,
    Pattern,
    Place,
    Secret,
    Settings,
    SparkName,
    TargetUrl,
    Text,
    Url,
    arguments_expanded,
)
from .machine import DRIVER_LIMIT, cores
from .quantities import FOREVER, Bytes, HowLong, Seconds, SomeBytes
from .table_settings import RuleSettings, patterns_of

SPARK_START = "TAILRACE_SPARK_START"
"""Environment variable with the default of `spark.start`."""


def _off(value: Any) -> Any:
    """YAML reads `off` as false."""
    return "off" if value is False else value


class SourceSettings(Settings):
    """The database that is captured."""

    url: Url = Field(repr=False)
    """Its address, `postgresql://user@host:port/database`. `${NAME}` is replaced from the environment,
    `${file:PATH}` by the content of a file (docs/postgresql-rights.md); without a password, libpq takes it
    from `PGPASSWORD` or `~/.pgpass`."""
    tables: list[Pattern] = Field(default=["public.*"])
    """Tables to capture: `schema.table`, with `*` and `?` as in file names. Tables may be added while the
    task runs; those that are taken out leave at its next start (docs/control.md)."""
    exclude: list[Pattern] = Field(default=[])
    """Tables to leave out of those that `tables` selects."""
    slot: str | None = Field(
        default=None, pattern="^[a-z0-9_]{1,63}$", json_schema_extra={"shown": "`tailrace_` and `name`"}
    )
    """Name of the replication slot and the publication (PostgreSQL), if another task uses the default. A task
    keeps the slot that it has."""
    connect: Text = ""
    """The function that opens a DB-API connection, `package.module:function`."""
    arguments: Annotated[dict[str, Any], AfterValidator(arguments_expanded)] = Field(default={}, repr=False)
    """Keyword arguments of that function. `${NAME}` and `${file:PATH}` in texts are
    replaced as in `url`."""
    nodes: list[Annotated[dict[str, Any], AfterValidator(arguments_expanded)]] = Field(default=[], repr=False)
    """Arguments that differ between the nodes of a pair; the first node that answers is
    read, and when it is lost the next one."""
    statements: list[Text] = Field(default=[])
    """SQL that each new connection runs first, e.g. to choose a replication partition."""
    options: dict[Text, Text] = Field(default={})
    """Options of the format `soliddb` (`row_layout`, `keys`, `char_encoding`,
    `capture_off`, ...)."""
    fetch_rows: int = Field(default=1, ge=1, le=100_000)
    """Number of rows per fetch. Use more than 1 only with a driver that does not wait
    until that many rows are available."""
    lock: bool = True
    """Lock tables for writers while a baseline reads them. Otherwise they are read in
    open windows (docs/control.md), and tables without a key are suspended."""

    @property
    def of_soliddb(self) -> bool:
        """Whether the source is a solidDB."""
        return self.url.startswith("soliddb:")

    def selects(self, table: str) -> bool:
        """Whether `tables` and `exclude` select a table of that name, if there is one.

        >>> said = SourceSettings(url="postgresql://db/shop", tables=["shop.*"], exclude=["shop.log"])
        >>> [said.selects(t) for t in ("shop.item", "shop.log", "crm.item")]
        [True, False, False]
        """
        return fits(table, *self.tables) and not fits(table, *self.exclude)


SOLIDDB_SETTINGS = ("connect", "arguments", "nodes", "statements", "options", "fetch_rows", "lock")
"""Settings of `source` that only a solidDB has."""


class TargetSettings(Settings):
    """Where the tables are replicated to."""

    type: Literal["delta", "iceberg", "postgresql"] = "delta"
    """Kind of target; `postgresql` when `database` is given; `iceberg`: docs/iceberg.md."""
    path: Place = Field(default="target", json_schema_extra={"shown": "`name`/target"})
    """Folder that holds one Delta table per source table, `<schema>.<table>`: relative to the task file, or
    in an object store (`s3://bucket/folder`). A table there belongs to one task; tasks that write different
    tables may share the folder."""
    database: TargetUrl = Field(default="", repr=False)
    """A PostgreSQL database (14 or newer) that gets the tables instead: `postgresql://user@host:port/database`,
    with `${NAME}`, `${file:PATH}` and without password as in `source.url`. The tables go into schemas named
    as the source's, or all into one: `?schema=name` at the end. `target: postgresql://...` is short for it.
    Capture and every Spark worker connect to it."""
    catalog: Annotated[dict[Text, Any], AfterValidator(arguments_expanded)] = Field(default={}, repr=False)
    """The catalog of Iceberg tables: pyiceberg's properties (`type`, `uri`, `warehouse`, ...), and `name`, by
    default `tailrace`. `${NAME}` and `${file:PATH}` in texts are replaced. By default an SQL catalog in the
    file `catalog.db` of `path`, which is also its warehouse."""
    table_name: Text = "{schema}.{table}"
    """Identifier of an Iceberg table: `namespace.table`, with the source's `{schema}` and `{table}`."""
    local_limit: Bytes | None = None
    """A batch that several tasks cannot merge by shards (it has rules, a key log, or incomplete images) is
    merged by one task if it rewrites at most this many bytes of a Delta target's files. By default
    `rewrite_limit`."""
    rewrite_limit: Bytes = 4 << 30
    """Batches rewrite the files that they touch up to this size. Batches that touch more mark rows in
    deletion vectors instead, unless they have a change for at least one row in twenty. It does not concern
    what one task merges, nor databases."""

    @model_validator(mode="before")
    @classmethod
    def _kind(cls, raw: Any) -> Any:
        """A string is an address, or `${...}` that holds one, or a folder; an address determines the kind of
        target."""
        if isinstance(raw, str):
            lake = raw.partition("://")[0] in (*SCHEMES, "s3a", "file")
            database = not lake and ("://" in raw or raw.lstrip().startswith("${"))
            raw = {"database" if database else "path": raw}
        if isinstance(raw, dict) and raw.get("database"):
            raw = {"type": "postgresql", **raw}
        return raw

    @model_validator(mode="after")
    def _one_place(self) -> TargetSettings:
        if (self.type == "postgresql") != bool(self.database):
            raise ValueError("a target of type postgresql has a `database`, others have none")
        if self.catalog and self.type != "iceberg":
            raise ValueError("only a target of type iceberg has a `catalog`")
        if "." not in self.table_name or "{table}" not in self.table_name:
            raise ValueError("`table_name` is `namespace.table` with {table} in it, e.g. {schema}.{table}")
        return self

    @property
    def catalog_properties(self) -> dict[str, str]:
        """The properties of the catalog, with defaults.

        >>> TargetSettings(type="iceberg", path="/lake").catalog_properties["uri"]
        'sqlite:////lake/catalog.db'
        """
        given = {key: str(value) for key, value in self.catalog.items()}
        known = {"name": "tailrace", "type": "sql", **given}
        if known["type"] != "sql":
            return known
        return {"uri": f"sqlite:///{self.path}/catalog.db", "warehouse": self.path, **known}

    @property
    def one_task(self) -> int:
        """`local_limit`, or its default.

        >>> TargetSettings().one_task == TargetSettings().rewrite_limit
        True
        """
        return self.rewrite_limit if self.local_limit is None else self.local_limit


class StorageSettings(Settings):
    """The object stores of `home`, `target` and `keylog`. What is not given comes from the environment
    (`AWS_REGION`, `AWS_ACCESS_KEY_ID`, ...), the AWS configuration files or the role of the instance."""

    endpoint: Secret = ""
    """Address of a server that speaks S3: `https://minio.example:9000`. Amazon's own when not given."""
    region: Text = ""
    """Region of the bucket."""
    path_style: bool | None = Field(default=None, json_schema_extra={"shown": "with an `endpoint`"})
    """Whether the bucket is in the path of a request, not in the name of the host."""
    profile: Text = ""
    """Profile of the AWS configuration files, whose keys, region and endpoint are used instead of the
    environment's."""
    access_key: Secret = Field(default="", repr=False)
    """Id of an access key: `${NAME}` or `${file:PATH}`."""
    secret_key: Secret = Field(default="", repr=False)
    """Its secret: `${NAME}` or `${file:PATH}`."""
    session_token: Secret = Field(default="", repr=False)
    """Its token, if it is temporary. A running task does not renew it."""
    extra: dict[Text, Secret] = Field(default={}, repr=False)
    """Other options of the object store, by the names of the library object_store:
    `google_service_account: /keys/lake.json`."""

    @model_validator(mode="after")
    def _known_profile(self) -> StorageSettings:
        if self.profile:
            s3_options(profile=self.profile)
        return self

    def options_for(self, address: str) -> dict[str, str]:
        """Returns the options of the object store of an address, by the names of object_store."""
        found = {}
        if address.startswith("s3://"):
            given = self.model_dump(exclude={"extra"})
            found = s3_options(**given)
        return found | self.extra


class CaptureSettings(Settings):
    """From the source's log to LOG."""

    commit_bytes: SomeBytes = 64 << 20
    """Commit to LOG before `freshness` asks for it once this much was read. A transaction is never split over
    commits."""
    chunk_bytes: SomeBytes = 8 << 20
    """Maximum to read from the source at once; a large transaction needs a few times as much memory."""
    idle_advance: Seconds = 10.0
    """Interval at which an idle source gets the position that was read, so that it can discard its log."""


class BaselineSettings(Settings):
    """Reading the existing rows."""

    enabled: bool = True
    """Read each table once before its changes are applied."""
    workers: int = Field(
        default_factory=lambda: min(4, cores()), ge=1, le=64, json_schema_extra={"shown": "cores, at most 4"}
    )
    """Number of parts of tables that are read at once, each over its own connection; fewer, at least 2, if
    the role, the database or the server allows fewer connections."""
    rows_per_part: int = Field(default=125_000, ge=1000)
    """Approximate number of rows in one part of a large table; fewer if rows have over 256 bytes."""
    window: Literal["auto", "exact", "open"] = "auto"
    """`exact`: all rows are read as of one position of the log, in a snapshot that readers share. `open`: a
    table is read while it is written to, and changes made meanwhile are applied tolerantly (docs/control.md);
    tables without a key are still read in an exact window, or suspended. `auto`: exact, if the source can."""


class StoreSettings(Settings):
    """From LOG to change tables and TRACKING."""

    openedge: bool = False
    """Keep TRACKING and change tables in OpenEdge's names and layout too, with their policies, as Delta
    tables in the folder `openedge` of the task."""
    max_bytes: SomeBytes = 512 << 20
    """Maximum of LOG in one batch (a commit of LOG is never split)."""


class ApplySettings(RuleSettings):
    """From change tables to targets."""

    max_changes: int = Field(default=1_000_000, ge=1)
    """Maximum number of changes in one batch (a transaction is never split); once that many wait, a batch
    begins immediately."""
    max_bytes: SomeBytes = 500 << 20
    """The same in bytes, as the changes are stored."""
    parallel_tables: int = Field(default_factory=cores, ge=1, le=256, json_schema_extra={"shown": "cores"})
    """Tables of a batch that are written in parallel."""
    merge_memory: SomeBytes = 512 << 20
    """Memory of one merge inside a task; a batch that does not fit is merged by Spark, which spills to
    disk, and decided by several tasks, about so much memory each."""


class KeyLogSettings(Settings):
    """The log of the outcome of every change (docs/apply.md)."""

    mode: Annotated[Literal["all", "keys", "errors", "off"], BeforeValidator(_off)] = "off"
    """Log every change; every change without images; flagged changes; nothing."""
    path: Place | None = Field(default=None, json_schema_extra={"shown": "`keylog/ir_keylog` in `home`"})
    """The key log: a Delta table in the shape of SQDR's `ir_keylog`."""
    keep_runs: int = Field(default=0, ge=0)
    """Number of past runs whose rows are kept, besides the current one; 0: all."""


class RetentionSettings(Settings):
    """Retention of changes (docs/retention.md). Changes that are still needed are kept longer."""

    keep: HowLong = FOREVER
    """Time for which change tables keep a change after its commit: `30d`, or `forever`. It is removed at most
    25 % later."""
    tables: dict[Pattern, HowLong] = Field(default={})
    """By table: `schema.table` (with `*`, `?`) -> how long; the more specific pattern wins."""
    tracking: HowLong | None = Field(default=None, json_schema_extra={"shown": "`keep`"})
    """Time for which TRACKING keeps its rows."""
    records: HowLong | None = Field(default=None, json_schema_extra={"shown": "`keep`"})
    """Time for which `attrep_apply_exceptions`, `control/quarantine` and `control/ddl_history` keep rows."""

    @property
    def of_records(self) -> float:
        """Seconds for which exceptions, quarantine and the DDL history keep a row."""
        return self.keep if self.records is None else self.records

    def of(self, table: str) -> float:
        """Seconds for which the change table of `schema.table` keeps a change.

        >>> said = RetentionSettings(keep="30d", tables={"shop.*": "7d", "shop.item": "forever"})
        >>> [said.of(t) for t in ("log.a", "shop.note", "shop.item")]
        [2592000.0, 604800.0, inf]
        """
        return next(reversed([self.tables[p] for p in patterns_of(self.tables, table)]), self.keep)


class SparkSettings(Settings):
    """The Spark session of the task (docs/spark.md)."""

    start: Literal["at_once", "when_needed"] = Field(
        default_factory=lambda: os.environ.get(SPARK_START, "at_once"),
        validate_default=True,
        json_schema_extra={"shown": "`at_once`"},
    )
    """When the session starts: with the process, in the background; or `when_needed`, for hosts without
    memory for a JVM: then threads of the driver run the tasks, and a session starts only for what needs
    Spark's SQL. The environment variable TAILRACE_SPARK_START sets the default."""
    driver_limit: int = Field(default=DRIVER_LIMIT, ge=0)
    """Steps with fewer changes run on threads of the driver: a Spark job would take longer."""
    event_log: Folder | None = None
    """A folder for Spark's event logs, which Spark's history server shows; none are kept by default."""
    conf: dict[SparkName, ConfText] = Field(default={})
    """Settings of Spark itself, which override tailrace's own: `spark.driver.memory: 4g`, `spark.master`.
    They may also be written directly into this section."""

    @model_validator(mode="before")
    @classmethod
    def _into_conf(cls, raw: Any) -> Any:
        """Settings of Spark that are written directly into the section."""
        if not isinstance(raw, dict):
            return raw
        own = {key: value for key, value in raw.items() if not str(key).startswith("spark.")}
        direct = {key: value for key, value in raw.items() if key not in own}
        return {**own, "conf": {**(own.get("conf") or {}), **direct}} if direct else own

    @property
    def session_conf(self) -> dict[str, str]:
        """The settings of Spark that a session gets.

        >>> SparkSettings(event_log="/logs").session_conf["spark.eventLog.dir"]
        'file:///logs'
        """
        if self.event_log is None:
            return dict(self.conf)
        log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": Path(self.event_log).as_uri()}
        return {**log, **self.conf}


class MaintenanceSettings(Settings):
    """Housekeeping of the Delta tables, while the task runs."""

    every: Seconds = 600.0
    """Interval between two rounds."""
    small_files: int = Field(default=16, ge=2)
    """Join small files of a table once it has this many of about one size."""
    keep_log: Seconds = 3600.0
    """Time for which LOG keeps records after they were applied."""
    keep_ledger: Seconds = 7 * 86400.0
    """Time for which the records of single batches are kept (`control/stored`, `control/applied`), which
    `export-status` writes. Records of changes that a target does not have yet are kept longer; totals
    include everything."""
    vacuum_after: Seconds = 7 * 86400.0
    """Age up to which versions of targets are kept: all of them for `keep_versions`, then one per hour.
    `as-of` answers for every position in between (docs/retention.md)."""
    keep_versions: Seconds = 3600.0
    """Time for which every version of a target is kept. A reader that takes longer may miss files."""
    past_size: float = Field(default=3.0, ge=0)
    """Versions of a target that are older than an hour take at most this many times the size of the newest
    one; the steps between them grow until they do."""
    keep_commits: Seconds = 86400.0
    """Time for which the Delta logs of change tables, TRACKING and the key log keep commits, for streams.
    A log keeps at most 3,600 commits, because each commit lists it. Commits that a registered consumer needs
    are always kept."""
