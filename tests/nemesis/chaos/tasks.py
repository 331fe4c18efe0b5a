"""The task files of rounds, and what is edited in them between lives."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

TASK = """\
name: chaos
home: disk/home
source: {{url: '{source}', tables: ['m.*']}}
target: {{{target}, local_limit: {local_limit}, rewrite_limit: {rewrite_limit}}}
freshness: {freshness}
capture: {{idle_advance: 1s, chunk_bytes: {chunk_bytes}, commit_bytes: {commit_bytes}}}
store: {{max_bytes: {store_bytes}, openedge: {openedge}}}
apply: {{max_bytes: {apply_bytes}, merge_memory: {merge_memory}, parallel_tables: {parallel_tables},
  ddl: {{rename_table: {rename_table}}}, max_changes: {max_changes}{mode}}}
baseline: {{workers: {workers}, rows_per_part: {rows_per_part}, window: {window}}}
maintenance: {{every: 5s, small_files: 6, keep_log: {keep_log}, keep_versions: {keep_versions}}}
retention: {{keep: {retention}}}
tables: {{m.coded: {{transactional: {transactional}}}, m.types: {mapping}}}
groups: {{some: {{tables: ['m.c*', 'm.w*'], retries: 50, automatic_baseline: true}}}}
spark: {{spark.driver.memory: 2g}}
{keylog}
"""
MODES = ("strict", "upsert")
TARGETS = ("delta", "postgresql", "iceberg")
SETTINGS = {
    "max_changes": ["300", "3000", "100000"],
    "apply_bytes": ["500MiB", "500MiB", "64KiB"],
    "merge_memory": ["512MiB", "512MiB", "1MiB"],
    "parallel_tables": ["1", "2"],
    "rename_table": ["ignore", "apply"],
    "transactional": ["true", "false"],
    "chunk_bytes": ["8MiB", "64KiB", "1KiB"],
    "commit_bytes": ["64MiB", "256KiB"],
    "store_bytes": ["512MiB", "64KiB"],
    "openedge": ["false", "false", "true"],
    "workers": ["1", "2"],
    "rows_per_part": ["500000", "1000"],
    "local_limit": ["null", "null", "0B"],
    "rewrite_limit": ["4GiB", "4GiB", "0B"],
    "keep_log": ["0s", "1h"],
    "keep_versions": ["1h", "2s"],
    "freshness": ["200ms", "200ms", "auto"],
    "retention": ["forever", "forever", "5s"],
}
"""The settings that a round draws: each one's default, and values that make a task take other ways."""
MAPPING = {"target": "m.kinds", "columns": {"no": "id"}, "constants": {"site": "here"}, "key": ["no"]}
"""What becomes of `m.types` where a table is mapped."""
ELSEWHERE = re.compile(r"drop\.")
"""Fail points that no round comes to: tasks that are dropped."""
MAPPED = re.compile(r"delta\.load|apply\.mapped|apply\.staging")
"""Those that mapped tables alone come to."""


@dataclass(frozen=True)
class Plan:
    """What a round's task has; `mode`: its rules, none when empty; `mapped`: `m.types` goes to another table."""

    target: str
    mode: str
    logged: bool
    opened: bool
    mapped: bool = False

    def reaches(self, point: str) -> bool:
        """Whether such a task comes to a fail point."""
        if ELSEWHERE.match(point) or (MAPPED.match(point) and not self.mapped):
            return False
        part, name = point.split(".", 1)
        needs = {
            "postgresql": self.target == "postgresql",
            "delta": self.target == "delta" or (self.target == "iceberg" and "distributed" not in name),
            "keylog": self.logged,
            "windows": self.opened,
        }
        if name in ("change", "consumers"):
            return self.logged
        return needs.get(part, True) and (name != "exceptions" or bool(self.mode))


def mapped(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the source as that mapping has it.

    >>> mapped({"id": 1, "v": "a"})
    {'v': 'a', 'no': 1, 'site': 'here'}
    """
    return {**{n: v for n, v in row.items() if n != "id"}, "no": row["id"], "site": "here"}


def plan(seed: int, *, whole: bool) -> Plan:
    """The plan of a seed: target, rules and key log have all combinations in twelve whole rounds on end."""
    turn = seed // 2
    return Plan(
        target=TARGETS[turn % 3] if whole else "delta",
        mode=MODES[0] if turn // 3 % 2 == 1 else "",
        logged=turn // 6 % 2 == 0,
        opened=turn % 5 == 3,
        mapped=whole and seed % 2 == 1,
    )


def written(random: Random, one: Plan, source: str, database: str) -> str:
    """A task file."""
    return TASK.format(
        **{name: random.choice(values) for name, values in SETTINGS.items()},
        source=source,
        target={
            "postgresql": f"database: '{database}?schema=lake'",
            "iceberg": "type: iceberg, path: disk/lake",
        }.get(one.target, "path: disk/lake"),
        mode=f", mode: {one.mode}" if one.mode else "",
        window="open" if one.opened else "auto",
        keylog="keylog: {mode: all}" if one.logged else "",
        mapping=json.dumps(MAPPING if one.mapped else {}),
    )


def edit_rules(file: Path, mode: str) -> str:
    """Other rules, or none; says which."""
    text = file.read_text()
    file.write_text(re.sub(r"(max_changes: \d+)[^}]*\}", rf"\1{f', mode: {mode}' if mode else ''}}}", text))
    return f"rules are {mode or 'none'} now"
