"""Applies change tables of other products under rules, as `tailrace apply` does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

from ...engine.rules import Rules
from ...errors import ApplyError, LimitReachedError, TailraceError
from ...lake import delta as lake
from ...lake.data_files import DataFiles
from ...model.change import ChangeTable, Relation
from ...model.positions import ChangeRange, order_key
from ...model.types import schema_of
from ...targets import keyless
from ...targets.base import Target
from ...targets.change_batch import ChangeBatch
from ...targets.delta.target import DeltaTarget
from ...targets.images import col, explaining
from ...targets.lake.load import PartTask, write_parts
from ...targets.merge_result import MergeResult
from ...targets.scratch import scratch
from ...targets.staged_changes import stage
from .. import audits, rejects, target_mode
from ..apply_result import ApplyResult, summed
from ..rules import RulesApplier
from ..transactions import by_transaction, middle_of
from . import upsert
from .change_stats import ChangeStats, newer, scan


class VendorApplier:
    """Applies change tables with a `RulesApplier`; temporary files are below the folder `root`."""

    def __init__(self, rules_applier: RulesApplier, root: str) -> None:
        self._applier, self._root = rules_applier, root

    @property
    def _target(self) -> Target:
        return self._applier.target

    @property
    def _rules(self) -> Rules:
        return self._applier.rules

    def apply(
        self, changes: ChangeTable, stats: ChangeStats | None = None, *, transactional: bool = False
    ) -> ApplyResult:
        """Applies the changes of a change table that the target does not have yet.

        Args:
            changes: the change table.
            stats: its statistics, if they are known.
            transactional: each transaction is committed separately.

        Raises:
            ApplyError: a change that the rules stop at; those before it are applied.
            ConfigError: the target was made in another mode.
            UnsupportedError: a keyless table, unless the mode is `archive`.
        """
        if suspended := self._applier.suspensions.reason(changes.name):
            return ApplyResult(suspended=suspended)
        try:
            with explaining(changes.name, f"apply {changes.name}"):
                return self._apply(changes, stats, transactional=transactional)
        except LimitReachedError:
            self._applier.count_again(changes.name)
            raise

    def _apply(self, changes: ChangeTable, known: ChangeStats | None, *, transactional: bool) -> ApplyResult:
        name, progress = changes.name, self._progress(changes.name, changes.columns)
        start = self._logged(name, progress)
        fresh = newer(changes, start)
        stats = known if known is not None and fresh is changes else scan(fresh)
        if stats.end <= start:
            return ApplyResult()
        if start < progress:
            self._refuse_gap(changes, start, progress)
        stats = replace(stats, relation=self._layout(changes, stats))
        if stats.end > progress:
            upsert.set_layout(self._target, target_mode.relation_of(stats.relation, self._rules))
        with self._staged(self._applier.judged(fresh, stats.relation), stats, start) as batch:
            if not transactional:
                return self._merged(batch)
            logged = [batch.between(batch.range.start, progress)] if start < progress else []
            rest = batch.range.later_than(progress)
            memory = self._target.capabilities.memory_bytes
            each = [] if rest.is_empty else by_transaction(batch.between(rest.start, rest.end), memory)
            return self._each(chain(logged, each))

    def _each(self, batches: Iterable[ChangeBatch]) -> ApplyResult:
        """Merges batches, one after the other, until the table is suspended."""
        results: list[ApplyResult] = []
        for batch in batches:
            results.append(self._merged(batch))
            if results[-1].suspended is not None:
                break
        return summed(results)

    def _logged(self, name: str, progress: int) -> int:
        """The change number that both the target and the key log of a table have reached."""
        log = self._applier.log
        if log is None:
            return progress
        if (logged := log.state(name).progress) is None:
            log.begin(name, progress)
            return progress
        if logged < progress and self._target.capabilities.notes is not None:
            self._applier.recover(name, progress)
            return progress
        return min(logged, progress)

    def _refuse_gap(self, changes: ChangeTable, start: int, progress: int) -> None:
        """Raises ApplyError if changes are missing that only the key log needs."""
        log = self._applier.log
        if log is not None and scan(newer(changes, start, progress)).end != progress:
            raise ApplyError(
                f"the key log ends at change {start}, the target at {progress}",
                where=f"{changes.name}, {log.path}",
                hint="give the change tables of the last call again: the key log does not have their changes",
            )

    def _layout(self, changes: ChangeTable, stats: ChangeStats) -> Relation:
        """The layout that changes are applied with.

        It is their own, except that columns whose type the target cannot change keep the target's type; their
        values are checked.
        """
        if not stats.relation.key and self._rules.mode != "archive":
            keyless.refuse_soft_delete(changes.name, self._rules)
            keyless.refuse(changes.name, stats.unidentified)
        if self._rules.on["data_error"] == "stop" or not self._target.exists(changes.name):
            return stats.relation
        return rejects.held_in(stats.relation, self._target.columns(changes.name))

    @contextmanager
    def _staged(
        self, changes: ChangeTable, stats: ChangeStats, start: int, *, log_only: bool = False
    ) -> Iterator[ChangeBatch]:
        """The batch of the changes, which Spark computes; its files exist until the block ends."""
        relation = stats.relation
        with scratch(self._root) as folder:
            staged = stage(changes, relation, folder, ordered=self._target.capabilities.ordered)
            yield ChangeBatch(
                relation.table,
                relation,
                ChangeRange(None if start < 0 else start, stats.end),
                folder,
                staged=staged,
                counts=staged.counts,
                appends=self._rules.mode == "archive" or not staged.reads_target(relation.key),
                target=self._target.path(relation.table),
                log_only=log_only,
            )

    def _merged(self, batch: ChangeBatch) -> ApplyResult:
        """Merges a batch: first changes that only the key log needs, then those that the target needs."""
        results: list[ApplyResult] = []
        rest = batch
        while not results or (results[-1].suspended is None and not rest.range.is_empty):
            part = rest
            while (done := merge_one(self._target, self._applier.audited(part))) is None:
                part = part.between(part.range.start, middle_of(part.located()))
            results.append(self._applier.finished(part, done))
            if done.end is None:
                break
            rest = replace(batch, range=batch.range.later_than(done.end))
        return summed(results)

    def preview(self, changes: ChangeTable) -> ApplyResult:
        """Returns the result that `apply` would have now; writes nothing."""
        if suspended := self._applier.suspensions.reason(changes.name):
            return ApplyResult(suspended=suspended)
        with explaining(changes.name, f"apply {changes.name}"):
            return self._preview(changes)

    def _preview(self, changes: ChangeTable) -> ApplyResult:
        progress = self._progress(changes.name, changes.columns)
        fresh = newer(changes, progress)
        stats = scan(fresh)
        if stats.end <= progress:
            return ApplyResult()
        stats = replace(stats, relation=self._layout(changes, stats))
        layout = target_mode.relation_of(stats.relation, self._rules)
        upsert.set_layout(self._target, layout, dry_run=True)
        judged = self._applier.judged(fresh, stats.relation)
        with self._staged(judged, stats, progress, log_only=True) as batch:
            target, path = self._previewed(batch.changes, fresh, layout)
            done = merge_one(target, replace(self._applier.audited(batch, logs=False), target=path))
        assert done is not None  # noqa: S101 - a Delta table merges every batch
        result, ends, _ = audits.finished(done, changes.name, self._rules, None)
        would = f"would {ends[2]}: {ends[1]} at change_seq {ends[0]}" if ends else None
        return replace(result, suspended=would)

    def _previewed(self, folder: str, changes: ChangeTable, layout: Relation) -> tuple[Target, str]:
        """Returns the target that a preview merges into, and the path of its rows.

        They are a temporary copy if the target does not exist or is a database.
        """
        name, capabilities = layout.table, self._target.capabilities
        exists = self._target.exists(name)
        if exists and capabilities.versions:
            return self._target, self._target.path(name)
        copy = DeltaTarget(changes.df.sparkSession, folder, app_id="preview")
        schema = schema_of(layout.columns)
        lake.create(path := copy.path(name), schema)
        if exists:
            rows = self._target.rows_with_keys(layout, changes.df.select(*map(col, layout.key)))
            files, _ = write_parts(rows, PartTask(DataFiles(path), schema))
            lake.commit(path, files, progress={})
        return copy, path

    def _progress(self, name: str, columns: Collection[str]) -> int:
        """The last change number of a table's target; -1 if nothing was applied."""
        if not self._target.exists(name):
            return -1
        target_mode.check_mode(self._target, name, columns, self._rules)
        return order_key(self._target.progress(name))


def merge_one(target: Target, batch: ChangeBatch) -> MergeResult | None:
    """Merges one batch. Returns the result, or None if the batch is too large for a database's memory limit.

    Raises:
        TailraceError: the changes were not applied.
    """
    (done,) = target.merge([batch])
    if isinstance(done, TailraceError):
        raise done
    return done
