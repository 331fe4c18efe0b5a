"""Settings of single tables: `tables:` in the task file, pattern -> settings, on top of those of `apply:`.

All patterns that fit a table hold for it; where two say the same thing, the more specific one wins: the one
with more characters that are no `*` or `?`, of equals the later one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from ..model.partitions import PartitionField
from ..model.patterns import fits, is_pattern
from .base import Settings, Text
from .freshness import Freshness

Mode = Literal["strict", "upsert", "archive", "soft_delete"]
CONFLICTS = ("insert_exists", "update_missing", "delete_missing", "data_error")
PolicyName = Literal["apply", "ignore", "log", "suspend", "stop"]
_LIMITED = re.compile(r"log then (\w+) after (\d+)")


class OnConflict(Settings):
    """The policy for a conflict, with an optional limit and a policy beyond it."""

    policy: PolicyName
    """The policy."""
    after: int | None = Field(default=None, ge=1)
    """`log` only: the number of a table's conflicts of this type that are logged, since its baseline or since
    it was resumed, before `then` applies to the next one."""
    then: Literal["suspend", "stop"] = "suspend"
    """The policy beyond the limit."""

    def model_post_init(self, context: Any) -> None:
        """Refuses a limit on a policy that has none."""
        if self.after is not None and self.policy != "log":
            raise ValueError(f"only `log` can be given a limit, not {self.policy!r}")

    def __str__(self) -> str:
        return self.policy if self.after is None else f"{self.policy} then {self.then} after {self.after}"


def on_conflict(value: Any) -> Any:
    """A policy as written in a task file, converted for `OnConflict`.

    >>> on_conflict("ignore"), on_conflict("log then stop after 100")
    ({'policy': 'ignore'}, {'policy': 'log', 'after': 100, 'then': 'stop'})
    """
    if not isinstance(value, str):
        return value
    found = _LIMITED.fullmatch(" ".join(value.split()))
    return {"policy": "log", "after": int(found[2]), "then": found[1]} if found else {"policy": value}


def _conflict(name: str) -> str:
    if name not in CONFLICTS:
        raise ValueError(f"unknown conflict {name!r}: use one of {', '.join(CONFLICTS)}")
    return name


_WRITTEN = "|".join([*get_args(PolicyName), _LIMITED.pattern])
_POLICIES = {"type": ["string", "object"], "pattern": rf"^({_WRITTEN})$"}
Conflict = Annotated[str, AfterValidator(_conflict)]
Policies = dict[Conflict, Annotated[OnConflict, BeforeValidator(on_conflict), WithJsonSchema(_POLICIES)]]


DDL_KINDS = (
    "add", "drop", "rename", "widen", "retype", "rekey", "drop_table", "rename_table", "recreate_table",
)  # fmt: skip
DdlPolicy = Literal["apply", "ignore", "suspend", "stop"]


def _ddl(name: str) -> str:
    if name not in DDL_KINDS:
        raise ValueError(f"unknown kind of DDL {name!r}: use one of {', '.join(DDL_KINDS)}")
    return name


Ddl = dict[Annotated[str, AfterValidator(_ddl)], DdlPolicy]


def mode_of(mode: str | None, soft_delete: str | None) -> str:
    """The mode that these two settings mean together; `upsert` if there is neither.

    >>> mode_of(None, None), mode_of(None, "gone"), mode_of("soft_delete", "gone")
    ('upsert', 'soft_delete', 'soft_delete')
    >>> mode_of("strict", "gone")
    Traceback (most recent call last):
    ValueError: the mode strict does not mark rows, and `soft_delete` names the column for that
    """
    if soft_delete and mode not in (None, "soft_delete"):
        raise ValueError(f"the mode {mode} does not mark rows, and `soft_delete` names the column for that")
    return mode or ("soft_delete" if soft_delete else "upsert")


def _partition(value: str) -> str:
    PartitionField.parse(value)
    return value


def _target(value: str) -> str:
    if "." not in value or is_pattern(value):
        raise ValueError(f"{value!r} is not a table name: write schema.table")
    return value


class RuleSettings(Settings):
    """Rules for applying changes (docs/apply.md)."""

    # Declared once for `apply:` and for `tables:`, where None means: as in `apply`.
    mode: Mode | None = None
    """`strict`, `upsert`, `archive` or `soft_delete`; default: `upsert`."""
    on: Policies = Field(default={})
    """Conflict -> policy, where it differs from the mode's: `insert_exists`, `update_missing`,
    `delete_missing`, `data_error` -> `apply`, `ignore`, `log`, `suspend`, `stop`, or
    `log then suspend after 100`."""
    soft_delete: Text | None = None
    """The column in which mode `soft_delete` marks rows, `_deleted` by default; implies that mode, and
    cannot be combined with another one."""
    transactional: bool | None = None
    """One commit of the target per transaction of the source, in order, instead of one per batch."""
    ddl: Ddl = Field(default={})
    """The effect of a DDL statement at the source (docs/ddl.md), by kind: `add`, `drop`, `rename`, `widen`,
    `retype` of a column, `rekey` (another key), `drop_table`, `rename_table`, `recreate_table` -> `apply`,
    `ignore`, `suspend`, `stop`."""

    @model_validator(mode="before")
    @classmethod
    def _on(cls, raw: Any) -> Any:
        """YAML reads the key `on` as true."""
        return {"on" if k is True else k: v for k, v in raw.items()} if isinstance(raw, dict) else raw

    @model_validator(mode="after")
    def _one_mode(self) -> RuleSettings:
        mode_of(self.mode, self.soft_delete)
        return self

    @property
    def rule_mode(self) -> str:
        """The mode, if one was set or is implied; otherwise `upsert`."""
        return mode_of(self.mode, self.soft_delete)


class TableSettings(RuleSettings):
    """Settings of the tables that match a pattern."""

    freshness: Freshness | None = Field(
        default=None, json_schema_extra={"shown": "that of its group, or of the task"}
    )
    """Time for which changes are gathered before they are applied."""
    identity: Literal["full"] | None = None
    """`full`: tailrace gives the table REPLICA IDENTITY FULL before it publishes it (PostgreSQL). A table
    without a replica identity is captured only with it: its UPDATEs and DELETEs would fail at the source.
    Others get whole before images by it, and the source writes more log."""
    where: Text | None = None
    """Row filter: Spark SQL over the source's columns; only rows for which it is true are in the target."""
    target: Annotated[Text, AfterValidator(_target)] | None = None
    """The target's name, `schema.table`. Several tables may share one target; their key then needs a
    constant."""
    columns: dict[Text, Text] = Field(default={})
    """Column of the target -> column of the source, or Spark SQL over its columns. Columns of the source that
    are not named here stay as they are."""
    drop: list[Text] = Field(default=[])
    """Columns of the source to leave out."""
    constants: dict[Text, Text] = Field(default={})
    """Column of the target -> its value in every row: a text, or `@SCHEMA`, `@TABLE`, `@TASK`."""
    key: list[Text] = Field(default=[])
    """The target's key; default: the constants and the source's key."""
    partition: list[Annotated[Text, AfterValidator(_partition)]] = Field(default=[])
    """Partitions of a new Iceberg table: columns of the target, `year(column)`, `month(column)`,
    `day(column)`, `hour(column)`, `bucket(16, column)`."""
    sort: list[Text] = Field(default=[])
    """Columns by which the files of a new Iceberg table are sorted when they are joined."""


