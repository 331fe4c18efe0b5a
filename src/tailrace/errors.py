"""The error tree. Every error says what happened, where, and what to do about it.

TailraceError
├── ConfigError        a task file, option or environment that cannot work
├── SourceError        the source database refused, or is not set up for capture
│   ├── PositionError  a position that is gone, ahead of the log, or of another server
│   │   └── GapError   a range of changes of which some were never captured
│   ├── ConnectionLostError  the source went away; trying again is safe
│   │   └── UnreachableError  nobody answers at its address
│   └── TableMovedError  a table was truncated, rewritten or loaded again since the snapshot it is read in
├── FormatError        bytes or rows that are not what their format promises
│   └── ValueRangeError  a value that its column's lake type cannot hold
├── ApplyError         changes that could not be applied to a target
│   ├── BaselineNeededError  they never can: the table needs a new baseline
│   ├── ConstraintError  a constraint of the target refuses a row
│   ├── StopPolicyError  a policy says that the task stops here
│   ├── TargetLostError  the target's server went away; trying again is safe
│   └── ConcurrentCommitError  somebody else committed to the target first; doing it again is safe
├── LeaseLostError     another process has taken over what this one did
├── SparkLostError     the JVM of the Spark session is gone
├── StorageFullError   there is no room where something was to be written
├── OvertakenError     another process committed first what was to be committed
├── CancelledError     the user has ended it
└── UnsupportedError   a declared gap: the feature exists elsewhere, not here
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

AGAIN = "nothing was written; the batch starts over"


class TailraceError(Exception):
    """Root of all errors that tailrace raises on purpose.

    Args:
        what: one sentence, what went wrong.
        where: source, table, position: whatever narrows it down.
        hint: what the reader should do now (a command, an SQL statement, a setting).

    Attributes:
        of_task: it has no cause in a table, whatever table it was raised for.

    >>> print(TailraceError("slot 'shop' is missing", where="postgresql://db", hint="take a new baseline"))
    slot 'shop' is missing
      where: postgresql://db
      hint: take a new baseline
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, where, hint)
        self.what, self.where, self.hint = what, where, hint
        self.of_task = False

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (baseline workers, Spark tasks): keyword arguments must survive
        # pickling.
        return _rebuild, (type(self), self.what, self.where, self.hint)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def _rebuild(kind: type[TailraceError], what: str, where: str | None, hint: str | None) -> TailraceError:
    return kind(what, where=where, hint=hint)


class ConfigError(TailraceError):
    """A task file, option or environment that cannot work."""


class SourceError(TailraceError):
    """The source database refused, or is not set up for capture."""


class PositionError(SourceError):
    """A position that is gone, ahead of the log, or belongs to another server."""


class GapError(PositionError):
    """A range of changes of which some were never captured: no change table has them."""


class ConnectionLostError(SourceError):
    """The source went away. Retrying is safe: nothing was acknowledged that is not in LOG."""


class UnreachableError(ConnectionLostError):
    """Nothing answers at the source's address: it is down for a while, or the address is wrong."""


class TableMovedError(SourceError):
    """A table was truncated, rewritten or loaded again since the snapshot it is read in; a new snapshot is
    needed. Or it is gone, or has another name."""


class FormatError(TailraceError):
    """Bytes or rows that are not what their format promises."""


class ValueRangeError(FormatError):
    """A value that its column's lake type cannot hold (NaN in a decimal, a year before 1)."""


class ApplyError(TailraceError):
    """Changes that could not be applied to a target."""


class BaselineNeededError(ApplyError):
    """Changes that the target's rows cannot follow (a column's type changed): only a new baseline brings the
    target up to date."""


class LimitReachedError(ApplyError):
    """A table has had as many conflicts as its rules allow (`log then stop after 100`). Trying it again would
    count them anew, so somebody has to decide."""


class ConstraintError(ApplyError):
    """A constraint of the target (unique, CHECK, NOT NULL, foreign key) refuses a row; nothing was
    written."""


class TargetLostError(ApplyError):
    """The target's server went away, or nobody answers at its address. Retrying is safe: its own tables say
    how far it is."""


class ConcurrentCommitError(ApplyError):
    """Another writer committed to a table after it was read and before the result was written: nothing was
    written. Repeating the work on the current table is safe."""

    @classmethod
    def at(cls, where: str, read: int, now: int | None = None) -> ConcurrentCommitError:
        """The error for a table that was read in one version and now has another (None: unknown)."""
        came = "another version" if now is None else f"version {now}"
        said = (
            f"version {came} was committed after version {read}, which was read: another writer "
            "committed to the table"
        )
        return cls(said, where=where, hint=AGAIN)

    @classmethod
    def moved(cls, where: str, app: str, read: int, now: int | None) -> ConcurrentCommitError:
        """The error for a table whose progress has moved since it was read."""
        at, before = max(now or 0, 0), max(read, 0)
        said = f"another writer applied to the table: {app} is at {at}, no longer at {before}"
        return cls(said, where=where, hint=AGAIN)


