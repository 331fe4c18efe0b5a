"""Recognises vendors' tables without Spark: each table by its columns, or by a format's own rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from .. import formats
from ..errors import FormatError, TailraceError
from . import file_reader, new_folder
from .base import Format


def recognise(path: str) -> tuple[Format, float]:
    """Returns the format that recognises the tables at a path best, and its certainty (0 to 1); without
    Spark.

    Raises:
        ConfigError: there is nothing, or it is incomplete.
        FormatError: no format recognises the tables; the columns of a file cannot be read.
    """
    new_folder.refuse_half(path)
    try:
        return known_by(file_reader.columns_at(path))
    except TailraceError as error:
        for form in map(formats.get, formats.names()):
            if form.columns is None:
                continue
            try:
                known, sure = known_by(form.columns(path, form.options()))
            except TailraceError:
                continue  # not this format; the error of the plain reader is raised in the end
            if known is form:
                return form, sure
        raise error


def known_by(columns: Mapping[str, Sequence[str]]) -> tuple[Format, float]:
    """Returns the format that recognises tables with these columns best.

    Raises:
        FormatError: no format recognises them.
    """
    best, figure = None, 0.0
    for name in formats.names():
        form = formats.get(name)
        mine = max((form.knows(c) for c in columns.values()), default=0.0)
        if mine > figure:
            best, figure = form, mine
    if best is None:
        listed = "; ".join(f"{n}: {', '.join(c[:8])}" for n, c in columns.items())
        raise FormatError(
            "no format recognises these tables",
            where=listed,
            hint=f"name one with --from: {', '.join(formats.names())}",
        )
    return best, figure


def by_columns(columns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns the format of each table that recognises its column names best; empty for none.

    >>> by_columns({"a__ct": ["header__change_seq", "header__change_oper", "id"], "b": ["id"]})
    {'a__ct': 'qlik', 'b': ''}
    """
    forms = [formats.get(name) for name in formats.names()]
    result = {}
    for table, names in columns.items():
        best = max(forms, key=lambda form: form.knows(names))
        result[table] = best.name if best.knows(names) else ""
    return result


def formats_at(path: str, own: Collection[str], form: Format) -> dict[str, str]:
    """Returns the format of each table at a path, empty for none: of the tables that `form` has found
    (`own`), and, if several vendors have tables there, of all others."""
    plain: dict[str, Sequence[str]] = {}
    with suppress(TailraceError):  # only `form` can find these tables
        plain = file_reader.columns_at(path)
    result = by_columns(plain)
    others = set(result.values()) - {"", form.name}
    for name in sorted({form.name, *others}):
        mine = _found(path, formats.get(name))
        if all(result.get(n, "") in ("", name) for n in mine):  # otherwise it reads tables of any vendor
            result |= dict.fromkeys(mine, name)
    # A table that `form` finds and the plain reader does not list under that name is listed under another
    # name.
    rest = {n: v for n, v in result.items() if n not in own and v != form.name} if others else {}
    return {n: result.get(n) or form.name for n in own} | rest


def _found(path: str, form: Format) -> Collection[str]:
    """Returns the tables that a format finds at a path by its own rules."""
    try:
        return form.columns(path, form.options()) if form.columns else ()
    except TailraceError:  # raised again when they are read
        return ()


def notes(whose: Mapping[str, str], form: Format) -> list[str]:
    """Returns notes about tables of other vendors."""
    return [
        f"the folder also has tables of {other}: inspect them with `--from {other}`"
        for other in sorted(set(whose.values()) - {"", form.name})
    ]
