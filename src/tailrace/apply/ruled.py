"""Applies a change table under rules, and logs what became of every change.

The order is: exceptions, target, key log, each with its progress in its own commit. The key log's parts are
written while the target is; they become visible after it. A crash between the two is made good by the next
call: it looks at the target as it was before the batch (Delta keeps that version) and logs what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from deltalake import DeltaTable

from .. import lake
from ..change import ChangeTable, Relation
from ..errors import ApplyError, TailraceError, UnsupportedError, from_spark
from ..sequence import WIDTH
from . import effects, incoming, one_task
from .exceptions import Exceptions, Suspensions
from .expect import Expected, expect
from .fold import col, refused
from .keylog import SCHEMA, KeyLog, Stretch, kept_aside, rendered
from .outcomes import outcomes
from .plan import TableBatch
from .rules import CONFLICTS, Rules
from .targets import delta_spark
from .targets.base import Outcome
from .targets.delta import DeltaTarget
from .targets.delta_audit import Audited
from .told import Done, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Batch:
    """Changes with numbers above `after`, what they hold, and what they met."""

    changes: ChangeTable
    found: incoming.Incoming
    after: int
    expected: Expected = field(default_factory=Expected)

    @property
    def table(self) -> str:
        return self.found.relation.table

    def stretch(self, rules: Rules) -> Stretch:
        after = self.after if self.after >= 0 else self.found.least - 1
        return Stretch(self.table, after, self.found.upto, self.expected.flagged(rules))


class RuledApply:
    """Applies change tables to a Delta target under rules.

    Args:
        spark: the session.
        target: where to; `root` is its folder, where exceptions and suspensions are kept.
        rules: for all tables.
        task: `TASK_NAME` in exceptions and suspensions.
        keylog: None: no key log.
    """

    def __init__(
        self,
        spark: SparkSession,
        target: DeltaTarget,
        rules: Rules,
        *,
        root: str,
        task: str,
        app_id: str,
        keylog: KeyLog | None = None,
    ) -> None:
        self._spark, self._target, self._rules, self._app = spark, target, rules, app_id
        self._log = keylog if keylog is None or keylog.mode != "off" else None
        self._exceptions, self.suspensions = Exceptions(root, task), Suspensions(root, task)
        self._beside = KeyLog(root, app_id=task, run_id="")  # renders exceptions; nothing is written to it

    def apply(self, changes: ChangeTable) -> Done:
        """Applies what the target has not yet.

        Raises:
            ApplyError: a change that the rules stop at (those before it are applied), a NULL in a key.
            ConfigError: the target was made in another mode.
            UnsupportedError: a table without key, but for archives; under soft delete a key change whose
                image lacks columns.
        """
        return self._guarded(changes, lambda: self._apply(changes))

    def preview(self, changes: ChangeTable) -> Done:
        """What `apply` would do now; nothing is written."""
        return self._guarded(changes, lambda: self._preview(changes))

    def _apply(self, changes: ChangeTable) -> Done:
        name, rules = changes.name, self._rules
        if held := self.suspensions.reason(name):
            return Done(suspended=held)
        reached = self._reached(name)
        if self._log is not None:
            self._catch_up(changes, reached)
        batch = self._batch(changes, reached)
        if batch.found.upto < 0:
            return Done()
        layout = effects.relation_of(batch.found.relation, rules)
        self._target.alter(name, incoming.present(self._target, layout), layout)
        if (audited := self._in_one_task(batch, layout)) is not None:
            if isinstance(audited, str):  # LOST: what an attempt found is to be found anew
                return self._apply(changes)
            return self._ended(name, *self._logged(batch, audited))
        there = self._there(batch.found.relation)
        if rules.tolerant:
            # What is written hangs on nothing that is looked at: both at once.
            return self._both(batch, layout, there)
        batch, ends = self._until(batch, self._met(batch, there))
        done = self._both(batch, layout, there) if batch.found.upto >= 0 else Done()
        return self._ended(name, done, ends)

    def _ended(self, name: str, done: Done, ends: tuple[str, str, str] | None) -> Done:
        """What was done, when the rules say nothing else of the change before which the batch ended."""
        if ends is None:
            return done
        seq, kind, policy = ends
        said = f"{kind} at change_seq {seq}"
        if policy == "suspend":
            self.suspensions.suspend(name, said)
            return replace(done, suspended=said)
        raise ApplyError(
            f"{kind}: {CONFLICTS[kind]}",
            where=f"{name}, change_seq {seq}",
            hint="the changes before it are applied; correct the target, or give another policy "
            f"(`--on {kind}=log`)",
        )

    def _in_one_task(self, batch: _Batch, layout: Relation) -> Audited | str | None:
        """Target, exceptions and the key log's rows by one task; None when that is not possible."""
        found, rules = batch.found, self._rules
        if not one_task.fits(batch.changes, found.relation, rules, found.counts):
            return None
        stretch = replace(batch, expected=Expected()).stretch(rules)
        if self._log is not None:
            lake.create(self._log.path, SCHEMA)
        audit = one_task.audit(batch.changes, found.relation, rules, self._exceptions, self._log, stretch)
        beside = one_task.beside(batch.changes, found.relation)
        whole = TableBatch(batch.table, layout, batch.changes, found.upto, found.counts)
        return self._target.audited(whole, audit, beside)

    def _logged(self, batch: _Batch, audited: Audited) -> tuple[Done, tuple[str, str, str] | None]:
        """Commits the key log's rows of what one task did, and tells it."""
        expected, counts = Expected(tally=audited.tally), {**batch.found.counts, **audited.counts}
        if audited.upto >= 0 and self._log is not None:
            one = replace(batch, expected=expected).stretch(self._rules)
            self._log.commit([audited.part] if audited.part else [], replace(one, upto=audited.upto))
        done = told(audited.upto, counts, expected, self._rules, audited.outcome)
        return done, audited.ends

    def _preview(self, changes: ChangeTable) -> Done:
        reached = self._reached(changes.name)
        batch = self._batch(changes, reached)
        held = self.suspensions.reason(changes.name)
        if batch.found.upto < 0 or held:
            return Done(suspended=held)
        there = self._there(batch.found.relation) if self._target.exists(changes.name) else None
        batch, ends = self._until(batch, self._met(batch, there))
        said = f"would {ends[2]}: {ends[1]} at change_seq {ends[0]}" if ends else None
        return replace(self._told(batch, Outcome()), suspended=said)

    def _both(self, batch: _Batch, layout: Relation, there: DataFrame | None) -> Done:
        """The batch to the target and, beside it, its rows of the key log; visible in that order."""
        rules = self._rules
        if not rules.tolerant:
            self._keep(batch)
        with ThreadPoolExecutor(1, thread_name_prefix="target") as pool:
            writing = pool.submit(self._write, batch, layout)
            if rules.tolerant:
                batch = replace(batch, expected=self._met(batch, there))
            one, files = batch.stretch(rules), []
            if self._log is not None:
                files = self._log.write(batch.changes, batch.expected, rules, one)
            outcome = writing.result()
        if self._log is not None:
            self._log.commit(files, one)
        return self._told(batch, outcome)

    def _write(self, batch: _Batch, layout: Relation) -> Outcome:
        rules, found = self._rules, batch.found
        if rules.mode == "archive":
            order = list(self._target.columns(batch.table))
            changes, counts = effects.archived(batch.changes, found.counts, order)
        elif rules.tolerant:
            changes, counts = batch.changes, found.counts
        else:
            changes, counts = effects.effective(batch.changes, batch.expected, rules, found.counts)
        return self._target.apply(TableBatch(batch.table, layout, changes, found.upto, counts))

    def _keep(self, batch: _Batch) -> None:
        rules, expected = self._rules, batch.expected
        if not any((o := rules.outcome(s)).flagged and not o.effective for s in expected.tally):
            return
        reached = self._exceptions.reached(batch.table)
        changes = incoming.newer(batch.changes, reached)
        known = kept_aside(outcomes(changes, expected, rules))
        one, at = replace(batch.stretch(rules), flagged=0), self._beside.standing("")
        rows = rendered(changes, known, self._beside, one, at)
        self._exceptions.keep(rows, batch.table, batch.found.upto)

    def _catch_up(self, changes: ChangeTable, reached: int) -> None:
        """Logs what a crash kept from the key log after the target had it."""
        assert self._log is not None  # noqa: S101 - the caller looked
        name = changes.name
        standing = self._log.standing(name)
        if standing.reached is None:
            self._log.begin(name, reached)
            return
        if standing.reached >= reached:
            return
        batch = self._batch(changes, standing.reached, upto=reached)
        if batch.found.upto != reached:
            raise ApplyError(
                f"the key log ends at change {standing.reached}, the target at {reached}",
                where=f"{name}, {self._log.path}",
                hint="give the change tables of the last call again: the key log lacks their changes",
            )
        there = self._there(batch.found.relation, self._version(name, standing.reached))
        batch = replace(batch, expected=self._met(batch, there))
        one = batch.stretch(self._rules)
        self._log.commit(self._log.write(batch.changes, batch.expected, self._rules, one), one)

    def _version(self, name: str, reached: int) -> int:
        """The target's newest version that was no further than a change number."""
        path = self._target.path(name)
        for version in range(DeltaTable(path).version(), -1, -1):
            at = DeltaTable(path, version=version).transaction_version(self._app)
            if at is None or at <= reached:
                return version
        raise ApplyError(f"no version of the target before change {reached + 1} is left", where=path)

    def _batch(self, changes: ChangeTable, after: int, upto: int | None = None) -> _Batch:
        fresh = incoming.newer(changes, after, upto)
        found = incoming.look(fresh)
        if found.upto >= 0 and not found.relation.key and self._rules.mode != "archive":
            raise UnsupportedError(
                "rules and key logs need to know rows by a key, and the table has none",
                where=changes.name,
                hint="name its key (`-o key=...`), use `--mode archive`, or apply it without rules",
            )
        return _Batch(fresh, found, after)

    def _met(self, batch: _Batch, there: DataFrame | None) -> Expected:
        if self._rules.mode == "archive":
            return Expected()
        return expect(batch.changes, batch.found.relation, self._rules, batch.found.counts, there)

    def _until(self, batch: _Batch, expected: Expected) -> tuple[_Batch, tuple[str, str, str] | None]:
        """The batch up to the change before which it ends, if there is one."""
        ends = expected.ends(self._rules)
        if ends is None:
            return replace(batch, expected=expected), None
        seq = col(batch.changes.header("change_seq"))
        rest = batch.changes.with_df(batch.changes.df.where(seq < ends[0]))
        made = replace(batch, changes=rest, found=incoming.look(rest))
        return replace(made, expected=expected.before(ends[0], self._rules)), ends

    def _there(self, relation: Relation, version: int | None = None) -> DataFrame | None:
        """The keys that have a (living) row in the target."""
        if self._rules.mode == "archive":
            return None
        path = self._target.path(relation.table)
        rows = delta_spark.rows_of(self._spark, path, DeltaTable(path, version=version))
        if self._rules.mode == "soft_delete" and self._rules.soft_column in rows.columns:
            rows = rows.where(col(self._rules.soft_column).isNull())
        return rows.select(*[col(k).cast(relation.column(k).type).alias(k) for k in relation.key])

    def _reached(self, name: str) -> int:
        if not self._target.exists(name):
            return -1
        effects.check_mode(self._target, name, self._rules)
        return self._target.progress(name)

    def _told(self, batch: _Batch, outcome: Outcome) -> Done:
        return told(batch.found.upto, batch.found.counts, batch.expected, self._rules, outcome)

    def _guarded(self, changes: ChangeTable, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except Exception as error:
            text = str(error)
            if effects.PARTIAL_MOVE in text:
                raise UnsupportedError(
                    "a change of key that leaves columns out cannot be applied under soft delete",
                    where=f"{changes.name}, change_seq {text.partition(effects.PARTIAL_MOVE)[2][:WIDTH]}",
                    hint="capture full images, or use the mode `upsert`",
                ) from error
            if isinstance(error, TailraceError):
                raise
            null_key = refused(error, changes.name, changes.key)
            raise null_key or from_spark(error, where=f"apply {changes.name}") from error
