"""The task file: source, target and settings of one task, and the paths of everything it keeps."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from ..errors import ConfigError
from ..lake import news
from ..lake.file_names import file_name
from ..lake.storage import bucket_of, is_remote, register, within
from . import logs, state_version, yaml_lines
from .base import UNRESOLVED, ColumnName, LakeType, Level, Name, Pattern, Place, Settings, Text, plain
from .freshness import CostSettings, Freshness
from .groups import GroupSettings, group_of
from .policies import Policy, policy_of
from .settings import (
    SOLIDDB_SETTINGS,
    ApplySettings,
    BaselineSettings,
    CaptureSettings,
    KeyLogSettings,
    MaintenanceSettings,
    RetentionSettings,
    SourceSettings,
    SparkSettings,
    StorageSettings,
    StoreSettings,
    TargetSettings,
)
from .table_settings import RuleSettings, TableSettings, settled
from .yaml_lines import Mistake

HOME_FOLDERS = (
    "changes", "tracking", "keylog", "openedge", "repairs", "staging", "checkpoints", "log", "relations",
    "control", "run",
)  # fmt: skip
"""Folders that a task creates in its home; the last one contains the locks."""


class Task(Settings):
    """One task: a source, a target, and everything in between."""

    name: Name
    """Name of the task: lower-case letters, digits, `_`, `-`, at most 40. The publication and the
    replication slot are named after it."""
    home: Place = Field(default="", json_schema_extra={"shown": "`name`"})
    """Folder for LOG, change tables, TRACKING and state: relative to the task file, or in an object store
    (`s3://bucket/folder`, docs/storage.md). The task's name when not given."""
    freshness: Freshness = "auto"
    """Time for which changes are gathered before they are written to targets: `1s`, `15s`, `5m`. `auto`: a
    change after a quiet moment is written in about a second; under steady traffic the interval
    grows, up to 15 seconds, while the task uses more than `cost` allows (docs/cost.md)."""
    cost: CostSettings = CostSettings()
    source: SourceSettings
    target: TargetSettings = Field(default_factory=TargetSettings)
    storage: StorageSettings = StorageSettings()
    capture: CaptureSettings = CaptureSettings()
    baseline: BaselineSettings = Field(default_factory=BaselineSettings)
    store: StoreSettings = StoreSettings()
    apply: ApplySettings = Field(default_factory=ApplySettings)
    tables: dict[Pattern, TableSettings] = Field(default={})
    """Settings by table: `schema.table` (with `*`, `?`) -> settings. Every matching pattern applies; the more
    specific one wins."""
    groups: dict[Text, GroupSettings] = Field(default={})
    """Groups of tables: name -> settings."""
    keylog: KeyLogSettings = KeyLogSettings()
    retention: RetentionSettings = RetentionSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    on_bad_value: Literal["stop", "quarantine"] = "stop"
    """Policy for a value that its lake type cannot hold (NaN in a decimal, a year before 1). `stop` suspends
    its table, in front of the change or before its baseline, until it is read again, or resumed with NULL;
    `quarantine` continues with NULL. `control/quarantine` gets the value. One in a row key, which cannot be
    NULL, suspends the table in either case."""
    types: dict[ColumnName, LakeType] = Field(default={})
    """Columns that get another lake type than `docs/types.md` says: `schema.table.column: string`."""
    policies: dict[Pattern, Level] = Field(default={})
    """The part of a table's changes that is kept: `schema.table: level`, also `schema.table.column: level`
    for columns with less. 3: before and after images; 2: after images; 1: which columns changed; 0: that
    something changed. Tables (columns) below 2 are tracked and not applied. A column keeps its level when
    the source renames it. Takes effect at the next start."""
    spark: SparkSettings = Field(default_factory=SparkSettings)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, raw: Any) -> Any:
        """Defaults that pydantic cannot express: a home from the name, a section that is empty (except for
        comments)."""
        if not isinstance(raw, dict):
            return raw
        given = {key: {} if value is None and key in SECTIONS else value for key, value in raw.items()}
        # Created from a dictionary, so that its folder also starts at the task file.
        target = given.setdefault("target", {})
        if isinstance(target, dict) and not target.get("path") and isinstance(given.get("name"), str):
            given["target"] = {**target, "path": f"{given['name']}/target"}
        tables = given.get("tables")
        if isinstance(tables, dict):
            given["tables"] = {k: {} if v is None else v for k, v in tables.items()}
        if not given.get("home") and isinstance(given.get("name"), str):
            given["home"] = given["name"]
        return given

    @model_validator(mode="after")
    def _of_one_kind(self) -> Task:
        if not self.source.of_soliddb and self.source.url != UNRESOLVED:
            for name in sorted(self.source.model_fields_set.intersection(SOLIDDB_SETTINGS)):
                raise _wrong(f"source.{name}", "it needs a solidDB source")
        if not self.source.url.startswith("postgres"):
            for pattern in (p for p, one in self.tables.items() if one.identity):
                raise _wrong(f"tables.{pattern}.identity", "it needs a PostgreSQL source")
        return self

    @model_validator(mode="after")
    def _key_log_apart(self) -> Task:
        """The key log has its own folder, which is in no other table's folder."""
        log = self.keylog_path
        taken: list[str] = []
        if within(self.home, log):
            taken.append(f"{log} holds `home`")
        if not self.target.database and within(self.target.path, log):
            taken.append(f"{log} holds the targets")
        own = [folder for folder in self.own_folders if folder != f"{self.home}/keylog"]
        taken += [f"{path} has other files of the task" for path in own if within(log, path)]
        if taken:
            raise _wrong("keylog.path", f"{taken[0]}: give the key log its own folder")
        return self

    @model_validator(mode="after")
    def _targets_apart(self) -> Task:
        """Targets are in no folder in which a task keeps its own files. Next to these folders they are
        allowed: their names have a dot."""
        own = [folder for folder in self.own_folders if within(self.target.path, folder)]
        if self.target.database or not own:
            return self
        raise _wrong(
            "target.path", f"{own[0]} has other files of the task: give the targets their own folder"
        )

    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    def model_post_init(self, context: Any) -> None:
        """Keeps the folder that relative paths start from, and makes the options of the task's object stores
        known to this process."""
        self._folder = Path((context or {}).get("folder") or Path.cwd()).resolve()
        for address in (self.home, self.keylog_path, "" if self.target.database else self.target.path):
            if is_remote(address):
                register(bucket_of(address), self.storage.options_for(address))
        news.follow(self.home)

    @property
    def folder(self) -> Path:
        """The folder that relative paths of this task start from: the task file's folder."""
        return self._folder

    @property
    def own_folders(self) -> list[str]:
        """The folders in its home in which the task keeps its own files, there or not."""
        return [f"{self.home}/{name}" for name in HOME_FOLDERS]

    @property
    def shared_folders(self) -> list[str]:
        """The local folders that driver and executors both read and write."""
        folders = [self.run_path] if self.target.database else [self.run_path, self.target.path]
        return [folder for folder in folders if not is_remote(folder)]

    @property
    def local_path(self) -> str:
        """The folder of files that stay on this machine (the log of the capture process): `run` in its home,
        or a folder of the user's state if the home is in an object store."""
        if not is_remote(self.home):
            return self.run_path
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return str(Path(state, "tailrace", self.name))

    @property
    def apply_app(self) -> str:
        """App id under which targets keep the change number that was applied."""
        return f"tailrace/{self.name}"

    def policy(self, table: str) -> Policy:
        """The capture policy of `schema.table`."""
        return policy_of(self.policies, table)

    def table(self, name: str) -> TableSettings:
        """The effective settings of `schema.table`: those of `tables` on top of `apply`."""
        general = {n: getattr(self.apply, n) for n in RuleSettings.model_fields}
        return settled(general, self.tables, name)

    def group(self, table: str) -> str | None:
        """The name of a table's group."""
        return group_of(self.groups, table)

    def automatic_baseline(self, table: str) -> bool:
        """Whether a table gets a new baseline automatically if only that helps."""
        group = self.group(table)
        return group is not None and self.groups[group].automatic_baseline and not self.keeps_changes(table)

    def keeps_changes(self, table: str) -> bool:
        """Whether a table's target is an archive: a baseline replaces more than the source can give again."""
        return self.table(table).rule_mode == "archive"

    @property
    def commands_path(self) -> str:
        """Orders for single tables (Delta); see `control.tables`."""
        return self.control_path("commands")

    @property
    def keylog_path(self) -> str:
        """The key log (Delta)."""
        return self.keylog.path or f"{self.home}/keylog/ir_keylog"

    @property
    def log_path(self) -> str:
        """LOG (Delta)."""
        return f"{self.home}/log"

    @property
    def relations_path(self) -> str:
        """The relation history (Delta), next to LOG."""
        return f"{self.home}/relations"

    @property
    def tracking_path(self) -> str:
        """TRACKING (Delta)."""
        return f"{self.home}/tracking"

    @property
    def openedge_path(self) -> str:
        """Folder of the tables in OpenEdge's layout (Delta)."""
        return f"{self.home}/openedge"

    @property
    def run_path(self) -> str:
        """Folder of the live state files and locks."""
        return f"{self.home}/run"

    def changes_path(self, table: str) -> str:
        """The change table (Delta) of `schema.table`."""
        return f"{self.home}/changes/{file_name(table)}__ct"

    @property
    def staging_path(self) -> str:
        """Folder of the tables (Delta) in which baselines of mapped tables land."""
        return f"{self.home}/staging"

    def target_path(self, table: str) -> str:
        """The target (Delta) of `schema.table`; meaningless if the target is a database."""
        return f"{self.target.path}/{file_name(table)}"

    def control_path(self, name: str) -> str:
        """A control table (Delta): `stored`, `applied`, `baselines`, `quarantine`."""
        return f"{self.home}/control/{name}"


