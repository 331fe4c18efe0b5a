"""The result of `tailrace apply` for people: a line per table that fits a narrow terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table


def applied(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The tables of `incoming.run`.

    >>> in_words({"I": 3, "U": 0, "D": 1, "T": 0}), in_words({})
    ('I 3, D 1', '')
    """
    has_rules = any("actions" in row for row in rows)
    more = ["did", "conflicts", "flagged"] if has_rules else ["plan"]
    made = Table("table", "changes", "up to", "new, changed, gone", *more)
    for column in made.columns:
        column.overflow = "fold"  # nothing is truncated
    for row in rows:
        changes = in_words({k: row.get(k, 0) for k in "IUDT"})
        outcome = [
            in_words(row.get("actions", {})),
            in_words(row.get("conflicts", {})),
            f"{row.get('flagged', 0):,}",
        ]
        counts = ", ".join(f"{row.get(n, 0):,}" for n in ("inserted", "updated", "deleted"))
        cells = [row["table"], changes, str(row.get("up to", "")), counts]
        made.add_row(*map(escape, [*cells, *(outcome if has_rules else [str(row.get("plan", ""))])]))
    return made


def in_words(counts: Mapping[str, int]) -> str:
    """Counts by name, without zeros."""
    return ", ".join(f"{name} {many:,}" for name, many in counts.items() if many)


def remarks(done: Mapping[str, Any]) -> list[str]:
    """Why tables take no more changes, then what is odd about them: one line each."""
    whys = [(row["table"], str(row["suspended"])) for row in done["tables"] if row.get("suspended")]
    # A dry run shows where the batch would end.
    held = [f"{t}: {why}" if why.startswith("would ") else f"{t} is suspended: {why}" for t, why in whys]
    return [*held, *(f"note: {note}" for note in done["notes"])]
