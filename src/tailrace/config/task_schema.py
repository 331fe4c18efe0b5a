"""The task file's JSON schema, generated from the declarations: editors use it to complete and check task
files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .base import Settings
from .groups import GroupSettings
from .reference import has_unit, shown
from .settings import SOLIDDB_SETTINGS
from .table_settings import CONFLICTS, DDL_KINDS, OnConflict, TableSettings
from .task import SECTIONS, Task
from .template import SCHEMA

_LARGE = 10_000
_KEYS = {"on": CONFLICTS, "ddl": DDL_KINDS}
"""Keys that these settings may have."""
_DROPPED = ("title", "shown")


def schema() -> dict[str, Any]:
    """The schema (draft 7): what a task file may contain, with the settings' documentation and defaults.

    >>> found = schema()
    >>> found["required"], found["definitions"]["CaptureSettings"]["properties"]["commit_bytes"]["default"]
    (['name', 'source'], '64MiB')
    """
    made = Task.model_json_schema(ref_template="#/definitions/{model}")
    definitions, models = made.pop("$defs"), {m.__name__: m for m in _models()}
    for name, one in definitions.items():
        _as_written(one, models[name])
    _as_written(made, Task)
    settings = made["properties"]
    for name in SECTIONS.keys() - {"source"}:  # a section may contain only comments
        _or(settings, name, {"type": "null"})
    _or(settings, "target", {"type": "string"})
    _or(settings["tables"], "additionalProperties", {"type": "null"})
    _of_soliddb(settings, definitions)
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "tailrace task"}
    found: dict[str, Any] = _clean(made | {"definitions": definitions})
    return head | found


def text() -> str:
    """The schema as file contents."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def write(folder: Path) -> Path:
    """Writes the schema to a folder, replacing a file of that name."""
    path = folder / SCHEMA
    path.write_text(text(), encoding="utf-8")
    return path


def _models() -> Iterator[type[Settings]]:
    yield from SECTIONS.values()
    yield from (TableSettings, GroupSettings, OnConflict)


def _as_written(found: dict[str, Any], model: type[Settings]) -> None:
    """Values as written in a task file: durations and sizes with units, large numbers with `_`."""
    for name, field in model.model_fields.items():
        said = found["properties"][name]
        default = said.pop("default", None)
        if default is not None and not isinstance(default, dict):
            unit = has_unit(field)
            said["default"] = shown(field, field.default) if unit else default
        if said.get("type") == "integer" and isinstance(default, int) and default >= _LARGE:
            said |= {"type": ["integer", "string"], "pattern": "^[0-9][0-9_]*$"}
        if name == "conf":  # settings of Spark may also be written directly into their section
            found["patternProperties"] = dict(said["patternProperties"])
        if name in _KEYS:
            said["propertyNames"] = {"enum": list(_KEYS[name])}


def _of_soliddb(settings: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Allows settings of solidDB only under an address of solidDB, or a variable that may hold one."""
    whole = definitions["SourceSettings"]
    others = {k: v for k, v in whole["properties"].items() if k not in SOLIDDB_SETTINGS}
    definitions["SolidDBSettings"] = whole
    definitions["SourceSettings"] = {**whole, "properties": others}
    settings["source"] = {
        "if": {"properties": {"url": {"pattern": r"^\s*(soliddb:|\$\{)"}}, "required": ["url"]},
        "then": {"$ref": "#/definitions/SolidDBSettings"},
        "else": {"$ref": "#/definitions/SourceSettings"},
    }


def _or(within: dict[str, Any], name: str, other: dict[str, Any]) -> None:
    """Allows a value to be something else as well."""
    said = within[name]
    about = {k: said.pop(k) for k in ("description", "default") if k in said}
    within[name] = {**about, "anyOf": [*said.get("anyOf", [said]), other]}


def _clean(found: Any) -> Any:
    """Without what only this program reads; documentation on one line."""
    if isinstance(found, list):
        return [_clean(one) for one in found]
    if not isinstance(found, dict):
        return found
    left = {k: v for k, v in found.items() if k not in _DROPPED or not isinstance(v, str)}
    if isinstance(left.get("description"), str):
        left["description"] = " ".join(left["description"].split())
    return {k: _clean(v) for k, v in left.items()}
