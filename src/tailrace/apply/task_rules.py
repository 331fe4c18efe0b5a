"""The rules of the tables of a task, and their common key log."""

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
    """The rules of one table of a task.

    Attributes:
        rules: the rules.
        transactional: whether each transaction of the source is a commit of the target.
    """

    rules: Rules = field(default_factory=Rules)
    transactional: bool = False


class TaskRules:
    """The rules of a task's tables; any thread may call it.

    Args:
        target: the task's target.
        of_table: returns the rules of a table.
        root: folder of the exceptions.
        task: the task's name: `TASK_NAME` in exceptions, `group_id` in the key log.
        keylog: the key log, created with `at_once=False`.
        suspensions: where tables are suspended.
        runs: returns the runs of tables (subscription -> `run_id`), and starts missing ones.
        tokens: returns the tokens of baseline windows that were read from the log.
        warned: writes warnings.
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
        """Returns the applier of a table; None if it has neither rules nor a key log.

        Args:
            table: the table.
            relation: the layout of its changes.
            window: whether the changes are in the open window of a baseline, which may have them already:
                they are upserted without conflicts.
            logged: whether the key log has the changes already: they are not logged again.

        Raises:
            ConfigError: deleted rows are to be marked, and the table has no key.
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
        """Whether a table's target is an archive of its changes."""
        return self._of_table(table).rules.mode == "archive"

    def logged(self, table: str) -> ChangeNumber | None:
        """The last change number in a table's key log; None if the table has no key log."""
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
        """Starts to log tables after their progress. Assigns their runs, and logs the tokens of baseline
        windows.

        It is called before any change is applied, so after a crash it is known which changes are to be
        logged.
        """
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
        """Notes that the changes of a table up to a number are not logged: a baseline has them, or they were
        applied without a key log."""
        if self._log.state(table).progress is not None:
            self._log.commit(table, number)

    def applied(self, table: str, number: ChangeNumber) -> None:
        """Notes the changes that a target got while the key log is off: they are never logged."""
        if self._log.mode == "off":
            self.passed(table, number)

    def found(self, table: str, progress: ChangeNumber | None, baseline: ChangeNumber | None) -> None:
        """If the key log is off, notes the changes that a target has and the key log does not. This happens
        if the key log was switched off after a crash.

        `baseline`: the last change number of the table's baseline, whose changes are never logged.
        """
        if self._log.mode != "off" or self._log.state(table).progress is None:
            return
        self._recover()
        logged = self._log.state(table).progress
        if logged is None or progress is None or logged >= progress:
            return
        if (known := max(logged, order_key(baseline))) < progress:
            what = (
                f"its target has changes {known + 1} to {progress}, but the key log does not have them and "
                "is off: they are never logged"
            )
            self._warned("key log", table, what)
        self.passed(table, progress)

    def count_again(self, table: str) -> None:
        """Counts the conflicts of a table from zero again, after a limit was reached and reported."""
        ApplyExceptions(self._root, self._task).reset_counts(table, self._of_table(table).rules.limits)

    def forget(self, *, key_log: bool = False) -> None:
        """Discards what was read from targets, and suspensions that were not carried out: their changes are
        applied again.

        `key_log`: the key log is read again too, as another process may have written to it.
        """
        if key_log:
            self._log.forget()
        self._recovered = False
        self._suspends.clear()

    def flush(self) -> None:
        """Makes the logged rows visible, then suspends the tables whose batches ended at a change. So the key
        log of a suspended table is complete."""
        self._log.flush()
        while self._suspends:
            self._suspends.pop(0)()

    def _refuse_other_mode(self, table: str, relation: Relation, rules: Rules) -> None:
        """Refuses a target that was filled in another mode. Checks each table once."""
        with self._lock:
            if table in self._checked:
                return
        if self._target.exists(table):
            refuse_other_mode(self._target, table, [c.name for c in relation.columns], rules)
        with self._lock:
            self._checked.add(table)
