"""The error tree. Every error reports what happened, where, and what to do about it.

TailraceError
├── ConfigError        a task file, option or environment that cannot work
├── SourceError        the source database refused, or is not set up for capture
│   ├── PositionError  a position that no longer exists, is ahead of the log, or of another server
│   │   └── GapError   a range of changes of which some were never captured
│   ├── ConnectionLostError  the connection to the source was lost; a retry is safe
│   │   └── UnreachableError  no server answers at its address
│   └── TableMovedError  a table was truncated, rewritten or loaded again since the snapshot it is read in
├── FormatError        bytes or rows that violate their format
│   └── ValueRangeError  a value that its column's lake type cannot hold
├── ApplyError         changes that could not be applied to a target
│   ├── BaselineNeededError  they never can be: the table needs a new baseline
│   ├── ConstraintError  a constraint of the target refuses a row
│   ├── StopPolicyError  a policy says that the task stops here
│   ├── TargetLostError  the connection to the target's server was lost; a retry is safe
│   └── ConcurrentCommitError  another writer committed to the target first; a retry is safe
├── LeaseLostError     another process has taken over the work of this one
├── SparkLostError     the JVM of the Spark session has ended
├── StorageFullError   no space left to write
├── OvertakenError     another process committed first
├── CancelledError     the user has cancelled the work
└── UnsupportedError   a declared gap: a feature that this component does not support
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
        what: what went wrong, in one sentence.
        where: the object that failed: source, table, position.
        hint: what to do (a command, an SQL statement, a setting).

    Attributes:
        of_task: its cause is not in a table, even if it was raised for one.

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
    """A position that no longer exists, is ahead of the log, or belongs to another server."""


class GapError(PositionError):
    """A range of changes of which some were never captured: no change table has them."""


class ConnectionLostError(SourceError):
    """The connection to the source was lost. A retry is safe: only what is in LOG was acknowledged."""


class UnreachableError(ConnectionLostError):
    """No server answers at the source's address: it is down, or the address is wrong."""


class TableMovedError(SourceError):
    """A table was truncated, rewritten, loaded again, renamed or dropped since the snapshot in which it is
    read; a new snapshot is needed."""


class FormatError(TailraceError):
    """Bytes or rows that violate their format."""


class ValueRangeError(FormatError):
    """A value that its column's lake type cannot hold (NaN in a decimal, a year before 1)."""


class ApplyError(TailraceError):
    """Changes that could not be applied to a target."""


class BaselineNeededError(ApplyError):
    """Changes that the target's rows cannot follow (a column's type changed): only a new baseline brings the
    target up to date."""


class LimitReachedError(ApplyError):
    """A table has had as many conflicts as its rules allow (`log then stop after 100`). A retry would start
    to count them again, so the operator has to decide."""


class ConstraintError(ApplyError):
    """A constraint of the target (unique, CHECK, NOT NULL, foreign key) refuses a row; nothing was
    written."""


class TargetLostError(ApplyError):
    """The connection to the target's server was lost, or no server answers at its address. A retry is safe:
    the target's own tables record its progress."""


