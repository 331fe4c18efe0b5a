"""The error tree. Every error says what happened, where, and what to do about it.

TailraceError
├── ConfigError        a task file, option or environment that cannot work
├── SourceError        the source database refused, or is not set up for capture
│   ├── PositionError  a position that is gone, ahead of the log, or of another server
│   ├── ConnectionLostError  the source went away; trying again is safe
│   └── TableMovedError  a table was truncated or rewritten since the snapshot it is read in
├── FormatError        bytes or rows that are not what their format promises
│   └── ValueRangeError  a value that its column's lake type cannot hold
├── ApplyError         changes that could not be applied to a target
│   └── BaselineNeededError  they never can: the table needs a new baseline
└── UnsupportedError   a declared gap: the feature exists elsewhere, not here
"""

from __future__ import annotations

import re
from collections.abc import Iterator


class TailraceError(Exception):
    """Root of all errors tailrace raises on purpose.

    Args:
        what: one sentence, what went wrong.
        where: source, table, position: whatever narrows it down.
        hint: what the reader should do now (a command, an SQL statement, a setting).

    >>> print(TailraceError("slot 'shop' is missing", where="postgresql://db", hint="take a new baseline"))
    slot 'shop' is missing
      where: postgresql://db
      hint: take a new baseline
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, where, hint)
        self.what, self.where, self.hint = what, where, hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (baseline workers, Spark tasks): keyword arguments must survive.
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


class ConnectionLostError(SourceError):
    """The source went away; trying again is safe: nothing was acknowledged that is not in LOG."""


class TableMovedError(SourceError):
    """A table was truncated or rewritten since the snapshot it is read in; a new snapshot is needed."""


class FormatError(TailraceError):
    """Bytes or rows that are not what their format promises."""


class ValueRangeError(FormatError):
    """A value that its column's lake type cannot hold (NaN in a decimal, a year before 1)."""


class ApplyError(TailraceError):
    """Changes that could not be applied to a target."""


class BaselineNeededError(ApplyError):
    """Changes that the rows kept here cannot follow (a column became another type): only a new baseline
    brings the target up to the source again."""


class NameTakenError(ApplyError):
    """A name that a target was to get, and that something else has."""


class UnsupportedError(TailraceError):
    """A declared gap: asked of something that says it cannot."""


def from_spark(error: BaseException, *, where: str) -> TailraceError:
    """What a Spark job or query died of. An error of ours that a task raised is found again in Spark's text.

    >>> text = "... tailrace.errors.FormatError: odd\\n  where: LOG\\n  hint: look\\n\\n at org.x"
    >>> print(from_spark(RuntimeError(text), where="store"))
    odd
      where: LOG
      hint: look
    """
    if isinstance(error, TailraceError):
        return error
    text = str(error)
    for name, kind in _kinds(TailraceError).items():
        if found := re.search(rf"tailrace\.errors\.{name}: (.*?)(?:\n\s*\n|\n\s*at |\Z)", text, re.DOTALL):
            parts = re.split(r"\n\s*(where|hint): ", found[1])
            named = dict(zip(parts[1::2], parts[2::2], strict=False))
            return kind(parts[0].strip(), where=named.get("where", where), hint=named.get("hint"))
    return ApplyError(text.strip().split("\n\n")[0][:2000], where=where)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from: what is made one of ours says less than what it was."""
    while error is not None:
        yield error
        error = error.__cause__


def _kinds(root: type[TailraceError]) -> dict[str, type[TailraceError]]:
    found = {root.__name__: root}
    for kind in root.__subclasses__():
        found |= _kinds(kind)
    return found
