"""The task file's JSON schema takes what the task file takes, and refuses what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.config import task_schema
from tailrace.config.settings import SOLIDDB_SETTINGS, SourceSettings
from tailrace.config.task import SECTIONS, Task, read
from tailrace.config.template import SCHEMA, full
from tailrace.config.yaml_lines import Mistake

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
HEAD = "name: shop\nsource: {url: 'postgresql://me@db/shop'}\n"


class Core(yaml.SafeLoader):
    """YAML as editors read it (1.2): `on`, `off` and numbers with `_` are texts."""


Core.yaml_implicit_resolvers = {
    first: [
        (tag, rule) for tag, rule in rules if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:int")
    ]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Core.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), list("tf"))
Core.add_implicit_resolver("tag:yaml.org,2002:int", re.compile("^[-+]?[0-9]+$"), list("-+0123456789"))


@pytest.fixture(scope="module")
def checker() -> Any:
    found = task_schema.schema()
    jsonschema.Draft7Validator.check_schema(found)
    return jsonschema.Draft7Validator(found)


def wrong(checker: Any, text: str) -> list[str]:
    return [e.message for e in checker.iter_errors(yaml.load(text, Core))]


GOOD = [
    "",
    "capture:\n  # idle_advance: 2s\n",
    "capture: {commit_bytes: 1.5 GB, idle_advance: 1h30m}",
    "capture: {idle_advance: 2, chunk_bytes: 4096}",
    "target: lake",
    "target: postgresql://me@other/dwh?schema=x",
    "target: {path: lake, local_limit: 2GiB}",
    "tables:\n  shop.item:\n  shop.*: {mode: strict, on: {update_missing: log then stop after 100}}",
    "apply: {on: {delete_missing: ignore}, max_changes: 2_000_000, ddl: {drop: ignore}}",
    "groups: {small: {tables: [s.a, s.b], freshness: 5m, retries: 3}}",
    "keylog: {mode: off}",
    "retention: {keep: 30d, tables: {shop.*: forever}}",
    "policies: {shop.item: 1, shop.item.note: 0}",
    "spark: {spark.driver.memory: 4g, spark.ui.enabled: false, spark.sql.shuffle.partitions: 8}",
]
BAD = [
    "captures: {}",
    "capture: {commit_evry: 2s}",
    "capture: {idle_advance: soon}",
    "capture: {commit_bytes: big}",
    "on_bad_value: ignore",
    "apply: {on: {update_mising: log}}",
    "apply: {on: {update_missing: lag}}",
    "apply: {ddl: {dropp: ignore}}",
    "policies: {shop.item: 4}",
    "groups: {small: {freshness: 5m}}",
    "keylog: {mode: everything}",
    "baseline: {workers: 0}",
    "capture: {chunk_bytes: 0}",
    "capture: {chunk_bytes: 0 MiB}",
    "freshness: 0s",
]


@pytest.mark.parametrize("more", GOOD)
def test_what_a_task_file_may_say(checker: Any, more: str) -> None:
    assert isinstance(read(HEAD + more, ROOT), Task)
    assert wrong(checker, HEAD + more) == []


@pytest.mark.parametrize("more", BAD)
def test_what_it_may_not(checker: Any, more: str) -> None:
    assert isinstance(read(HEAD + more, ROOT), list)
    assert wrong(checker, HEAD + more)


def test_task_files_of_the_examples_and_of_init(checker: Any) -> None:
    task = read(HEAD + "apply: {max_changes: 50_000, max_bytes: 1MiB}", ROOT)
    assert isinstance(task, Task)
    text = full(task)
    assert text.splitlines()[0] == f"# yaml-language-server: $schema={SCHEMA}"
    assert wrong(checker, text) == []
    shown = re.sub(r"^( *)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)
    shown = re.sub(r"^ *\w+: *\n(?! )", "", shown, flags=re.MULTILINE)
    assert [w for w in wrong(checker, shown) if "is not of type" not in w] == []


def test_every_setting_is_described_and_has_its_default_as_people_write_it() -> None:
    found = task_schema.schema()
    assert {*found["properties"]} == {*Task.model_fields}
    for model in SECTIONS.values():
        said = found["definitions"][model.__name__]["properties"]
        assert {*said} == {*model.model_fields} - {*(SOLIDDB_SETTINGS if model is SourceSettings else ())}
        assert all(one["description"] for one in said.values())
    apply, capture = (found["definitions"][f"{name}Settings"]["properties"] for name in ("Apply", "Capture"))
    assert (capture["idle_advance"]["default"], apply["max_bytes"]["default"]) == ("10s", "500MiB")
    assert "Infinity" not in task_schema.text()


def test_settings_of_soliddb_are_only_for_an_address_of_soliddb(checker: Any) -> None:
    own = "connect: 'ours.db:open', fetch_rows: 2"
    solid = f"name: shop\nsource: {{url: 'soliddb://db', {own}}}\n"
    other = f"name: shop\nsource: {{url: 'postgresql://db/shop', {own}}}\n"
    hidden = f"name: shop\nsource: {{url: '${{ADDRESS}}', {own}}}\n"
    assert (wrong(checker, solid), wrong(checker, hidden)) == ([], [])
    assert isinstance(read(solid, ROOT), Task)
    assert isinstance(read(hidden, ROOT, connects=False), Task)
    assert wrong(checker, other) == [
        "Additional properties are not allowed ('connect', 'fetch_rows' were unexpected)"
    ]
    assert read(other, ROOT) == [Mistake(2, "source.connect: it needs a solidDB source")]


def test_the_command_prints_it() -> None:
    printed = CliRunner().invoke(app, ["schema"], catch_exceptions=False)
    assert json.loads(printed.stdout) == task_schema.schema()
