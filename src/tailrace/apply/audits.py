"""Audits, the requests to check and log changes in a merge, and the results of such merges."""

from __future__ import annotations

from dataclasses import replace

from ..engine.log_rows import KeyLogHeader
from ..engine.rules import Rules
from ..formats.sqdr import text as sqdr_text
from ..keylog.control_tables import ApplyExceptions
from ..keylog.key_log import FEW, SCHEMA, KeyLog
from ..lake import delta as lake
from ..targets.audit import Audit, KeyLogOutput
from ..targets.base import Target
from ..targets.change_batch import ChangeBatch
from ..targets.merge_result import Conflicts, Ends, MergeResult
from . import target_mode
from .apply_result import ApplyResult, result_of


def finished(
    done: MergeResult, table: str, rules: Rules, log: KeyLog | None
) -> tuple[ApplyResult, Ends | None, str | None]:
    """Commits the key log of a merge. Returns the result, the change before which the batch ended, and the
    reason why that change cannot be applied."""
    conflicts = Conflicts(tally=done.tally)
    if done.end is not None and log is not None:
        log.commit(table, done.end, flagged=conflicts.flagged(rules), files=done.parts, rows=done.logged)
    return result_of(done.end, done.counts, conflicts, rules, done.outcome), done.ends, done.why


def prepared(
    batch: ChangeBatch, target: Target, rules: Rules, exceptions: ApplyExceptions, log: KeyLog | None
) -> ChangeBatch:
    """Returns a batch with the audit that its merge needs."""
    request = audit(batch, target, rules, exceptions, log)
    return replace(batch, audit=request, layout=target_mode.relation_of(batch.relation, rules))


def audit(
    batch: ChangeBatch, target: Target, rules: Rules, exceptions: ApplyExceptions, log: KeyLog | None
) -> Audit:
    """Returns how the changes of a batch are checked and logged."""
    relation, start = batch.relation, batch.range.lower
    fields = [sqdr_text.field_of(c.name, c.type) for c in relation.columns]
    key = relation.key or [c.name for c in relation.columns]
    header = KeyLogHeader(
        run_id="", group_id="", subscription=batch.table, after=start, flagged=0, sort=0,
        fields=tuple(fields), ordinals=(), key=tuple(key),
        dest=sqdr_text.dest(batch.table),
    )  # fmt: skip
    header = header if log is None else log.header(header, log.reserve(batch.table, batch.range))
    counted = exceptions.counts(relation.table, start, rules.limits) if rules.limits else {}
    part = None
    if log is not None:
        lake.create(log.path, SCHEMA)
        # The note of a batch names files, so its log rows are always written to files.
        few = FEW if target.capabilities.notes is None else 0
        part = KeyLogOutput(log.path, SCHEMA, header, log.mode, log.visible(relation.table), few, log.life)
    mask_bits: tuple[int, ...] = ()
    if rules.mode == "archive":
        names = list(dict.fromkeys([*target.columns(relation.table), *(f.name for f in fields)]))
        mask_bits = tuple(names.index(f.name) for f in fields)
    return Audit(
        relation.table,
        rules,
        exceptions,
        header,
        part,
        counted,
        start,
        mask_bits=mask_bits,
        log_only=batch.log_only,
    )
