"""`.cd` files: OpenEdge's dumps of CDC policies.

Blank-separated values in the form of ABL's EXPORT: strings in double quotes with quotes doubled, `?` for
unknown, logicals `yes` and `no`. A row tagged `Table` is a table policy. The rows tagged `Field` after it are
its field policies. A trailer has the number of rows and the code page. Policy ids are not dumped, so a loaded
policy gets a new one. Source: spec/openedge.md §6.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import FormatError

MISC = 16
_TOKEN = re.compile(r'"((?:[^"]|"")*)"|([^\s"]+)')
_PSC = re.compile(rb"(?:^|\n)\.\r?\n(PSC\r?\n.*)\Z", re.DOTALL)
_CODEPAGES = {"undefined": "utf-8", "ibm850": "cp850", "1252": "cp1252"}

Value = str | int | bool | None


@dataclass(frozen=True)
class FieldPolicy:
    """A captured field: its name, its position in the row's identity (0 or None: none), reserved values."""

    name: str
    identifying: int | None = 0
    misc: tuple[str | None, ...] = (None,) * MISC


@dataclass(frozen=True)
class TablePolicy:
    """A table policy as in a dump.

    Attributes:
        state: 0 active, 1 inactive.
        instance: 0 current, 1 previous, 2 pending; a previous policy is dumped as pending.
        level: 0 to 3.
    """

    name: str
    description: str | None
    state: int
    instance: int
    table: str
    owner: str
    area: str | None
    index_area: str | None
    identifying: bool
    level: int
    change_table: str | None
    change_owner: str | None = "PUB"
    encrypt: bool | None = True
    misc: tuple[str | None, ...] = (None,) * MISC
    fields: tuple[FieldPolicy, ...] = ()


@dataclass(frozen=True)
class Dump:
    """The contents of a `.cd` file. `timestamp` and the formats are the trailer's text."""

    policies: tuple[TablePolicy, ...]
    filename: str = "_Cdc-Table-Policy"
    database: str = ""
    timestamp: str = "1970/01/01-00:00:00"
    numformat: str = "44,46"
    dateformat: str = "mdy-1950"
    codepage: str = "UTF-8"
    map: str | None = None
    extra: tuple[tuple[str, str], ...] = field(default=())


def write(dump: Dump) -> bytes:
    """Returns the bytes of a `.cd` file.

    >>> policy = TablePolicy("p", None, 0, 0, "Order", "PUB", "Data", "Data", False, 0, None)
    >>> print(write(Dump((policy,), database="shop")).decode().splitlines()[0])
    "Table" "p" ? 0 0 "Order" "PUB" "Data" "Data" no 0 ? "PUB" yes ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? ? 0
    """
    rows: list[Sequence[Value]] = []
    for p in dump.policies:
        rows.append(
            ["Table", p.name, p.description, p.state, p.instance, p.table, p.owner, p.area, p.index_area,
             p.identifying, p.level, p.change_table, p.change_owner, p.encrypt, *_misc(p.misc), len(p.fields)]
        )  # fmt: skip
        rows += [["Field", p.name, f.name, f.identifying, *_misc(f.misc)] for f in p.fields]
    codec = _codec(dump.codepage)
    body = "".join(" ".join(map(_text, row)) + "\n" for row in rows).encode(codec)
    trailer = [
        ("filename", dump.filename), ("records", f"{len(rows):013d}"), ("ldbname", dump.database),
        ("timestamp", dump.timestamp), ("numformat", dump.numformat), ("dateformat", dump.dateformat),
        *([("map", dump.map)] if dump.map is not None else []), *dump.extra, ("cpstream", dump.codepage),
    ]  # fmt: skip
    said = "".join(f"{k}={v}\n" for k, v in trailer)
    at = len(body) + 2  # after the line with the full stop
    return body + b".\nPSC\n" + said.encode(codec) + f".\n{at:010d}\n".encode()


def read(data: bytes, *, where: str = ".cd file") -> Dump:
    """Parses the policies of a `.cd` file, with the same checks as OpenEdge's loader.

    Raises:
        FormatError: the trailer is missing or has another number of rows, a row tag or level is unknown, or a
            field row belongs to another table.
    """
    found = _PSC.search(data)
    if found is None:
        raise FormatError("no trailer (a line `.`, then `PSC`)", where=where, hint="check for truncation")
    trailer = _trailer(found[1], where)
    start = found.start(1)
    if trailer.pop("") not in ("", f"{start:010d}"):
        raise FormatError(
            "the trailer is not at the position in its last line", where=where, hint="create the dump again"
        )
    codepage = trailer.pop("cpstream", "UTF-8")
    try:
        text = data[: found.start()].decode(_codec(codepage))
    except (UnicodeError, LookupError) as error:
        hint = "create the dump again, in a code page that can represent its texts"
        raise FormatError(f"not text in code page {codepage}: {error}", where=where, hint=hint) from None
    rows = _rows(text, where)
    records = trailer.pop("records", None)
    if records is not None and (said := records.lstrip("0") or "0") != str(len(rows)):
        raise FormatError(
            f"{len(rows)} rows, but the trailer has {said}", where=where, hint="create the dump again"
        )
    named = {n: n for n in ("filename", "timestamp", "numformat", "dateformat", "map")} | {
        "ldbname": "database"
    }
    known: dict[str, Any] = {named[k]: v for k, v in trailer.items() if k in named}
    extra = tuple((k, v) for k, v in trailer.items() if k not in named)
    return Dump(_policies(rows, where), codepage=codepage, extra=extra, **known)


