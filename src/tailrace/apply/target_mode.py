"""Layouts of targets under a mode, which may add columns, and checks that a target fits a mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..engine.rules import SOFT_COLUMN, Rules
from ..errors import ConfigError
from ..model.change import PREFIX, Relation
from ..targets.base import Target
from ..targets.rule_columns import added_by, rule_column


def relation_of(relation: Relation, rules: Rules) -> Relation:
    """The layout of the target: that of the changes, with the columns that a mode adds.

    Raises:
        ConfigError: the table has a column of that name already.
    """
    names, added = {c.name for c in relation.columns}, added_by(rules)
    if taken := sorted(names & set(added)):
        raise ConfigError(
            f"the table already has a column {taken[0]!r}",
            where=relation.table,
            hint="name another column for the mark of deleted rows: `soft_delete: COLUMN` in the task file, "
            "`--soft-delete COLUMN` with `tailrace apply`",
        )
    more = [rule_column(n, kind) for n, kind in added.items()]
    if rules.mode == "archive":
        return relation.with_columns([*more, *[replace(c, key=False) for c in relation.columns]])
    return relation.with_columns([*relation.columns, *more])


def alter(target: Target, table: str, before: Relation, after: Relation, rules: Rules) -> None:
    """Gives a target a new layout, with the columns that the mode adds."""
    whole = relation_of(after, rules)
    existing = target.columns(table) if target.exists(table) else {}
    added = {c.name for c in whole.columns} - {c.name for c in after.columns}
    has_added = bool(added) and added <= set(existing)
    target.alter(table, relation_of(before, rules) if has_added else before, whole)


def check_mode(target: Target, name: str, columns: Collection[str], rules: Rules) -> None:
    """Refuses a target that was filled in another mode. `columns`: the columns of the changes.

    Raises:
        ConfigError: as `refuse_other_mode`; or the mode is `archive`, and the target is not an archive.
    """
    refuse_other_mode(target, name, columns, rules)
    if rules.mode == "archive" and PREFIX + "change_seq" not in target.columns(name):
        raise ConfigError("the target is not an archive", where=name, hint="archive into a separate target")


def refuse_other_mode(target: Target, name: str, columns: Collection[str], rules: Rules) -> None:
    """Raises ConfigError if `other_mode` finds that another mode has filled the target."""
    have, added = target.columns(name), target.rule_columns(name)
    if wrong := other_mode({n: k for n, k in have.items() if n not in columns}, added, rules):
        raise ConfigError(wrong[0], where=name, hint=wrong[1])


def other_mode(have: Mapping[str, str], added: Collection[str], rules: Rules) -> tuple[str, str] | None:
    """Why a target does not fit the mode of `rules`, and the remedy: it is an archive, or it marks deleted
    rows in a column that would be dropped. None if it fits; a baseline may become an archive.

    Args:
        have: the target's columns (name -> Spark SQL type), without those of the source.
        added: those of them that the target declares as added by rules.
        rules: the rules of its changes.

    >>> other_mode({"gone": "string"}, ["gone"], Rules.of("soft_delete", {}, "gone"))
    >>> other_mode({"gone": "string"}, ["gone"], Rules())[0]
    "the target marks deleted rows in 'gone'"
    """
    if PREFIX + "change_seq" in have:
        archive = rules.mode == "archive"
        return None if archive else ("the target is an archive", _settings("mode", "archive"))
    marks = {n for n in added if not n.startswith(PREFIX)}
    marks |= {n for n in (SOFT_COLUMN, rules.soft_column) if have.get(n) == "string"}
    if marks and not (rules.mode == "soft_delete" and rules.soft_column in marks):
        mark = min(marks)
        more = "; or pause the table and run `tailrace resync`: a new baseline has no deleted rows"
        return f"the target marks deleted rows in {mark!r}", _settings("soft_delete", mark) + more
    return None


def _settings(setting: str, value: str) -> str:
    """The setting in the task file and on the command line."""
    option = f"--{setting.replace('_', '-')} {value}"
    return f"`{setting}: {value}` in the task file, `{option}` with `tailrace apply`"