class NameTakenError(ApplyError):
    """The name that a target should get is already in use."""


class StopPolicyError(ApplyError):
    """A DDL statement at the source, or a conflict, whose policy is `stop`: the task ends before it, and at
    each start."""


class LeaseLostError(TailraceError):
    """Another process runs this half of the task now, or may: this one was not heard from for too long, and
    stops."""


class SparkLostError(TailraceError):
    """The JVM of the Spark session is gone: killed, or out of memory. Nothing is lost; start again."""


class StorageFullError(TailraceError):
    """No space left where something was to be written, or a file became larger than it may. Nothing
    half-written is visible; the work is repeated once there is space."""


class OvertakenError(TailraceError):
    """Another process committed first, and this commit was based on the earlier state: nothing of it is
    visible. Read again and repeat."""


class CancelledError(TailraceError):
    """The user has ended what was being done; nothing was changed by it."""


class UnsupportedError(TailraceError):
    """A declared gap: a feature that this component does not support."""


_VALUE = re.compile(
    r"\[(?:CAST|NUMERIC)[A-Z_.]*\] ([^\n]*?)(?:\. (?:Correct|Use|If) .*?| )\s*SQLSTATE: 22\w{3}", re.DOTALL
)
"""Spark's words about a value (class 22 of SQLSTATE), without its advice."""
_WORKER = re.compile(
    r"Python worker.*?\nTraceback [^\n]*\n(?:[ \t][^\n]*\n)*(\S.*?)(?:\n\s*\n|\n\s*at |\n*JVM stacktrace|\Z)",
    re.DOTALL,
)
"""The last words of an exception in a task of Python's, without the way to it."""

_PYTHONS = {
    re.compile(
        r"PYTHON_VERSION_MISMATCH\] Python in worker has different version: ([\d.]+) than that in driver: "
        r"([\d.]+)"
    ): "an executor has Python {}, the driver has {}",
    re.compile(r"ModuleNotFoundError: No module named '([^']+)'"): "an executor's Python lacks the module {}",
    re.compile(r'Cannot run program "([^"]*)"'): "an executor's host has no Python at {}",
}
"""What Spark says of an executor's Python that does not fit, and what we say."""
PYTHON_CURE = (
    "install tailrace and its packages for the Python of all executors, and name that Python with "
    "`spark.pyspark.python` in the task file's section `spark` (or PYSPARK_PYTHON in the driver's "
    "environment); or ship an environment with `--archives` (docs/spark.md)"
)
"""What to do about an executor's Python that does not fit."""


def from_spark(error: BaseException, *, where: str) -> TailraceError:
    """The cause of a failed Spark job or query. A tailrace error raised by a task is reconstructed from
    Spark's text.

    >>> text = "... tailrace.errors.FormatError: odd\\n  where: LOG\\n  hint: look\\n\\n at org.x"
    >>> print(from_spark(RuntimeError(text), where="store"))
    odd
      where: LOG
      hint: look
    """
    if isinstance(error, TailraceError):
        return error
    if (lost := spark_lost(error, where=where)) is not None:
        return lost
    text = str(error)
    for name, kind in _kinds(TailraceError).items():
        if found := re.search(rf"tailrace\.errors\.{name}: (.*?)(?:\n\s*\n|\n\s*at |\Z)", text, re.DOTALL):
            parts = re.split(r"\n\s*(where|hint): ", found[1])
            named = dict(zip(parts[1::2], parts[2::2], strict=False))
            return kind(parts[0].strip(), where=named.get("where", where), hint=named.get("hint"))
    if (no_room := full(error, where=where)) is not None:
        return no_room
    made = _of_a_job(text, where)
    made.of_task = made.of_task or getattr(error, "of_task", False)
    return made


def raised_in_task(error: BaseException, where: str) -> TailraceError:
    """The error of a task, as the driver raises it; it can be pickled."""
    if isinstance(error, TailraceError):
        return error
    kind = type(error)
    return from_spark(RuntimeError(f"{kind.__module__}.{kind.__name__}: {error}"), where=where)


def _of_a_job(text: str, where: str) -> TailraceError:
    """What Spark says of a job that failed, without stack traces."""
    for pattern, what in _PYTHONS.items():
        if found := pattern.search(text):
            misfit = ConfigError(what.format(*found.groups()), where=where, hint=PYTHON_CURE)
            misfit.of_task = True
            return misfit
    if value := _VALUE.search(text):
        hint = "with `on: {data_error: log}` such a change is set aside with its reason (docs/apply.md)"
        return ApplyError(f"a value does not fit its column: {value[1]}", where=where, hint=hint)
    if worker := _WORKER.search(text):
        return ApplyError(f"a task failed: {worker[1].strip()[:2000]}", where=where, hint="-v shows where")
    # Java's stack traces begin with `at`, or say so.
    said = re.split(r"\n\s*\n|\n\s*at |\n*JVM stacktrace", text.strip())[0]
    return ApplyError(re.sub(r"^An error occurred while calling \S+\n: ", "", said)[:2000], where=where)


