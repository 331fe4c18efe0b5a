"""Applies change tables of other products under rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

from ...engine.rules import Rules
from ...errors import ApplyError, LimitReachedError, TailraceError
from ...lake import delta as lake
from ...model.change import ChangeTable, Relation
from ...model.positions import ChangeRange, order_key
from ...model.types import schema_of
from ...targets import keyless
from ...targets.base import Target
from ...targets.change_batch import ChangeBatch
from ...targets.delta.load import PartTask, write_parts
from ...targets.delta.target import DeltaTarget
from ...targets.images import col, explaining
from ...targets.merge_result import MergeResult
from ...targets.scratch import scratch
from ...targets.staged_changes import stage
from .. import audits, rejects, target_mode
from ..apply_result import ApplyResult, summed
from ..rules import RulesApplier
from ..transactions import by_transaction, middle_of
from . import incoming
from .incoming import Incoming


class VendorApplier:
    """Applies change tables to the target of a `RulesApplier`, whose exceptions are below `root`."""

    def __init__(self, under: RulesApplier, root: str) -> None:
        self._under, self._root = under, root

    @property
    def _target(self) -> Target:
        return self._under.target

    @property
    def _rules(self) -> Rules:
        return self._under.rules

    def apply(
        self, changes: ChangeTable, found: Incoming | None = None, *, transactional: bool = False
    ) -> ApplyResult:
        """Applies the changes of a change table that the target does not have yet.

        Args:
            changes: the change table.
            found: the result of `incoming.look` for it, if that is known.
            transactional: each transaction is committed separately.

        Raises:
            ApplyError: a change that the rules stop at; those before it are applied.
            ConfigError: the target was made in another mode.
            UnsupportedError: a keyless table, unless the mode is `archive`.
        """
        if suspended := self._under.suspensions.reason(changes.name):
            return ApplyResult(suspended=suspended)
        try:
            with explaining(changes.name, f"apply {changes.name}"):
                return self._apply(changes, found, transactional=transactional)
        except LimitReachedError:
            self._under.count_again(changes.name)
            raise

    def _apply(self, changes: ChangeTable, known: Incoming | None, *, transactional: bool) -> ApplyResult:
        name, progress = changes.name, self._progress(changes.name, changes.columns)
        after = self._logged(name, progress)
        fresh = incoming.newer(changes, after)
        found = known if known is not None and fresh is changes else incoming.look(fresh)
        if found.upto <= after:
            return ApplyResult()
        if after < progress:
            self._refuse_gap(changes, after, progress)
        found = replace(found, relation=self._layout(changes, found))
        if found.upto > progress:
            incoming.lay_out(self._target, target_mode.relation_of(found.relation, self._rules))
        with self._staged(self._under.judged(fresh, found.relation), found, after) as batch:
            if not transactional:
                return self._merged(batch)
            logged = [batch.between(batch.range.start, progress)] if after < progress else []
            rest = batch.range.later_than(progress)
            memory = self._target.capabilities.memory_bytes
            each = [] if rest.is_empty else by_transaction(batch.between(rest.start, rest.end), memory)
            return self._each(chain(logged, each))

    def _each(self, batches: Iterable[ChangeBatch]) -> ApplyResult:
        """Merges batches, one after the other, until the table is suspended."""
        found: list[ApplyResult] = []
        for batch in batches:
            found.append(self._merged(batch))
            if found[-1].suspended is not None:
                break
        return summed(found)

    def _logged(self, name: str, progress: int) -> int:
        """The change number that a table has reached in its target and in its key log."""
        log = self._under.log
        if log is None:
            return progress
        if (logged := log.state(name).progress) is None:
            log.begin(name, progress)
            return progress
        if logged < progress and self._target.capabilities.notes is not None:
            self._under.recover(name, progress)
            return progress
        return min(logged, progress)

    def _refuse_gap(self, changes: ChangeTable, after: int, progress: int) -> None:
        """Raises ApplyError unless the changes are there that only the key log needs."""
        log = self._under.log
        if log is not None and incoming.look(incoming.newer(changes, after, progress)).upto != progress:
            raise ApplyError(
                f"the key log ends at change {after}, the target at {progress}",
                where=f"{changes.name}, {log.path}",
                hint="give the change tables of the last call again: the key log does not have their changes",
            )

    def _layout(self, changes: ChangeTable, found: Incoming) -> Relation:
        """The layout of the changes: their own, except for columns of the target that cannot follow. These
        keep the target's types, and their values are checked."""
        if not found.relation.key and self._rules.mode != "archive":
            keyless.refuse_soft_delete(changes.name, self._rules)
            keyless.refuse(changes.name, found.wrong)
        if self._rules.on["data_error"] == "stop" or not self._target.exists(changes.name):
            return found.relation
        return rejects.held_in(found.relation, self._target.columns(changes.name))

    @contextmanager
    def _staged(
        self, changes: ChangeTable, found: Incoming, after: int, *, log_only: bool = False
    ) -> Iterator[ChangeBatch]:
        """The batch of changes that Spark computes, in files until the block ends."""
        relation = found.relation
        with scratch(self._root) as folder:
            staged = stage(changes, relation, folder, ordered=self._target.capabilities.ordered)
            yield ChangeBatch(
                relation.table,
                relation,
                ChangeRange(None if after < 0 else after, found.upto),
                folder,
                staged=staged,
                counts=staged.counts,
                appends=self._rules.mode == "archive" or not staged.reads_target(relation.key),
                target=self._target.path(relation.table),
                log_only=log_only,
            )

    def _merged(self, batch: ChangeBatch) -> ApplyResult:
        """Merges a batch: first what only the key log needs, then what the target needs."""
        found: list[ApplyResult] = []
        rest = batch
        while not found or (found[-1].suspended is None and not rest.range.is_empty):
            part = rest
            while (done := merge_one(self._target, self._under.audited(part))) is None:
                part = part.between(part.range.start, middle_of(part.located()))
            found.append(self._under.finished(part, done))
            if done.end is None:
                break
            rest = replace(batch, range=batch.range.later_than(done.end))
        return summed(found)

    def preview(self, changes: ChangeTable) -> ApplyResult:
        """Returns the result that `apply` would have now; writes nothing."""
        if suspended := self._under.suspensions.reason(changes.name):
            return ApplyResult(suspended=suspended)
        with explaining(changes.name, f"apply {changes.name}"):
            return self._preview(changes)

    def _preview(self, changes: ChangeTable) -> ApplyResult:
        progress = self._progress(changes.name, changes.columns)
        fresh = incoming.newer(changes, progress)
        found = incoming.look(fresh)
        if found.upto <= progress:
            return ApplyResult()
        found = replace(found, relation=self._layout(changes, found))
        layout = target_mode.relation_of(found.relation, self._rules)
        incoming.lay_out(self._target, layout, dry_run=True)
        judged = self._under.judged(fresh, found.relation)
        with self._staged(judged, found, progress, log_only=True) as batch:
            target, path = self._previewed(batch.changes, fresh, layout)
            done = merge_one(target, replace(self._under.audited(batch, logs=False), target=path))
        assert done is not None  # noqa: S101 - a Delta table merges every batch
        result, ends, _ = audits.finished(done, changes.name, self._rules, None)
        would = f"would {ends[2]}: {ends[1]} at change_seq {ends[0]}" if ends else None
        return replace(result, suspended=would)

    def _previewed(self, folder: str, changes: ChangeTable, layout: Relation) -> tuple[Target, str]:
        """Returns the target that merges for a preview, and the path of its rows.

        The rows are in a temporary folder if the target does not exist or is a database.
        """
        name, able = layout.table, self._target.capabilities
        exists = self._target.exists(name)
        if exists and able.versions:
            return self._target, self._target.path(name)
        copy = DeltaTarget(changes.df.sparkSession, folder, app_id="preview")
        schema = schema_of(layout.columns)
        lake.create(path := copy.path(name), schema)
        if exists:
            rows = self._target.rows_with_keys(layout, changes.df.select(*map(col, layout.key)))
            files, _ = write_parts(rows, PartTask(path, schema))
            lake.commit(path, files, progress={})
        return copy, path

    def _progress(self, name: str, own: Collection[str]) -> int:
        """The last change number of a table's target; -1 if nothing was applied."""
        if not self._target.exists(name):
            return -1
        target_mode.check_mode(self._target, name, own, self._rules)
        return order_key(self._target.progress(name))


def merge_one(target: Target, batch: ChangeBatch) -> MergeResult | None:
    """Merges one batch. Returns the result; None if the memory of a database's merge does not hold it.

    Raises:
        TailraceError: its changes were not applied.
    """
    (done,) = target.merge([batch])
    if isinstance(done, TailraceError):
        raise done
    return done