def patterns_of(patterns: Iterable[str], table: str) -> list[str]:
    """The patterns that match a table, the more specific ones last.

    >>> patterns_of(["shop.item", "log.*", "*.*", "shop.*"], "shop.item")
    ['*.*', 'shop.*', 'shop.item']
    """
    mine = (p for p in patterns if fits(table, p))
    return sorted(mine, key=lambda p: len(re.sub(r"[*?]", "", p)))


def settled(base: Mapping[str, Any], patterns: Mapping[str, TableSettings], table: str) -> TableSettings:
    """The effective settings of `schema.table`: those of all matching patterns, the more specific ones on
    top, all on top of `base`.

    Policies belong to a mode: a pattern with another mode starts with that mode's policies.

    >>> shop = TableSettings(mode="strict", on={"delete_missing": "ignore"})
    >>> one = TableSettings(on={"insert_exists": "log then stop after 3"})
    >>> found = settled({}, {"shop.item": one, "shop.*": shop}, "shop.item")
    >>> found.mode, {kind: str(policy) for kind, policy in found.on.items()}
    ('strict', {'delete_missing': 'ignore', 'insert_exists': 'log then stop after 3'})
    >>> settled({}, {"shop.*": shop, "shop.log": TableSettings(mode="archive")}, "shop.log").on
    {}
    """
    found = dict(base)
    for said in (patterns[p] for p in patterns_of(patterns, table)):
        mine = {name: getattr(said, name) for name in said.model_fields_set}
        if (mode := _named(mine)) and mode != (_named(found) or mode_of(None, None)):
            found |= {"mode": mode, "on": {}, "soft_delete": None}
        found |= {
            name: _laid_over(found.get(name), value) for name, value in mine.items() if value is not None
        }
    return TableSettings(**{k: v for k, v in found.items() if v is not None})


def _named(said: Mapping[str, Any]) -> str | None:
    """The mode that settings name, or imply; None: neither."""
    mode, soft_delete = said.get("mode"), said.get("soft_delete")
    return mode_of(mode, soft_delete) if mode or soft_delete else None


def _laid_over(below: Any, value: Any) -> Any:
    """Mappings are merged key by key; everything else is replaced."""
    return {**below, **value} if isinstance(value, dict) and isinstance(below, dict) else value