def spark_lost(error: BaseException, *, where: str) -> SparkLostError | None:
    """The tailrace error for one that says that nothing is at the other end of py4j; None for other errors.

    >>> print(spark_lost(ConnectionRefusedError(111, "Connection refused"), where="shop"))
    Spark's JVM is gone
      where: shop
      hint: was it killed for lack of memory (see `spark.driver.memory`)? start again: nothing is lost
    """
    # By name: processes without Spark have no py4j.
    if type(error).__module__.partition(".")[0] != "py4j":
        gone = isinstance(error, ConnectionError)
    else:
        said = str(error)
        unanswered = re.fullmatch(r"An error occurred while calling \S+", said.strip()) is not None
        network = type(error).__name__ == "Py4JNetworkError"
        gone = network or unanswered or "does not exist in the JVM" in said
    hint = "was it killed for lack of memory (see `spark.driver.memory`)? start again: nothing is lost"
    return SparkLostError("Spark's JVM is gone", where=where, hint=hint) if gone else None


_FULL = re.compile(r"No space left on device|Disk quota exceeded")


def full(error: BaseException, *, where: str) -> StorageFullError | None:
    """The tailrace error for one that says that there is no space; None for other errors.

    >>> print(full(OSError(28, "No space left on device"), where="/lake/orders"))
    no space left on the device
      where: /lake/orders
      hint: free some space (`df -h`, quotas) and start again: nothing is half-written or lost
    """
    if isinstance(error, StorageFullError):
        return error
    number, said = getattr(error, "errno", None), str(error)
    if number in (errno.ENOSPC, errno.EDQUOT) or _FULL.search(said):
        what, do = "no space left on the device", "free some space (`df -h`, quotas)"
    elif number == errno.EFBIG or "File too large" in said:
        what = "a file would be larger than this process may write"
        do = "raise the limit (`ulimit -f`, `LimitFSIZE` of a service, that of the file system)"
    else:
        return None
    return StorageFullError(what, where=where, hint=f"{do} and start again: nothing is half-written or lost")


@contextmanager
def room(where: str) -> Iterator[None]:
    """Turns errors about missing space into StorageFullError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if (no_room := full(error, where=where)) is not None:
            raise no_room from error
        raise


def is_of_table(error: TailraceError) -> bool:
    """Whether an error that was raised for one table concerns that table alone; otherwise the task, as what
    no other table can do without, or what passes by itself, does.

    >>> is_of_table(ApplyError("a view needs it")), is_of_table(TargetLostError("nobody answers"))
    (True, False)
    """
    return isinstance(error, _OF_TABLES) and not (error.of_task or isinstance(error, _OF_TASKS))


@contextmanager
def not_of_a_table() -> Iterator[None]:
    """Marks errors raised in the block as those of a task, whatever they become (`from_spark`)."""
    try:
        yield
    except Exception as error:
        error.of_task = True  # type: ignore[attr-defined]
        raise


_OF_TABLES = (ApplyError, ConfigError, FormatError, SourceError, UnsupportedError)
_OF_TASKS = (
    ConcurrentCommitError,
    ConnectionLostError,
    LimitReachedError,
    PositionError,
    StopPolicyError,
    TableMovedError,
    TargetLostError,
)


def in_one_line(error: TailraceError, *, where: bool = False) -> str:
    """An error in one line, with its `where` if that is asked for.

    >>> in_one_line(ConfigError("s.t is not in the target", where="db", hint="take a new baseline"))
    's.t is not in the target (take a new baseline)'
    """
    said = " ".join(error.what.split())
    said = f"{said}, {error.where}" if where and error.where else said
    return f"{said} ({error.hint})" if error.hint else said


def to_json(error: TailraceError) -> list[str | None]:
    """An error as JSON, for another process.

    >>> from_json(to_json(TableMovedError("moved", where="s.t")))
    TableMovedError('moved', 's.t', None)
    """
    return [type(error).__name__, error.what, error.where, error.hint]


def from_json(words: Sequence[str | None]) -> TailraceError:
    """The error that `to_json` has written."""
    kind, what, where, hint = words
    return _kinds(TailraceError)[str(kind)](str(what), where=where, hint=hint)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors it was raised from: a tailrace error may hide the original one."""
    while error is not None:
        yield error
        error = error.__cause__


def _kinds(root: type[TailraceError]) -> dict[str, type[TailraceError]]:
    found = {root.__name__: root}
    for kind in root.__subclasses__():
        found |= _kinds(kind)
    return found
