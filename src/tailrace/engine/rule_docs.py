"""Generates parts of the documentation: modes, policies, and the outcome of each kind of change."""

from __future__ import annotations

from ..wire.keylog_values import IGNORED
from .rules import CONFLICTS, DEFAULTS, ENDING, MODES, POLICIES, SITUATIONS, Outcome, Rules


def markdown() -> str:
    """Returns the tables of modes and policies for docs/apply.md."""
    lines = [
        "| mode | what it does | insert_exists | update_missing | delete_missing | data_error |",
        "|---|---|---|---|---|---|",
    ]
    for mode, text in MODES.items():
        defaults = [f"`{p}`" if (p := DEFAULTS[mode].get(kind)) else "" for kind in CONFLICTS]
        lines.append(f"| `{mode}` | {text} | {' | '.join(defaults)} |")
    lines += ["", "| policy | what it does |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in POLICIES.items()]
    return "\n".join(lines) + "\n"


def outcomes_markdown() -> str:
    """Returns the page `docs/outcomes.md`: the outcome of each kind of change by mode and policy."""
    lines = [
        "# Outcomes: what each mode does with each change",
        "",
        "Written from `tailrace.engine.rules`. [Rules](apply.md) explains modes, policies and columns.",
    ]
    for mode in MODES:
        lines += ["", f"## {mode}", "", "| change | conflict | policy | effect | action_taken | "
                  "result_row_count | flagged |", "|---|---|---|---|---|---|---|"]  # fmt: skip
        for situation, text in SITUATIONS.items():
            lines += _lines(mode, situation, text)
    return "\n".join(lines) + "\n"


def _lines(mode: str, situation: str, text: str) -> list[str]:
    """Returns one table row per policy; policies with the same outcome share a row."""
    rows: dict[tuple[str, Outcome], list[str]] = {}
    for policy in POLICIES:
        kinds = ["data_error"] if mode == "archive" else CONFLICTS
        rules = Rules(mode, dict.fromkeys(kinds, policy))
        if policy == "apply" and rules.conflict(situation) == "data_error":
            continue
        result = rules.outcome(situation)
        ending = f"{policy} before it" if policy in ENDING and result.conflict else result.effect
        rows.setdefault((ending, result), []).append(policy)
    found = []
    for (effect, result), policies in rows.items():
        names = ", ".join(f"`{p}`" for p in policies) if result.conflict else ""
        conflict = f"`{result.conflict}`" if result.conflict else ""
        ends = effect.endswith("before it")
        action = "" if ends else f"`{'0x00' if result.action == IGNORED else result.action}`"
        count = "" if ends else "NULL" if result.rows is None else str(result.rows)
        flag = "yes" if result.flagged and not ends else ""
        found.append(f"| {text} | {conflict} | {names} | {effect} | {action} | {count} | {flag} |")
    return found