class ConcurrentCommitError(ApplyError):
    """Another writer committed to a table between reading it and writing the result: nothing was written. It
    is safe to repeat the work on the current table."""

    @classmethod
    def at(cls, where: str, read: int, now: int | None = None) -> ConcurrentCommitError:
        """Returns the error for a table that was read at one version and now has another (None: unknown)."""
        newer = "another version" if now is None else f"version {now}"
        said = (
            f"{newer} was committed after version {read}, which was read: another writer "
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
    """A DDL statement at the source, or a conflict, whose policy is `stop`: the task ends before it, at each
    start again."""


class LeaseLostError(TailraceError):
    """Another process may run this part of the task now: this one did not renew its lease in time, and
    stops."""


class SparkLostError(TailraceError):
    """The JVM of the Spark session was killed, or ran out of memory. Nothing is lost; start again."""


class StorageFullError(TailraceError):
    """No space is left to write, or a file became larger than allowed. Nothing half-written is visible; the
    work is repeated once there is space."""


class StoreLostError(TailraceError, OSError):
    """An object store does not answer, or refuses a request. Nothing half-written is visible; start again."""


class OvertakenError(TailraceError):
    """Another process committed first, and this commit was based on the earlier state: nothing was committed.
    Read again and repeat."""


class CancelledError(TailraceError):
    """The user has cancelled the work; it has changed nothing."""


class UnsupportedError(TailraceError):
    """A declared gap: a feature that this component does not support."""


_VALUE = re.compile(
    r"\[(?:CAST|NUMERIC)[A-Z_.]*\] ([^\n]*?)(?:\. (?:Correct|Use|If) .*?| )\s*SQLSTATE: 22\w{3}", re.DOTALL
)
"""Spark's message about a value (class 22 of SQLSTATE), without its advice."""
_WORKER = re.compile(
    r"Python worker.*?\nTraceback [^\n]*\n(?:[ \t][^\n]*\n)*(\S.*?)(?:\n\s*\n|\n\s*at |\n*JVM stacktrace|\Z)",
    re.DOTALL,
)
"""The message of an exception in a Python task, without its traceback."""

_PYTHONS = {
    re.compile(
        r"PYTHON_VERSION_MISMATCH\] Python in worker has different version: ([\d.]+) than that in driver: "
        r"([\d.]+)"
    ): "an executor has Python {}, the driver has {}",
    re.compile(
        r"ModuleNotFoundError: No module named '([^']+)'"
    ): "an executor's Python does not have the module {}",
    re.compile(r'Cannot run program "([^"]*)"'): "an executor's host has no Python at {}",
}
"""Spark's messages about an unsuitable Python of an executor, and ours."""
PYTHON_CURE = (
    "install tailrace and its packages for the Python of all executors, and name that Python with "
    "`spark.pyspark.python` in the task file's section `spark` (or PYSPARK_PYTHON in the driver's "
    "environment); or ship an environment with `--archives` (docs/spark.md)"
)
"""The hint of errors about an unsuitable Python of an executor."""
START_SPARK_AGAIN = "did it run out of memory (see `spark.driver.memory`)? start again: nothing is lost"
"""The hint of errors about a JVM that has ended."""


def from_spark(error: BaseException, *, where: str) -> TailraceError:
    """Returns the cause of a failed Spark job or query. A tailrace error raised by a task is reconstructed
    from Spark's message.

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
            parsed = dict(zip(parts[1::2], parts[2::2], strict=False))
            return kind(parts[0].strip(), where=parsed.get("where", where), hint=parsed.get("hint"))
    if (no_room := full(error, where=where)) is not None:
        return no_room
    failure = _job_error(text, where)
    failure.of_task = failure.of_task or getattr(error, "of_task", False)
    return failure


def raised_in_task(error: BaseException, where: str) -> TailraceError:
    """Returns the error of a task as the driver raises it; it can be pickled."""
    if isinstance(error, TailraceError):
        return error
    kind = type(error)
    return from_spark(RuntimeError(f"{kind.__module__}.{kind.__name__}: {error}"), where=where)


def _job_error(text: str, where: str) -> TailraceError:
    """Returns the error of a failed job, without stack traces."""
    for pattern, what in _PYTHONS.items():
        if found := pattern.search(text):
            misfit = ConfigError(what.format(*found.groups()), where=where, hint=PYTHON_CURE)
            misfit.of_task = True
            return misfit
    if value := _VALUE.search(text):
        hint = "with `on: {data_error: log}` such a change is rejected with its reason (docs/apply.md)"
        return ApplyError(f"a value does not fit its column: {value[1]}", where=where, hint=hint)
    if worker := _WORKER.search(text):
        return ApplyError(f"a task failed: {worker[1].strip()[:2000]}", where=where, hint="-v shows where")
    # Java's stack traces begin with `at`, or are announced.
    said = re.split(r"\n\s*\n|\n\s*at |\n*JVM stacktrace", text.strip())[0]
    return ApplyError(re.sub(r"^An error occurred while calling \S+\n: ", "", said)[:2000], where=where)


def spark_lost(error: BaseException, *, where: str) -> SparkLostError | None:
    """Returns the tailrace error of a lost connection to the JVM; None for other errors.

    >>> print(spark_lost(ConnectionRefusedError(111, "Connection refused"), where="shop"))
    Spark's JVM is gone
      where: shop
      hint: did it run out of memory (see `spark.driver.memory`)? start again: nothing is lost
    """
    # By name: processes without Spark have no py4j.
    if type(error).__module__.partition(".")[0] != "py4j":
        lost = isinstance(error, ConnectionError)
    else:
        said = str(error)
        unanswered = re.fullmatch(r"An error occurred while calling \S+", said.strip()) is not None
        network = type(error).__name__ == "Py4JNetworkError"
        lost = network or unanswered or "does not exist in the JVM" in said
    return SparkLostError("Spark's JVM is gone", where=where, hint=START_SPARK_AGAIN) if lost else None


_FULL = re.compile(r"No space left on device|Disk quota exceeded")


def full(error: BaseException, *, where: str) -> StorageFullError | None:
    """Returns the tailrace error of missing disk space; None for other errors.

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
    """Whether an error that was raised for one table concerns that table alone.

    Otherwise it concerns the task: other tables are affected too, or it passes by itself.

    >>> is_of_table(ApplyError("a view needs it")), is_of_table(TargetLostError("no answer"))
    (True, False)
    """
    return isinstance(error, _OF_TABLES) and not (error.of_task or isinstance(error, _OF_TASKS))


@contextmanager
def not_of_a_table() -> Iterator[None]:
    """Marks errors raised in the block as those of a task, also after `from_spark`."""
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
    """Returns an error in one line, on request with its `where`.

    >>> in_one_line(ConfigError("s.t is not in the target", where="db", hint="take a new baseline"))
    's.t is not in the target (take a new baseline)'
    """
    said = " ".join(error.what.split())
    said = f"{said}, {error.where}" if where and error.where else said
    return f"{said} ({error.hint})" if error.hint else said


def to_json(error: TailraceError) -> list[str | None]:
    """Returns an error as JSON, for another process.

    >>> from_json(to_json(TableMovedError("moved", where="s.t")))
    TableMovedError('moved', 's.t', None)
    """
    return [type(error).__name__, error.what, error.where, error.hint]


def from_json(fields: Sequence[str | None]) -> TailraceError:
    """Returns the error that `to_json` has written."""
    kind, what, where, hint = fields
    return _kinds(TailraceError)[str(kind)](str(what), where=where, hint=hint)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes: a tailrace error may hide the original one."""
    while error is not None:
        yield error
        error = error.__cause__


def _kinds(root: type[TailraceError]) -> dict[str, type[TailraceError]]:
    found = {root.__name__: root}
    for kind in root.__subclasses__():
        found |= _kinds(kind)
    return found
