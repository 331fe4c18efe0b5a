"""What `tailrace init` writes: the settings that most people change, or all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.reference import reference
from tailrace.config.settings import SOLIDDB_SETTINGS
from tailrace.config.task import Task, read
from tailrace.config.template import brief, full

pytestmark = pytest.mark.unit
URL = "postgresql://me:${PW}@db/shop"
BRIEF = """\
# yaml-language-server: $schema=tailrace.schema.json
# A task of tailrace. `tailrace init --full` writes every setting; docs/task-file.md explains them.
name: shop

source:
  url: postgresql://me:${PW}@db/shop
  # Tables to capture: schema.table, with * and ? as in file names.
  tables:
    - shop.*
    - crm.client

# A folder of Delta tables, {type: iceberg}, or a database: postgresql://user@host:port/database
target: shop/target

# How long changes are gathered before they are written: auto (up to 15 s), 1s, 15s, 5m.
freshness: auto

retention:
  # How long change tables keep a change: 30d, or forever. What is still needed is kept longer.
  keep: forever
"""


def task(text: str, folder: Path) -> Task:
    found = read(text, folder)
    assert isinstance(found, Task), found
    return found


def shop(folder: Path, url: str = "postgresql://me@db/shop") -> Task:
    return task(f"name: shop\nsource: {{url: '{url}', tables: [shop.*, crm.client]}}\n", folder)


def test_a_brief_task_file_has_the_settings_that_people_change(tmp_path: Path) -> None:
    assert brief(shop(tmp_path), url=URL) == BRIEF


def test_a_brief_and_a_full_task_file_mean_the_same_task(tmp_path: Path) -> None:
    made = shop(tmp_path)
    written = [task(text(made, url=made.source.url), tmp_path) for text in (brief, full)]
    assert written == [made, made]


def test_a_table_name_that_yaml_reads_otherwise_is_quoted(tmp_path: Path) -> None:
    made = task("name: shop\nsource: {url: 'postgresql://db/shop', tables: ['*.*', 's.a: b']}\n", tmp_path)
    assert task(brief(made, url=made.source.url), tmp_path) == made


def test_a_full_task_file_has_settings_of_soliddb_only_for_soliddb(tmp_path: Path) -> None:
    lines = {url: full(shop(tmp_path, url)) for url in ("soliddb://db:1315", "postgresql://db/shop")}
    found = {url: [s for s in SOLIDDB_SETTINGS if f"  # {s}: " in text] for url, text in lines.items()}
    assert found == {"soliddb://db:1315": [*SOLIDDB_SETTINGS], "postgresql://db/shop": []}


def test_the_reference_has_settings_of_soliddb_apart() -> None:
    source, solid = (
        reference().partition(f"\n## `source`{of}\n")[2].partition("\n## ")[0] for of in ("", " of solidDB")
    )
    assert [s for s in SOLIDDB_SETTINGS if f"| `{s}` |" in source] == []
    assert [s for s in SOLIDDB_SETTINGS if f"| `{s}` |" in solid] == [*SOLIDDB_SETTINGS]
