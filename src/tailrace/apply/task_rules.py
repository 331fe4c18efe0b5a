"""A task's tables under rules: which they are, what applies each, and the one key log of all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engine.rules import Rules
from ..keylog.change_range import ChangeRange
from ..keylog.exceptions import Exceptions, Holds
from ..keylog.key_log import KeyLog
from ..keylog.outbox import recover
from ..keylog.tokens import Token, log_tokens
from ..model.change import Relation
from ..state.open_warnings import log_only
from ..targets.keyless import refuse_marks
from .rules_apply import RulesApply
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
        runs: gives the runs of tables (subscription -> `run_id`), begun when they have none.
        tokens: gives the tokens of baseline windows that came through the log.
    """

    def __init__(
        self,
        target: Target,
        of_table: Callable[[str], TableRules],
        *,
        root: str,
        task: str,
        keylog: KeyLog,
        suspensions: Holds,
        runs: Callable[[Collection[str]], Mapping[str, str]] | None = None,
        tokens: Callable[[], Sequence[Token]] | None = None,
        warned: Callable[[str, str, str], None] = log_only,
    ) -> None:
        self._warned = warned
        self._runs, self._tokens = runs, tokens
        self._target, self._of_table, self._root, self._task = target, of_table, root, task
        self._log, self._suspensions = keylog, suspensions
        self._lock = threading.Lock()
        self._looked: set[str] = set()
        self._recovered = False
        self._suspends: list[Callable[[], None]] = []

    def of(
        self, table: str, relation: Relation, *, window: bool = False, logged: bool = False
    ) -> RulesApply | None:
        """What applies some changes of a table; None: the target alone, as it does without rules.

        `window`: rows of a baseline may have the changes already: they are made to fit, whatever they meet.
        `logged`: the key log is past them, and they are not logged again.

        Raises:
            ConfigError: it has no key, and is to mark deleted rows.
        """
        rules = self._of_table(table).rules
        if not relation.key:
            refuse_marks(table, rules)
        self._refuse_other_mode(table, relation, rules)
        rules = rules.lenient if window else rules
        keylog = None if logged or self._log.mode == "off" else self._log
        if rules.plain and keylog is None:
            return None
        return RulesApply(
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

    def logged(self, table: str) -> int | None:
        """The change number that a table's key log has reached; None: it has none."""
        if self._log.mode == "off":
            return None
        self._recover()
        return self._log.standing(table).reached

    def _recover(self) -> None:
        with self._lock:
            if not self._recovered:
                recover(self._target, self._log)
                self._recovered = True

    def begin(self, reached: Mapping[str, int]) -> None:
        """Notes where tables stand that are logged from now on; before any change of them is applied, so
        that a crash finds what is to be logged. Gives them their runs, and logs tokens that have come."""
        if self._log.mode == "off":
            return
        tokens = self._tokens() if self._tokens else []
        if self._runs:
            self._log.runs |= self._runs({*reached, *(t.table for t in tokens)})
        for table, number in reached.items():
            self._log.begin(table, number)
        log_tokens(self._log, tokens)
        self._log.flush()

    def passed(self, table: str, upto: int) -> None:
        """Notes changes that are not to be logged, so that nobody waits for them: a baseline has them, or
        they were applied without the key log."""
        if self._log.standing(table).reached is not None:
            self._log.commit([], ChangeRange(table, upto, upto, 0))

    def applied(self, table: str, upto: int) -> None:
        """Notes what a target has got while the key log is off: set again, it goes on behind that."""
        if self._log.mode == "off":
            self.passed(table, upto)

    def found(self, table: str, reached: int, brought: int) -> None:
        """The same for what a target has when it is looked up: a crash kept it from the key log, which has
        been set off since. `brought`: what its baseline has; that is never logged."""
        if self._log.mode != "off" or self._log.standing(table).reached is None:
            return
        self._recover()
        logged = self._log.standing(table).reached
        if logged is not None and max(logged, brought) < reached:
            span = f"{max(logged, brought) + 1} to {reached}"
            what = f"its target has changes {span}, the key log has not, and is off: they are never logged"
            self._warned("key log", table, what)
        if logged is not None and logged < reached:
            self.passed(table, reached)

    def count_anew(self, table: str) -> None:
        """Has a table that reached a limit, and of which somebody is told, meet as many conflicts again."""
        Exceptions(self._root, self._task).begin(table, self._of_table(table).rules.limits)

    def again(self) -> None:
        """Looks at targets anew for what the key log lacks; a table that was to be suspended meets its change
        once more."""
        self._recovered = False
        self._suspends.clear()

    def after_others(self) -> None:
        """Goes on after another writer of targets and key log, who was let in between two slices."""
        self._log.look_again()
        self.again()

    def flush(self) -> None:
        """Makes visible what was logged, then suspends the tables that ended before a change: nothing catches
        up with the key log of a table that is suspended."""
        self._log.flush()
        while self._suspends:
            self._suspends.pop(0)()

    def _refuse_other_mode(self, table: str, relation: Relation, rules: Rules) -> None:
        """Refuses a target that another mode made; looks once a process."""
        with self._lock:
            if table in self._looked:
                return
        if self._target.exists(table):
            refuse_other_mode(self._target, table, [c.name for c in relation.columns], rules)
        with self._lock:
            self._looked.add(table)
