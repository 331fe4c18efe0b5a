"""Whether a batch can be audited in one task (`targets/auditor.py`), and what that task has to get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..engine.columns import LETTER
from ..engine.rules import Rules
from ..formats.sqdr import text as sqdr_text
from ..lake import delta as lake
from ..model.change import ChangeTable, Relation
from . import effects
from .apply_result import ApplyResult, result_of
from .data_errors import retyped
from .expect import Ends, Expected
from .images import col
from .keylog import tasks as keylog_tasks
from .keylog.change_range import ChangeRange
from .keylog.exceptions import Exceptions
from .keylog.key_log import FEW, SCHEMA, KeyLog
from .plan import TableBatch
from .rules_batch import RulesBatch
from .targets.audit import Audit, Audited, LogPart
from .targets.base import Target
from .targets.task_batch import TaskBatch


def attempt(
    target: Target,
    batch: RulesBatch,
    layout: Relation,
    rules: Rules,
    exceptions: Exceptions,
    log: KeyLog | None,
) -> tuple[ApplyResult, Ends | None, str | None] | str | None:
    """Target, exceptions and the key log's rows by one task: what was done, the change before which the
    batch ended, and what is wrong with its values. `LOST`: it was done, and what was found is not known;
    None: it is not for one task."""
    found = batch.found
    if (audits := target.capabilities.audits) is None:
        return None
    if not fits(batch.changes, found.relation, rules, judges=target.capabilities.judges):
        return None
    one = replace(batch, expected=Expected()).range(rules)
    names = batch.changes.df.columns
    order = audit(found.relation, target, rules, exceptions, log, one, batch.after, names)
    changes, counts, extra = batch.changes, found.counts, keylog_tasks.extras(batch.changes)
    if rules.mode == "archive":
        extra[LETTER] = col(changes.header("change_oper"))
        old = log is not None and (not found.relation.key or bool(counts.get("key_changes")))
        changes, counts = effects.archived(changes, counts, (), extra, before=old)
        extra = {name: col(name) for name in extra}
    done = audits.audited(TableBatch(batch.table, layout, changes, found.upto, counts), order, extra)
    return done if done is None or isinstance(done, str) else finished(done, one, rules, log)


def finished(
    done: Audited, one: ChangeRange, rules: Rules, log: KeyLog | None
) -> tuple[ApplyResult, Ends | None, str | None]:
    """Commits the key log of an audited merge, and tells what it did as `attempt` does."""
    expected = Expected(tally=done.tally)
    if done.upto >= 0 and log is not None:
        one = replace(one, flagged=expected.flagged(rules), upto=done.upto)
        log.commit(list(done.parts), one, done.logged)
    return result_of(done.upto, done.counts, expected, rules, done.outcome), done.ends, done.why


def prepared(
    batch: TaskBatch, target: Target, rules: Rules, exceptions: Exceptions, log: KeyLog | None
) -> TaskBatch | None:
    """A batch for one task with what its merge needs to find and log the outcome of the changes; None
    when that is not for one task, or when the key log lacks something of the target."""
    if not _allowed(batch.relation, rules, judges=target.capabilities.judges):
        return None
    if log is not None and log.standing(batch.table).reached != batch.after:
        return None
    one = ChangeRange(batch.table, batch.after, batch.upto, 0)
    order = audit(batch.relation, target, rules, exceptions, log, one, batch.after, ())
    return replace(batch, audit=order, layout=effects.relation_of(batch.relation, rules))


def fits(changes: ChangeTable, relation: Relation, rules: Rules, *, judges: bool) -> bool:
    """Whether a batch is of the kind that one task does: values that a retyped column may not hold take the
    long way, unless the target `judges` them."""
    return _allowed(relation, rules, judges=judges) and (judges or not retyped(changes, relation))


def _allowed(relation: Relation, rules: Rules, *, judges: bool) -> bool:
    """Whether rules let one task do a batch: it marks no rows without a key, and only a target that `judges`
    values finds those that an archive cannot hold."""
    if rules.mode == "archive":
        return judges or rules.on["data_error"] == "stop"
    return rules.mode != "soft_delete" or bool(relation.key)


def audit(
    relation: Relation,
    target: Target,
    rules: Rules,
    exceptions: Exceptions,
    log: KeyLog | None,
    one: ChangeRange,
    after: int,
    names: Sequence[str],
) -> Audit:
    """How changes in (`one.after`, `one.upto`] are audited, when the target has reached `after`; `names`: the
    columns of their change table."""
    fields = [sqdr_text.field_of(c.name, c.type) for c in relation.columns]
    key = relation.key or [c.name for c in relation.columns]
    if log is None:
        header = keylog_tasks.header_of(fields, names, key, one)
    else:
        header = log.header(fields, names, key, one, log.reserve(one))
    counted = exceptions.counted(relation.table, after, rules.limits) if rules.limits else {}
    part = None
    if log is not None:
        lake.create(log.path, SCHEMA)
        # A note names files.
        handed = FEW if target.capabilities.notes is None else 0
        part = LogPart(log.path, SCHEMA, header, log.mode, log.visible(relation.table), handed, log.life)
    places: tuple[int, ...] = ()
    if rules.mode == "archive":
        there = list(target.columns(relation.table))
        places = tuple(there.index(f.name) for f in fields)
    return Audit(relation.table, rules, exceptions, header, part, counted, after, places=places)
