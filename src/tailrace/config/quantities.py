"""Durations and sizes as people write them: `500ms`, `2h`, `64MiB`."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: TypeAdapter[ByteSize] = TypeAdapter(ByteSize)
_NUMBER = r"(\d+(?:\.\d+)?)\s*"


def seconds(value: Any) -> float:
    """The seconds of a duration: a number, or a number with `ms`, `s`, `m`, `h` or `d`.

    >>> seconds("500ms"), seconds("5m"), seconds("1h30m"), seconds(2)
    (0.5, 300.0, 5400.0, 2.0)
    >>> seconds("soon")
    Traceback (most recent call last):
    ValueError: 'soon' is not a duration: write 500ms, 1s, 5m, 2h, 7d or a number of seconds
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    text = str(value).strip()
    parts = re.findall(_NUMBER + r"(ms|s|m|h|d)", text)
    if parts and re.fullmatch(f"(?:{_NUMBER}(?:ms|s|m|h|d)\\s*)+", text):
        return sum(float(number) * SECONDS[unit] for number, unit in parts)
    if re.fullmatch(_NUMBER, text):
        return float(text)
    raise ValueError(f"{value!r} is not a duration: write 500ms, 1s, 5m, 2h, 7d or a number of seconds")


def size(value: Any) -> int:
    """The bytes of a size: a number, or a number with `B`, `KiB`, `MiB`, `GiB`, `TiB` (or `kB`, `MB`, ...).

    >>> size("64MiB") == 64 * 2**20, size("1.5 GB"), size(4096)
    (True, 1500000000, 4096)
    >>> size("big")
    Traceback (most recent call last):
    ValueError: 'big' is not a size: write 64MiB, 1GiB or a number of bytes
    """
    try:
        if not isinstance(value, bool):
            return int(_SIZE.validate_python(value))
    except ValidationError:
        pass
    raise ValueError(f"{value!r} is not a size: write 64MiB, 1GiB or a number of bytes")


def show_seconds(value: float) -> str:
    """A duration in seconds, in the largest unit that gives a whole number.

    >>> [show_seconds(s) for s in (0.5, 1, 90, 3600, 604800, 0, 0.0005)]
    ['500ms', '1s', '90s', '1h', '7d', '0s', '0.5ms']
    """
    for unit, length in sorted(SECONDS.items(), key=lambda u: -u[1]):
        if value and round(value / length, 6) == int(round(value / length, 6)) and value >= length:
            return f"{round(value / length)}{unit}"
    return f"{value * 1000:g}ms" if value else "0s"


def show_size(value: int) -> str:
    """A size in bytes, in the largest unit that gives a whole number.

    >>> [show_size(n) for n in (0, 1, 65536, 64 << 20, 1 << 30, 1500)]
    ['0B', '1B', '64KiB', '64MiB', '1GiB', '1500B']
    """
    for unit, length in sorted(BYTES.items(), key=lambda u: -u[1]):
        if value and value % length == 0:
            return f"{value // length}{unit}"
    return "0B"


def span(seconds: float) -> str:
    """An approximate duration, for people.

    >>> [span(s) for s in (0, 0.4, 59, 120, 7200, 200000)]
    ['0 s', '0.4 s', '59 s', '2 min', '2 h', '2 days']
    """
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"


def about(size: float) -> str:
    """An approximate number of bytes, for people.

    >>> [about(n) for n in (0, 900, 5 << 20, 3 << 30)]
    ['0 B', '900 B', '5.0 MiB', '3.0 GiB']
    """
    for unit, length in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= length:
            return f"{size / length:.1f} {unit}"
    return f"{size:.0f} B"


def ago(seconds: float, now: dt.datetime | None = None) -> dt.datetime:
    """The time that was that number of seconds before now; the earliest one if that is before year 1.

    >>> noon = dt.datetime(2026, 3, 1, 12, tzinfo=dt.timezone.utc)
    >>> print(ago(3600, noon), ago(1e12, noon))
    2026-03-01 11:00:00+00:00 0001-01-01 00:00:00+00:00
    """
    try:
        return (now or dt.datetime.now(dt.timezone.utc)) - dt.timedelta(seconds=seconds)
    except OverflowError:
        return dt.datetime.min.replace(tzinfo=dt.timezone.utc)


FOREVER = math.inf


def how_long(value: Any) -> float:
    """The seconds of a duration, or of `forever`.

    >>> how_long("30d"), how_long("forever")
    (2592000.0, inf)
    """
    if isinstance(value, str) and value.strip() == "forever":
        return FOREVER
    try:
        return seconds(value)
    except ValueError as error:
        raise ValueError(f"{error}, or `forever`") from None


def show_how_long(value: float) -> str:
    """A duration, or `forever`.

    >>> show_how_long(FOREVER), show_how_long(3600)
    ('forever', '1h')
    """
    return "forever" if math.isinf(value) else show_seconds(value)


def _some(value: float) -> float:
    if not value > 0:
        raise ValueError("must be more than 0")
    return value


_DURATION = rf"{_NUMBER}|({_NUMBER}(ms|s|m|h|d)\s*)+"


def _written(words: str, example: str, *, some: bool = False) -> WithJsonSchema:
    """The JSON schema of a quantity; `some`: of one that is not 0."""
    return WithJsonSchema(
        {
            "type": ["number", "string"],
            "exclusiveMinimum" if some else "minimum": 0,
            "pattern": rf"^\s*{'(?=.*[1-9])' if some else ''}({words})\s*$",
            "examples": [example],
        }
    )


_FINITE = Field(ge=0, allow_inf_nan=False)
_BYTES = f"{_NUMBER}[A-Za-z]*"

HowLong = Annotated[float, BeforeValidator(how_long), Field(ge=0), _written(f"{_DURATION}|forever", "30d")]
"""A field for how long something is kept; its value is seconds, infinite for `forever`."""
Seconds = Annotated[float, BeforeValidator(seconds), _FINITE, _written(_DURATION, "5m")]
"""A field for a duration; its value is seconds."""
SomeSeconds = Annotated[
    float, BeforeValidator(seconds), _FINITE, AfterValidator(_some), _written(_DURATION, "5m", some=True)
]
"""The same without 0: a loop rests so long."""
Bytes = Annotated[int, BeforeValidator(size), Field(ge=0), _written(_BYTES, "64MiB")]
"""A field for a size; its value is bytes."""
SomeBytes = Annotated[
    int, BeforeValidator(size), Field(ge=0), AfterValidator(_some), _written(_BYTES, "64MiB", some=True)
]
"""The same without 0: so much is read, or held, at once."""
