"""Whether a batch can be audited in one task (`targets/delta_audit.py`), and what that task has to get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import lake
from ..change import NATIVE, ChangeTable, Relation
from ..formats.sqdr import text as sqdr_text
from ..formats.sqdr import writing as sqdr_writing
from .exceptions import Exceptions
from .expect import Expected
from .fold import col
from .keylog import SCHEMA, KeyLog, Stretch
from .keylog_rows import AT, DETAIL, MASK, Sheet
from .limits import Ends
from .plan import TableBatch
from .ruled_batch import Batch
from .rules import Rules
from .targets.base import Target
from .targets.delta import DeltaTarget
from .targets.delta_audit import Audit, LogPart
from .told import Done, told

if TYPE_CHECKING:
    from pyspark.sql import Column

MODES = ("strict", "upsert", "soft_delete")


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
    if not isinstance(target, DeltaTarget) or batch.tolerant:
        return None
    if not fits(batch.changes, found.relation, rules, found.counts):
        return None
    one = replace(batch, expected=Expected()).stretch(rules)
    if log is not None:
        lake.create(log.path, SCHEMA)
    order = audit(batch.changes, found.relation, rules, exceptions, log, one)
    if rules.limits:
        counted = exceptions.counted(batch.table, batch.after, rules.limits)
        order = replace(order, counted=counted)
    order = replace(order, after=batch.after)
    whole = TableBatch(batch.table, layout, batch.changes, found.upto, found.counts)
    done = target.audited(whole, order, beside(batch.changes))
    if done is None or isinstance(done, str):
        return done
    expected, counts = Expected(tally=done.tally), {**found.counts, **done.counts}
    if done.upto >= 0 and log is not None:
        one = replace(one, flagged=expected.flagged(rules), upto=done.upto)
        log.commit([done.part] if done.part else [], one)
    return told(done.upto, counts, expected, rules, done.outcome), done.ends, done.why


def fits(changes: ChangeTable, relation: Relation, rules: Rules, counts: Mapping[str, int]) -> bool:
    """Whether a batch is of the kind that one task does: rows of a key log of somebody else's keep codes of
    its own; truncates, and values that a narrower column may not hold, take the long way."""
    if rules.mode not in MODES or not relation.key or counts.get("T"):
        return False
    kinds = {f.name: f.dataType.simpleString() for f in changes.df.schema}
    if rules.on["data_error"] != "stop" and any(
        kinds.get(c.name, c.type) != c.type for c in relation.columns
    ):
        return False
    return not any(h.startswith(NATIVE) for h in changes.headers)


def audit(
    changes: ChangeTable,
    relation: Relation,
    rules: Rules,
    exceptions: Exceptions,
    keylog: KeyLog | None,
    one: Stretch,
) -> Audit:
    """How the batch is audited; `one.flagged` has no meaning yet."""
    sheet = _sheet(changes, relation, keylog, one)
    if keylog is None:
        return Audit(relation.table, rules, exceptions, sheet)
    part = LogPart(keylog.path, SCHEMA, sheet, keylog.mode)
    return Audit(relation.table, rules, exceptions, sheet, part)


def beside(changes: ChangeTable) -> dict[str, Column]:
    """The columns that the task gets beside the images, see `keylog_rows`."""
    made = {}
    if sqdr_writing.has(changes, "column_mask"):
        made[MASK] = col(changes.header("column_mask"))
    if sqdr_writing.has(changes, "timestamp"):
        made[AT] = col(changes.header("timestamp")).cast("timestamp")
    if any(sqdr_writing.has(changes, h) for h in ("user_name", "recid")):
        made[DETAIL] = sqdr_writing.detail(changes)
    return made


def _sheet(changes: ChangeTable, relation: Relation, keylog: KeyLog | None, one: Stretch) -> Sheet:
    names = changes.df.columns
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
