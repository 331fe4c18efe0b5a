"""Which vendor's tables lie in a folder: each table by its columns, or as one of the formats finds it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from .. import formats
from ..errors import TailraceError
from . import files
from .base import Format


def by_columns(columns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The format of each table, by its column names: the one that recognises it best, empty for none.

    >>> by_columns({"a__ct": ["header__change_seq", "header__change_oper", "id"], "b": ["id"]})
    {'a__ct': 'qlik', 'b': ''}
    """
    forms = [formats.get(name) for name in formats.names()]
    made = {}
    for table, names in columns.items():
        best = max(forms, key=lambda form: form.knows(names))
        made[table] = best.name if best.knows(names) else ""
    return made


def at(path: str, own: Collection[str], form: Format) -> dict[str, str]:
    """The format of each table at a path, empty for none: of the tables that `form` has found there (`own`),
    and, if several vendors have tables there, of all others."""
    plain: dict[str, Sequence[str]] = {}
    with suppress(TailraceError):  # tables that only `form` finds
        plain = files.columns_at(path)
    made = by_columns(plain)
    others = set(made.values()) - {"", form.name}
    for name in sorted({form.name, *others}):
        mine = _found(path, formats.get(name))
        if all(made.get(n, "") in ("", name) for n in mine):  # otherwise it finds tables of any vendor
            made |= dict.fromkeys(mine, name)
    # What `form` finds but plain reading does not list under that name, it lists under another.
    rest = {n: v for n, v in made.items() if n not in own and v != form.name} if others else {}
    return {n: made.get(n) or form.name for n in own} | rest


def _found(path: str, form: Format) -> Collection[str]:
    """The tables that a format finds at a path by rules of its own."""
    try:
        return form.columns(path, form.options()) if form.columns else ()
    except TailraceError:  # it is said when they are read
        return ()


def notes(whose: Mapping[str, str], form: Format) -> list[str]:
    """Notes about tables of other vendors."""
    return [
        f"the folder also has tables of {other}: inspect them with `--from {other}`"
        for other in sorted(set(whose.values()) - {"", form.name})
    ]