SECTIONS: dict[str, type[Settings]] = {
    name: field.annotation
    for name, field in Task.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
}
"""Key of a section -> its model."""


def file_of(path: Path) -> Path:
    """The task file: the path, or the one in that folder.

    Raises:
        ConfigError: the folder has none, or several.
    """
    if not path.is_dir():
        return path
    found = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
    if len(found) != 1:
        raise ConfigError(
            f"the folder has {len(found)} task files", where=str(path), hint="name the task file"
        )
    return found[0]


def load(path: str | Path, *, connects: bool = True) -> Task:
    """The task described by a file; relative folders in it start at the file.

    Args:
        path: the file.
        connects: otherwise its addresses are for show only, and secrets that are not there are no mistake.

    Raises:
        ConfigError: the file is not there, or wrong: every mistake with its line. Or the task's state is of a
            newer release.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the task file is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}",
            where=str(file),
            hint="save it as UTF-8",
        ) from None
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        writes = "`tailrace init postgresql://user@host/database` writes one"
        raise ConfigError(
            f"the task file cannot be read: {error.strerror}",
            where=str(file),
            hint=writes if missing else "check the path, and this user's rights to it",
        ) from None
    found = read(text, folder=file.resolve().parent, connects=connects)
    if isinstance(found, Task):
        state_version.check(found.home)
        logs.about(task=found.name)
        return found
    count = "a mistake" if len(found) == 1 else f"{len(found)} mistakes"
    raise ConfigError(
        f"the task file has {count}:\n" + "\n".join(f"  {one}" for one in found),
        where=str(file),
        hint="docs/task-file.md lists every setting",
    )


def read(text: str, folder: Path, *, connects: bool = True) -> Task | list[Mistake]:
    """The task described by a text, or all mistakes in it, in the order of its lines (`connects`: see
    `load`)."""
    document = yaml_lines.parse(text)
    mistakes = list(document.mistakes)
    if isinstance(document.data, dict):
        try:
            task = Task.model_validate(document.data, context={"folder": folder, "connects": connects})
            if not mistakes:
                return task
        except ValidationError as error:
            mistakes += explained(error, document)
    elif not mistakes:
        mistakes.append(Mistake(1, "a task file is a mapping: name, source, target, ..."))
    return sorted(set(mistakes), key=lambda one: (one.line, one.what))


def explained(
    error: ValidationError, document: yaml_lines.Document, model: type[Settings] = Task
) -> Iterator[Mistake]:
    """The mistakes that a file of that model has."""
    for one in error.errors(include_url=False):
        path = tuple(one["loc"]) or tuple(one["ctx"]["setting"].split("."))  # of two settings together
        steps = path[:-2] if path[-1] == "[key]" else path  # of a mapping: its message names the key
        name = ".".join(step for step in steps if isinstance(step, str))
        if one["type"] == "extra_forbidden":
            what = f"unknown setting {name!r}{_nearest(path, model)}"
        elif one["type"] == "missing":
            what = f"{name} is missing"
        elif one["type"] in ("model_type", "dict_type"):
            what = f"{name} is a section: put its settings below it, or in {{ }}"
        else:
            # The value itself is left out of the message: it may be an address with a password.
            what = f"{name}: {plain(one['msg'])}"
        yield Mistake(document.line(path), what)


def _wrong(setting: str, what: str) -> PydanticCustomError:
    """A mistake that only the whole file shows, and the setting that it is about."""
    return PydanticCustomError("settings", "{what}", {"setting": setting, "what": what})


def _nearest(path: tuple[str | int, ...], model: type[Settings]) -> str:
    """A suggestion for an unknown setting: a similar name in its section, or the same name elsewhere."""
    section, key = path[:-1], str(path[-1])
    models: dict[str, type[Settings]] = {**SECTIONS, "tables": TableSettings, "groups": GroupSettings}
    known = models[str(section[0])].model_fields if section else model.model_fields
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    elsewhere = [s for s, one in SECTIONS.items() if s in model.model_fields and key in one.model_fields]
    elsewhere += ["the top level"] if key in model.model_fields else []
    if elsewhere:
        return f"; it belongs under {' or '.join(elsewhere)}"
    return f"; known here: {', '.join(known)}"
