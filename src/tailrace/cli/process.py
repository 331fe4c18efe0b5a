"""The process of a command: who may read its files, how it ends, and the values of its options."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import typer
from rich.markup import escape

from ..config import logs
from ..errors import ConfigError, TailraceError, from_spark, full, spark_lost
from .exit_codes import FAILED
from .output import err, print_json

UMASK = "TAILRACE_UMASK"
"""Environment variable with the same meaning as `--umask`."""
_PLACE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
    errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
"""Numbers of errors about a path that cannot be used."""
_SYSTEM = re.compile(r"\bOs \{ code: (\d+)|\(os error (\d+)\)")
"""The system's error number in a message of delta-rs."""


def keep_private(wanted: str) -> None:
    """Sets the umask of this process and its children: what they write is for the owner only."""
    if not re.fullmatch("0{1,2}[0-7]{2}", wanted):
        raise ConfigError(
            f"{wanted!r} is not a umask that lets the owner read and write",
            where=f"--umask, {UMASK}",
            hint="write 077, 027 or 022",
        )
    os.umask(int(wanted, 8))
    os.environ[UMASK] = wanted


def anywhere(words: Sequence[str]) -> list[str]:
    """A command line with the global options moved before the command.

    >>> anywhere(["run", "shop.yaml", "--log-format", "json", "-v"])
    ['--log-format', 'json', '-v', 'run', 'shop.yaml']
    >>> anywhere(["apply", "--log-format=json", "--", "-v"])
    ['--log-format=json', 'apply', '--', '-v']
    """
    end = words.index("--") if "--" in words else len(words)
    first, rest, at = list[str](), list[str](), 0
    while at < end:
        many = 2 if words[at] == "--log-format" else 1
        ours = many == 2 or words[at] in ("-v", "--verbose") or words[at].startswith("--log-format=")
        (first if ours else rest).extend(words[at : min(at + many, end)])
        at += many
    return [*first, *rest, *words[end:]]


def ended(error: Exception, *, as_json: bool = False) -> NoReturn:
    """Ends the process with code 1 after printing a tailrace error; raises other errors again. With
    `as_json`, standard output gets it as a JSON document."""
    place = getattr(error, "filename", None) or f"standard output, or {tempfile.gettempdir()}"
    shown = error if isinstance(error, TailraceError) else full(error, where=place)
    shown = shown or spark_lost(error, where="this command")
    if shown is None and not logs.verbose():
        of_spark = type(error).__module__.partition(".")[0] in ("py4j", "pyspark")
        shown = from_spark(error, where="Spark") if of_spark else _unusable(error)
    if shown is None:
        raise error
    if logs.verbose() and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    if logs.in_json():
        sys.stderr.write(logs.line("ERROR", shown.what, where=shown.where, hint=shown.hint))
    else:
        err.print(f"[red]error:[/] {escape(str(shown))}", soft_wrap=True)
    if as_json:
        kind = type(shown).__name__
        with suppress(OSError):  # it may be the error itself
            print_json(
                {"error": {"kind": kind, "what": shown.what, "where": shown.where, "hint": shown.hint}}
            )
    sys.exit(FAILED)


def _unusable(error: Exception) -> TailraceError | None:
    """The error for a path that cannot be read or written; None for other errors."""
    said = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        number, where = error.errno, str(error.filename)
    elif found := _SYSTEM.search(said):
        number, where = int(found[1] or found[2]), said.splitlines()[0]
    else:
        return None
    if number not in _PLACE:
        return None
    hint = "check the path, and this user's rights to it; the global option -v shows more"
    return ConfigError(f"a file or folder cannot be used: {os.strerror(number)}", where=where, hint=hint)


@contextmanager
def given() -> Iterator[None]:
    """Turns an error about a value of the command line into a usage error."""
    try:
        yield
    except ConfigError as error:
        raise typer.BadParameter(f"{error.what}; {error.hint}" if error.hint else error.what) from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def checked(check: Callable[[str], object]) -> Callable[[str | None], str | None]:
    """An option's callback: a value that does not pass the check is a usage error."""

    def callback(value: str | None) -> str | None:
        if value is not None:
            with given():
                check(value)
        return value

    return callback


def pair(text: str) -> tuple[str, str]:
    """Name and value of an option's NAME=VALUE.

    >>> pair("rows = 7=7")
    ('rows', ' 7=7')
    """
    name, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"{text!r} has no value; write NAME=VALUE")
    return name.strip(), value


def told_once(texts: Iterable[str]) -> dict[str, str]:
    """Names and values of an option that is repeated; a usage error if a name is given twice."""
    found: dict[str, str] = {}
    for name, value in map(pair, texts):
        if name in found:
            raise typer.BadParameter(f"{name} is given twice")
        found[name] = value
    return found


def seconds_of(text: str) -> float:
    """The seconds of an option's duration (5m, 2h); a usage error if it is not a duration."""
    from ..config.quantities import seconds

    with given():
        return seconds(text)
