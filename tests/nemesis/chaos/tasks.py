"""The task files of rounds, and what is edited in them between lives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

TASK = """\
name: chaos
home: disk/home
source: {{url: '{source}', tables: ['m.*']}}
target: {target}
capture: {{commit_every: 200ms, idle_advance: 1s, chunk_bytes: {chunk}}}
store: {{every: 500ms}}
apply: {{every: 500ms, ddl: {{rename_table: {named}}}, max_changes: {changes}{mode}}}
baseline: {{workers: 1, window: {window}}}
maintenance: {{every: 5s, small_files: 6, keep_log: {keep}}}
tables: {{m.coded: {{transactional: {each}}}}}
groups: {{some: {{tables: ['m.c*', 'm.w*'], retries: 50, automatic_baseline: true}}}}
spark: {{spark.driver.memory: 2g}}
{keylog}
"""
MODES = ("strict", "upsert")
ELSEWHERE = re.compile(r"drop\.|delta\.load|postgresql\.load|apply\.mapped|apply\.staging")
"""Fail points that no round comes to: tasks that are dropped, tables that are mapped to others."""


@dataclass(frozen=True)
class Plan:
    """What a round's task has; `mode`: its rules, none when empty."""

    database: bool
    mode: str
    logged: bool
    opened: bool

    def reaches(self, point: str) -> bool:
        """Whether such a task comes to a fail point."""
        if ELSEWHERE.match(point):
            return False
        part, name = point.split(".", 1)
        needs = {
            "postgresql": self.database,
            "delta": not self.database,
            "keylog": self.logged,
            "windows": self.opened,
        }
        if name in ("change", "consumers"):
            return self.logged
        return needs.get(part, True) and (name != "exceptions" or bool(self.mode))


def plan(seed: int, *, whole: bool) -> Plan:
    """The plan of a seed: target, rules and key log have all combinations in eight whole rounds on end."""
    turn = seed // 2
    return Plan(
        database=whole and turn % 2 == 1,
        mode=MODES[0] if turn // 2 % 2 == 1 else "",
        logged=turn // 4 % 2 == 0,
        opened=turn % 5 == 3,
    )


def written(random: Random, one: Plan, source: str, database: str) -> str:
    """A task file."""
    return TASK.format(
        source=source,
        target=f"'{database}?schema=lake'" if one.database else "{path: disk/lake}",
        changes=random.choice([300, 3000, 100000]),
        named=random.choice(["ignore", "apply"]),
        keep=random.choice(["0s", "1h"]),
        mode=f", mode: {one.mode}" if one.mode else "",
        window="open" if one.opened else "auto",
        each=random.choice(["true", "false"]),
        chunk=random.choice(["8MiB", "64KiB", "1KiB"]),
        keylog="keylog: {mode: all}" if one.logged else "",
    )


def edit_rules(file: Path, mode: str) -> str:
    """Other rules, or none; says which."""
    text = file.read_text()
    file.write_text(re.sub(r"(max_changes: \d+)[^}]*\}", rf"\1{f', mode: {mode}' if mode else ''}}}", text))
    return f"rules are {mode or 'none'} now"