def _policies(rows: Sequence[list[Value]], where: str) -> tuple[TablePolicy, ...]:
    made: list[TablePolicy] = []
    at = 0
    while at < len(rows):
        row, line = rows[at], f"{where}, row {at + 1}"
        _require(row[:1] == ["Table"], f"row tag {row[0]!r} where Table is expected", line)
        _require(len(row) == 15 + MISC, f"{len(row)} values in a Table row, not {15 + MISC}", line)
        count = row[-1]
        _require(isinstance(count, int), f"field policy count {count!r}", line)
        _require(row[10] in (0, 1, 2, 3), f"level {row[10]!r}", line)
        fields = rows[at + 1 : at + 1 + int(count or 0)]
        _require(len(fields) == count, f"{count} field policies expected, found {len(fields)}", line)
        made.append(
            _policy(row, [_field(f, row[1], f"{where}, row {at + 2 + i}") for i, f in enumerate(fields)])
        )
        at += 1 + len(fields)
    return tuple(made)


def _policy(row: Sequence[Any], fields: Sequence[FieldPolicy]) -> TablePolicy:
    values: list[Any] = [*row[1:14], tuple(row[14 : 14 + MISC]), tuple(fields)]
    return TablePolicy(*values)


def _field(row: Sequence[Any], policy: Value, where: str) -> FieldPolicy:
    """Returns a Field row; as in OpenEdge's loader, only its first four values are required."""
    _require(
        bool(row) and str(row[0]).lower() == "field", f"row tag {row[0]!r} where Field is expected", where
    )
    _require(len(row) >= 4, f"{len(row)} values in a Field row", where)
    _require(row[1] == policy, f"field of policy {row[1]!r} after policy {policy!r}", where)
    _require(isinstance(row[2], str), "a field without name", where)
    return FieldPolicy(row[2], row[3], tuple([*row[4:], *[None] * MISC][:MISC]))


def _require(holds: bool, what: str, where: str) -> None:
    if not holds:
        raise FormatError(what, where=where, hint="the dump must be as OpenEdge wrote it")


def _rows(text: str, where: str) -> list[list[Value]]:
    """Returns the values of every row; a line break inside quotes belongs to its string."""
    rows: list[list[Value]] = []
    row: list[Value] = []
    at = 0
    for token in _TOKEN.finditer(text):
        gap = text[at : token.start()]
        if "\n" in gap and row:
            rows.append(row)
            row = []
        row.append(_value(token))
        at = token.end()
        if gap.strip():
            raise FormatError(
                f"cannot be parsed: {gap.strip()[:40]!r}", where=where, hint="a quote is not closed"
            )
    if text[at:].strip():
        raise FormatError(
            f"cannot be parsed: {text[at:].strip()[:40]!r}", where=where, hint="a quote is not closed"
        )
    return [*rows, row] if row else rows


def _value(token: re.Match[str]) -> Value:
    """Returns a quoted string; otherwise unknown, a logical, a number, or a word."""
    if token[2] is None:
        return token[1].replace('""', '"')
    words: dict[str, Callable[[], Value]] = {"?": lambda: None, "yes": lambda: True, "no": lambda: False}
    if made := words.get(token[2].lower()):
        return made()
    return int(token[2]) if re.fullmatch(r"-?\d+", token[2]) else token[2]


def _text(value: Value) -> str:
    if value is None:
        return "?"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, int) else '"' + value.replace('"', '""') + '"'


def _misc(misc: Sequence[str | None]) -> list[str | None]:
    return [*misc, *[None] * MISC][:MISC]


def _trailer(data: bytes, where: str) -> dict[str, str]:
    """Returns the trailer's values by key; under the empty key its last line, the offset at which
    it begins."""
    lines = data.decode("latin-1").replace("\r\n", "\n").split("\n")
    found: dict[str, str] = {}
    for n, line in enumerate(lines[1:], 1):
        if line == ".":
            return found | {"": "".join(lines[n + 1 :]).strip()}
        key, equals, value = line.partition("=")
        if not equals:
            raise FormatError(f"trailer line {line!r}", where=where, hint="key=value expected")
        found[key.lower()] = value
    raise FormatError("the trailer does not end", where=where, hint="the file may be truncated")


def _codec(codepage: str) -> str:
    """Returns Python's name of an OpenEdge code page.

    >>> _codec("ISO8859-1"), _codec("1252")
    ('latin-1', 'cp1252')
    """
    name = codepage.lower()
    if found := re.fullmatch(r"iso8859-(\d+)", name):
        return "latin-1" if found[1] == "1" else f"iso8859-{found[1]}"
    return _CODEPAGES.get(name, name)
