"""`tailrace inspect` without Spark: which vendor's tables these are, and their first rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import formats
from ..errors import TailraceError
from . import vendors
from .base import Format
from .first_rows import Glance, TableSample
from .folders import not_read, places
from .inspect import SHOWN, Found, Table, known_by
from .new_folder import refuse_half
from .samples import samples


def glance(
    path: str, *, form: str | None = None, given: Mapping[str, str] | None = None, rows: int = 5
) -> Found | None:
    """What the first rows of the tables at a path say; None when it takes more than a look at them: tables of
    a format that says nothing without Spark.

    Raises:
        ConfigError: there is nothing, or not all of it yet; an option that the format has not.
        FormatError: no format recognises the tables; a file cannot be read.
    """
    if "://" not in path and not Path(path).exists():
        places(path)  # says so
    refuse_half(path)
    known = (formats.get(form), 1.0) if form is not None else _whose(path)
    if known is None or known[0].glance is None:
        return None
    found, sure = known
    options = formats.options(found, dict(given or {}))
    taken = found.samples(path, options) if found.samples else samples(path, options)
    whose = vendors.at(path, taken, found) if form is None else {}
    mine = {n: s for n, s in taken.items() if whose.get(n, found.name) == found.name}
    glances = found.glance(mine, options, path)  # type: ignore[misc]
    shown = [_table(g, rows) for g in sorted(glances, key=lambda g: g.name)]
    rest = {} if shown else {n: _first(s, rows) for n, s in mine.items()}
    columns = {n: s.columns for n, s in taken.items()}
    unread = [] if found.samples else not_read(Path(path), places(path).values())
    notes = [*unread, *vendors.notes(whose, found), *_notes(mine)]
    return Found(found.name, sure, columns, shown, notes, rest, whose)


def _whose(path: str) -> tuple[Format, float] | None:
    """The format that recognises the tables at a path; None if only one that needs Spark to find its tables
    could.

    Raises:
        ConfigError, FormatError: no format does, or the tables cannot be read.
    """
    forms = [formats.get(name) for name in formats.names()]
    try:
        return known_by({n: s.columns for n, s in samples(path).items()})
    except TailraceError as error:
        for form in forms:
            if form.samples is None:
                continue
            try:
                known, sure = known_by({n: s.columns for n, s in form.samples(path, form.options()).items()})
            except TailraceError:
                continue  # not this format; the error of the plain check is raised in the end
            if known is form:
                return form, sure
        if any(form.load is not None and form.samples is None for form in forms):
            return None
        raise error


def _table(one: Glance, rows: int) -> Table:
    headers: Counter[str] = Counter()
    for change in one.changes:
        headers.update(h for h, v in change.items() if v is not None and h not in ("changed", "carried"))
    operations = Counter(str(c["change_oper"]) for c in one.changes)
    order = sorted(one.changes, key=lambda c: (str(c.get("change_seq")), str(c.get("change_oper"))))
    shown = [{h: _text(c.get(h)) for h in (*SHOWN, "changed", "carried")} for c in order[:rows]]
    return Table(one.name, dict(headers), one.key, one.columns, shown, dict(operations))


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, list) else str(value)


def _first(sample: TableSample, rows: int) -> list[dict[str, Any]]:
    """The first rows as text, without columns that have no values."""
    found = sample.rows.slice(0, rows).to_pylist()
    filled = [n for n in sample.columns if any(r[n] is not None for r in found)]
    return [{n: _text(r[n]) for n in filled} for r in found]


def _notes(taken: Mapping[str, TableSample]) -> list[str]:
    """Notes about tables that have more rows than were read."""
    notes = []
    if all(s.total == 0 for one in taken.values() for s in (one, *one.older)):
        notes.append("there are no rows")
    for name, sample in taken.items():
        seen = sum(s.rows.num_rows for s in (sample, *sample.older))
        if sample.total is None or sample.total > seen:
            whole = "more" if sample.total is None else f"{sample.total:,}"
            notes.append(f"{name}: the first {seen:,} rows of {whole}")
    return [*notes, "only the first rows were read; --check reads all of them and reports bad ones"]
