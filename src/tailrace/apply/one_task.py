"""Whether a batch can be audited in one task (`targets/auditor.py`), and what that task has to get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..engine.columns import LETTER
from ..engine.log_rows import Sheet
from ..engine.rules import Rules
from ..formats.sqdr import text as sqdr_text
from ..lake import delta as lake
from ..model.change import ChangeTable, Relation
from . import effects, keylog_tasks
from .data_errors import retyped
from .exceptions import Exceptions
from .expect import Expected
from .fold import col
from .keylog import SCHEMA, KeyLog, Stretch
from .limits import Ends
from .plan import TableBatch
from .ruled_batch import Batch
from .targets.audit import Audit, Audited, LogPart
from .targets.base import Target
from .targets.delta_many import Small
from .told import Done, told

if TYPE_CHECKING:
    pass


def attempt(
    target: Target,
    batch: Batch,
    layout: Relation,
    rules: Rules,
    exceptions: Exceptions,
    log: KeyLog | None,
) -> tuple[Done, Ends | None, str | None] | str | None:
    """Target, exceptions and the key log's rows by one task: what was done, the change before which the
    batch ended, and what is wrong with its values. `LOST`: it was done, and what was found is not known;
    None: it is not for one task."""
    found = batch.found
    if (audits := target.capabilities.audits) is None or batch.tolerant:
        return None
    if not fits(batch.changes, found.relation, rules, found.counts):
        return None
    one = replace(batch, expected=Expected()).stretch(rules)
    order = audit(found.relation, rules, exceptions, log, one, batch.after, batch.changes.df.columns)
    changes, counts, extra = batch.changes, found.counts, keylog_tasks.beside(batch.changes)
    if rules.mode == "archive":
        extra[LETTER] = col(changes.header("change_oper"))
        changes, counts = effects.archived(changes, counts, list(target.columns(batch.table)), extra)
        extra = {name: col(name) for name in extra}
    done = audits.audited(TableBatch(batch.table, layout, changes, found.upto, counts), order, extra)
    return done if done is None or isinstance(done, str) else finished(done, one, rules, log)


def finished(
    done: Audited, one: Stretch, rules: Rules, log: KeyLog | None
) -> tuple[Done, Ends | None, str | None]:
    """Commits the key log of an audited merge, and tells what it did as `attempt` does."""
    expected = Expected(tally=done.tally)
    if done.upto >= 0 and log is not None:
        one = replace(one, flagged=expected.flagged(rules), upto=done.upto)
        log.commit([done.part] if done.part else [], one)
    return told(done.upto, done.counts, expected, rules, done.outcome), done.ends, done.why


def small(batch: Small, rules: Rules, exceptions: Exceptions, log: KeyLog | None) -> Small | None:
    """A small batch of a task with what its merge needs to find and log what becomes of the changes; None
    when that is not for one task, or when the key log lacks something of the target."""
    if rules.mode == "archive":
        return None
    if log is not None and log.standing(batch.table).reached != batch.after:
        return None
    one = Stretch(batch.table, batch.after, batch.upto, 0)
    order = audit(batch.relation, rules, exceptions, log, one, batch.after, ())
    return replace(batch, audit=order, layout=effects.relation_of(batch.relation, rules))


def fits(changes: ChangeTable, relation: Relation, rules: Rules, counts: Mapping[str, int]) -> bool:
    """Whether a batch is of the kind that one task does: truncates, and values that a retyped column may not
    hold, take the long way."""
    if counts.get("T") or not (relation.key or rules.mode == "archive"):
        return False
    if rules.mode == "archive" and rules.on["data_error"] != "stop":
        return False
    return not retyped(changes, relation)


def audit(
    relation: Relation,
    rules: Rules,
    exceptions: Exceptions,
    log: KeyLog | None,
    one: Stretch,
    after: int,
    names: Sequence[str],
) -> Audit:
    """How changes in (`one.after`, `one.upto`] are audited, when the target has reached `after`; `names`: the
    columns of their change table."""
    sheet = _sheet(names, relation, log, one)
    counted = exceptions.counted(relation.table, after, rules.limits) if rules.limits else {}
    part = None
    if log is not None:
        lake.create(log.path, SCHEMA)
        part = LogPart(log.path, SCHEMA, sheet, log.mode, log.visible(relation.table))
    return Audit(relation.table, rules, exceptions, sheet, part, counted, after)


def _sheet(names: Sequence[str], relation: Relation, keylog: KeyLog | None, one: Stretch) -> Sheet:
    # A column that the change table does not have is in no mask.
    ordinals = [names.index(c.name) if c.name in names else len(names) for c in relation.columns]
    at = keylog.reserve(one) if keylog else None
    return Sheet(
        keylog.run_of(one.subscription) if keylog else "",
        keylog.group_id if keylog else "",
        one.subscription,
        one.after,
        at.flagged if at else 0,
        at.sort if at else 0,
        tuple(sqdr_text.field_of(c.name, c.type) for c in relation.columns),
        tuple(ordinals),
        tuple(relation.key),
        sqdr_text.dest(relation.table),
    )
