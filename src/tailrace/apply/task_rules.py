"""The rules of a task's tables, and the one key log of all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engine.rules import Rules
from ..keylog.control_tables import ApplyExceptions, SuspensionStore
from ..keylog.key_log import KeyLog
from ..keylog.notes import recover
from ..keylog.tokens import Token, log_tokens
from ..model.change import Relation
from ..model.positions import ChangeNumber, order_key
from ..state.open_warnings import log_only
from ..targets.keyless import refuse_soft_delete
from .rules import RulesApplier
from .target_mode import refuse_other_mode

if TYPE_CHECKING:
    from ..targets.base import Target


@dataclass(frozen=True)
class TableRules:
    """How one table of a task is applied; `transactional`: a commit of the target for each transaction."""

    rules: Rules = field(default_factory=Rules)
    transactional: bool = False


class TaskRules:
    """The rules of a task's tables; any thread may call it.

    Args:
        target: the task's target.
        of_table: the rules of `schema.table`.
        root: folder of the exceptions.
        task: the task's name: `TASK_NAME` in exceptions, `group_id` in the key log.
        keylog: the key log, made with `at_once=False`.
        suspensions: where tables are suspended.
        runs: returns the runs of tables (subscription -> `run_id`), and begins missing ones.
        tokens: returns the tokens of baseline windows that were read from the log.
    """

    def __init__(
        self,
        target: Target,
        of_table: Callable[[str], TableRules],
        *,
        root: str,
        task: str,
        keylog: KeyLog,
        suspensions: SuspensionStore,
        runs: Callable[[Collection[str]], Mapping[str, str]] | None = None,
        tokens: Callable[[], Sequence[Token]] | None = None,
        warned: Callable[[str, str, str], None] = log_only,
    ) -> None:
        self._warned = warned
        self._runs, self._tokens = runs, tokens
        self._target, self._of_table, self._root, self._task = target, of_table, root, task
        self._log, self._suspensions = keylog, suspensions
        self._lock = threading.Lock()
        self._checked: set[str] = set()
        self._recovered = False
        self._suspends: list[Callable[[], None]] = []

    def of(
        self, table: str, relation: Relation, *, window: bool = False, logged: bool = False
    ) -> RulesApplier | None:
        """Returns what applies changes of a table; None: the target alone, without rules and key log.

        `window`: rows of a baseline may have the changes already, so they are upserted without conflicts.
        `logged`: the key log has the changes, and they are not logged again.

        Raises:
            ConfigError: the table has no key, and deleted rows are to be marked.
        """
        rules = self._of_table(table).rules
        if not relation.key:
            refuse_soft_delete(table, rules)
        self._refuse_other_mode(table, relation, rules)
        rules = rules.lenient if window else rules
        keylog = None if logged or self._log.mode == "off" else self._log
        if rules.plain and keylog is None:
            return None
        return RulesApplier(
            self._target,
            rules,
            root=self._root,
            task=self._task,
            keylog=keylog,
            suspensions=self._suspensions,
            later=self._suspends.append,
            window=window,
        )

    def transactional(self, table: str) -> bool:
        """Whether each transaction of the source is a commit of the table's target."""
        return self._of_table(table).transactional

    def archives(self, table: str) -> bool:
        """Whether a table's changes become rows themselves."""
        return self._of_table(table).rules.mode == "archive"

    def logged(self, table: str) -> ChangeNumber | None:
        """The last change number in a table's key log; None: the table has no key log."""
        if self._log.mode == "off":
            return None
        self._recover()
        return self._log.state(table).progress

    def _recover(self) -> None:
        with self._lock:
            if not self._recovered:
                recover(self._target.capabilities.key_log_notes(), self._log)
                self._recovered = True

    def begin(self, progress: Mapping[str, ChangeNumber | None]) -> None:
        """Starts to log tables after their progress, before any change of them is applied, so that a crash
        finds what is to be logged. Gives them their runs, and logs the tokens of baseline windows."""
        if self._log.mode == "off":
            return
        tokens = self._tokens() if self._tokens else []
        if self._runs:
            self._log.runs |= self._runs({*progress, *(t.table for t in tokens)})
        for table, number in progress.items():
            self._log.begin(table, order_key(number))
        log_tokens(self._log, tokens)
        self._log.flush()

    def passed(self, table: str, number: ChangeNumber) -> None:
        """Notes that a table's changes up to a number are not to be logged: a baseline has them, or they were
        applied without the key log."""
        if self._log.state(table).progress is not None:
            self._log.commit(table, number)

    def applied(self, table: str, number: ChangeNumber) -> None:
        """Notes the changes that a target got while the key log is off. If it is set again, it starts after
        them."""
        if self._log.mode == "off":
            self.passed(table, number)

    def found(self, table: str, progress: ChangeNumber | None, baseline: ChangeNumber | None) -> None:
        """Notes the changes that a target has already, if the key log is off: a crash has kept them from the
        key log, and it was set to off afterwards. `baseline`: the last change number of the table's baseline,
        whose changes are never logged."""
        if self._log.mode != "off" or self._log.state(table).progress is None:
            return
        self._recover()
        logged = self._log.state(table).progress
        if logged is None or progress is None or logged >= progress:
            return
        if (known := max(logged, order_key(baseline))) < progress:
            what = (
                f"its target has the changes {known + 1} to {progress}, which the key log has not; it is "
                "off, so they are never logged"
            )
            self._warned("key log", table, what)
        self.passed(table, progress)

    def count_again(self, table: str) -> None:
        """Counts the conflicts of a table from zero again, after a limit was reached and reported."""
        ApplyExceptions(self._root, self._task).reset_counts(table, self._of_table(table).rules.limits)

    def forget(self, *, key_log: bool = False) -> None:
        """Reads the notes of targets again before the next batch, and tries again the change for which a
        table was to be suspended. `key_log`: another process may have written to the key log; it is read
        again, too."""
        if key_log:
            self._log.forget()
        self._recovered = False
        self._suspends.clear()

    def flush(self) -> None:
        """Makes logged rows visible, then suspends the tables whose batches ended at a change. The key log of
        a suspended table is complete."""
        self._log.flush()
        while self._suspends:
            self._suspends.pop(0)()

    def _refuse_other_mode(self, table: str, relation: Relation, rules: Rules) -> None:
        """Refuses a target that another mode has filled; checks a table once."""
        with self._lock:
            if table in self._checked:
                return
        if self._target.exists(table):
            refuse_other_mode(self._target, table, [c.name for c in relation.columns], rules)
        with self._lock:
            self._checked.add(table)
