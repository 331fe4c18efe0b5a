"""What a mode makes of a target: the columns that it adds, the rows of an archive, and what it refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..engine.rules import SOFT_COLUMN, Rules
from ..errors import ConfigError
from ..model.change import PREFIX, Relation
from ..targets.base import Target
from ..targets.rule_columns import added_by, rule_column


def relation_of(relation: Relation, rules: Rules) -> Relation:
    """The layout of the target: the changes' own, with the columns that a mode adds.

    Raises:
        ConfigError: the table has a column of that name already.
    """
    names, added = {c.name for c in relation.columns}, added_by(rules)
    if taken := sorted(names & set(added)):
        raise ConfigError(
            f"the table has a column {taken[0]!r} of its own",
            where=relation.table,
            hint="name another column for the mark of deleted rows: `soft_delete: COLUMN` in the task file, "
            "`--soft-delete COLUMN` with `tailrace apply`",
        )
    more = [rule_column(n, kind) for n, kind in added.items()]
    if rules.mode == "archive":
        return relation.with_columns([*more, *[replace(c, key=False) for c in relation.columns]])
    return relation.with_columns([*relation.columns, *more])


def alter(target: Target, table: str, before: Relation, after: Relation, rules: Rules) -> None:
    """Gives a target a new layout of its changes, and the columns that the mode adds."""
    whole = relation_of(after, rules)
    there = target.columns(table) if target.exists(table) else {}
    added = {c.name for c in whole.columns} - {c.name for c in after.columns}
    made = bool(added) and added <= set(there)
    target.alter(table, relation_of(before, rules) if made else before, whole)


def check_mode(target: Target, name: str, own: Collection[str], rules: Rules) -> None:
    """Refuses a target that holds what another mode made of it; `own`: the columns that its changes have.

    Raises:
        ConfigError: see `other_mode`; it is to be an archive, and is none.
    """
    refuse_other_mode(target, name, own, rules)
    if rules.mode == "archive" and PREFIX + "change_seq" not in target.columns(name):
        raise ConfigError("the target is no archive", where=name, hint="archive into a target of its own")


def refuse_other_mode(target: Target, name: str, own: Collection[str], rules: Rules) -> None:
    """Raises ConfigError for what `other_mode` finds."""
    have, added = target.columns(name), target.rule_columns(name)
    if wrong := other_mode({n: k for n, k in have.items() if n not in own}, added, rules):
        raise ConfigError(wrong[0], where=name, hint=wrong[1])


def other_mode(have: Mapping[str, str], added: Collection[str], rules: Rules) -> tuple[str, str] | None:
    """What is wrong with a target that another mode has filled, and what to do: it is an archive, or it marks
    deleted rows in a column that would go. None: nothing is; a baseline may become an archive.

    Args:
        have: its columns (name -> Spark SQL type), without those of the source.
        added: those of them that rules have added, as far as the target says so (those that earlier releases
            made do not).
        rules: what its changes are to be applied under.

    >>> other_mode({"gone": "string"}, ["gone"], Rules.of("soft_delete", {}, "gone"))
    >>> other_mode({"gone": "string"}, ["gone"], Rules())[0]
    "the target marks deleted rows in 'gone'"
    """
    if PREFIX + "change_seq" in have:
        archive = rules.mode == "archive"
        return None if archive else ("the target is an archive", _say("mode", "archive"))
    marks = {n for n in added if not n.startswith(PREFIX)}
    marks |= {n for n in (SOFT_COLUMN, rules.soft_column) if have.get(n) == "string"}
    if marks and not (rules.mode == "soft_delete" and rules.soft_column in marks):
        mark = min(marks)
        more = (
            "; or pause the table, then give it a new baseline (`tailrace resync`), which has no deleted rows"
        )
        return f"the target marks deleted rows in {mark!r}", _say("soft_delete", mark) + more
    return None


def _say(setting: str, value: str) -> str:
    option = f"--{setting.replace('_', '-')} {value}"
    return f"`{setting}: {value}` in the task file, `{option}` with `tailrace apply`"
