"""Requests and results of merges under rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..engine.log_rows import KeyLogHeader
from ..engine.rules import Rules
from ..formats.sqdr import text as sqdr_text
from ..keylog.change_range import ChangeRange
from ..keylog.exceptions import Exceptions
from ..keylog.key_log import FEW, SCHEMA, KeyLog
from ..lake import delta as lake
from ..model.change import Relation
from ..targets.audit import Audit, Audited, LogPart
from ..targets.base import Target
from ..targets.change_batch import TaskBatch
from ..targets.images import ordinals
from ..targets.merge_result import Ends, Expected
from . import target_mode
from .apply_result import ApplyResult, result_of


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
) -> TaskBatch:
    """A batch with what its merge needs to find and log the outcome of the changes."""
    one = ChangeRange(batch.table, batch.after, batch.upto, 0)
    order = audit(batch.relation, target, rules, exceptions, log, one, batch.after, ())
    layout = target_mode.relation_of(batch.relation, rules)
    return replace(batch, audit=replace(order, logs=batch.logs), layout=layout)


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
    header = KeyLogHeader(
        run_id="", group_id="", subscription=one.subscription, after=one.after, flagged=0, sort=0,
        fields=tuple(fields), ordinals=ordinals(names, [f.name for f in fields]), key=tuple(key),
        dest=sqdr_text.dest(one.subscription),
    )  # fmt: skip
    header = header if log is None else log.header(header, log.reserve(one))
    counted = exceptions.counted(relation.table, after, rules.limits) if rules.limits else {}
    part = None
    if log is not None:
        lake.create(log.path, SCHEMA)
        # A note names files.
        handed = FEW if target.capabilities.notes is None else 0
        part = LogPart(log.path, SCHEMA, header, log.mode, log.visible(relation.table), handed, log.life)
    places: tuple[int, ...] = ()
    if rules.mode == "archive":
        there = list(dict.fromkeys([*target.columns(relation.table), *(f.name for f in fields)]))
        places = tuple(there.index(f.name) for f in fields)
    return Audit(relation.table, rules, exceptions, header, part, counted, after, places=places)
