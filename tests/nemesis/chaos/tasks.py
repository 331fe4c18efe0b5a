"""The task files of rounds, and what is edited in them between lives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

TASK = """\
name: chaos
home: disk/home
source: {{url: '{source}', tables: ['m.*']}}
target: {target}
capture: {{commit_every: 200ms, idle_advance: 1s}}
store: {{every: 500ms}}
apply: {{every: 500ms, ddl: {{rename_table: {named}}}, max_changes: {changes}{mode}}}
baseline: {{workers: 1, window: {window}}}
maintenance: {{every: 5s, small_files: 6, keep_log: {keep}}}
groups: {{some: {{tables: ['m.c*', 'm.w*'], retries: 50, automatic_baseline: true}}}}
spark: {{spark.driver.memory: 2g}}
{keylog}
"""
MODES = ("strict", "upsert")


def written(
    random: Random, seed: int, source: str, database: str, points: Sequence[str], *, whole: bool
) -> str:
    """A task file. Target, rules and key log go by the seed, all combinations in eight whole rounds on end;
    they are other ones where the fail points could not be reached."""
    words, turn = " ".join(points), seed // 2
    to_database = (
        turn % 2 == 1 if not ("postgresql." in words or "delta." in words) else "postgresql." in words
    )
    ruled = "exceptions" in words or turn // 2 % 2 == 1
    logged = "keylog." in words or "control.change" in words or turn // 4 % 2 == 0
    opened = "windows." in words or random.random() < 0.2
    return TASK.format(
        source=source,
        target=f"'{database}?schema=lake'" if whole and to_database else "{path: disk/lake}",
        changes=random.choice([300, 3000, 100000]),
        named=random.choice(["ignore", "apply"]),
        keep=random.choice(["0s", "1h"]),
        mode=f", mode: {MODES[0]}" if ruled else "",
        window="open" if opened else "auto",
        keylog="keylog: {mode: all}" if logged else "",
    )


def edit_rules(file: Path, random: Random) -> str:
    """Other rules, or none; says which."""
    text = file.read_text()
    mode = random.choice([*MODES, ""])
    file.write_text(re.sub(r"(max_changes: \d+)[^}]*\}", rf"\1{f', mode: {mode}' if mode else ''}}}", text))
    return f"rules are {mode or 'none'} now"
