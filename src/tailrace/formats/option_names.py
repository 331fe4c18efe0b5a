"""Handles tables and columns that a format's options name. A column that its table does not have is an error;
a missing table is a note, because the same options are used for deliveries without rows of that table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..errors import FormatError
from ..model.nearest import meant

_SHOWN = 10


def columns_in(text: str) -> list[str]:
    """Returns the names between commas.

    >>> columns_in("id, line,")
    ['id', 'line']
    """
    return [n.strip() for n in text.split(",") if n.strip()]


def lists_in(text: str) -> dict[str, list[str]]:
    """Parses lists per table that users write.

    >>> lists_in("PUB.Order=Ordernum; PUB.Line=Ordernum,Linenum")
    {'PUB.Order': ['Ordernum'], 'PUB.Line': ['Ordernum', 'Linenum']}
    """
    parts = (p.partition("=") for p in text.split(";") if p.strip())
    return {table.strip(): columns_in(said) for table, _, said in parts}


def key_of(text: str, table: str) -> list[str]:
    """Returns the key columns that an option gives for a table: its own, or those for all tables.

    >>> key_of("id", "dbo.line"), key_of("dbo.item=id;dbo.line=no,pos", "DBO.LINE")
    (['id'], ['no', 'pos'])
    >>> key_of("pos; shop.item=id", "shop.item")
    ['id']
    """
    keys = {name and name.lower(): columns for name, columns in _keys(text)}
    return columns_in(keys.get(table.lower(), keys.get(None, "")))


def keys_of_none(text: str, tables: Collection[str]) -> list[str]:
    """Returns a note for each table that an option `key` names and that is not one of these.

    >>> keys_of_none("dbo.itme=id; HR.pay=no", ["dbo.item", "hr.pay"])
    ['option key: there is no table dbo.itme; did you mean dbo.item?']
    """
    low = {t.lower() for t in tables}
    return [no_table("key", n, tables) for n, _ in _keys(text) if n is not None and n.lower() not in low]


def _keys(text: str) -> Iterator[tuple[str | None, str]]:
    """Yields the tables that are named (None: all), and their columns."""
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, equals, columns = part.rpartition("=")
        yield (name.strip() if equals else None), columns


def refuse_columns(
    option: str, table: str, names: Iterable[str], columns: Collection[str], *, hint: str | None = None
) -> None:
    """Raises FormatError if an option names columns that a table does not have; `hint` if no name is similar.

    >>> refuse_columns("key", "shop.item", ["id", "LNE"], ["id", "line"])
    Traceback (most recent call last):
    tailrace.errors.FormatError: shop.item has no column LNE
      where: option key
      hint: did you mean line?
    """
    if missing := [n for n in names if n not in columns]:
        near = meant(missing[0], columns)
        raise FormatError(
            f"{table} has no column {', '.join(missing)}",
            where=f"option {option}",
            hint=near or hint or f"its columns are {_some(columns)}",
        )


def no_table(option: str, name: str, tables: Collection[str]) -> str:
    """Returns the note about a table, or a pattern of tables, that an option names and that does not exist.

    >>> no_table("tables", "SHOP.ITEMS", ["SHOP.ITEM", "HR.STAFF"])
    'option tables: there is no table SHOP.ITEMS; did you mean SHOP.ITEM?'
    >>> no_table("keys", "X", ["SHOP.ITEM"])
    'option keys: there is no table X; there is SHOP.ITEM'
    """
    return f"option {option}: there is no table {name}; {meant(name, tables) or f'there is {_some(tables)}'}"


def _some(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:_SHOWN]) or "none"
    return shown + (", ..." if len(names) > _SHOWN else "")


def names_in(value: object, example: str) -> object:
    """Parses tables by id that users write in an option; values that are no text stay unchanged.

    Raises:
        ValueError: the text has another form.

    >>> names_in("31=SHOP.ITEM; 32=SHOP.LINE", "")
    {'31': 'SHOP.ITEM', '32': 'SHOP.LINE'}
    """
    if not isinstance(value, str):
        return value
    parts = [p.partition("=") for p in value.split(";") if p.strip()]
    if not all(own.strip() and table.strip() for own, _, table in parts):
        raise ValueError(f"write `{example}`")
    return {own.strip(): table.strip() for own, _, table in parts}
