"""Table functions in SQL statements, such as `FROM net('shop.item', start => '2026-11-22T10:00:00Z')`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ..errors import ConfigError

FUNCTIONS = {
    "as_of": "the rows at a position",
    "current": "the target's rows, with the changes that are not applied yet",
    "diff": "the rows that differ between two positions",
    "changes": "the rows of the change table, in order",
    "net": "at most one change for each key",
    "net_changes": "the net changes in the style of SQL Server",
    "history": "every version of every row that changed, with the time in which it was valid",
    "pairs": "one row per change, with the before and the after image",
    "chain": "the changes of all rows that ever had a key",
    "rebuild": "the rows of the change table, with complete images",
    "transactions": "the transactions of all tables, or of those that are named",
}
"""The table functions, by the names of the library's methods, and their results."""

_TOKEN = re.compile(
    r"(?P<skip>\s+|--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^']|'')*')"
    r"|(?P<dollar>[eE]'(?:[^'\\]|\\.|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)|(?P<quoted>\"(?:[^\"]|\"\")*\"|`[^`]*`)|(?P<open>['\"`]|/\*|\$\w*\$)"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<word>\w[\w$]*)|(?P<sign>=>|:=|.)",
    re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class FunctionCall:
    """A table function call in a statement: its name, its range of characters, and its arguments."""

    question: str
    begin: int
    end: int
    given: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)


def split_statements(text: str) -> tuple[list[str], str]:
    r"""Splits a text at its semicolons.

    Returns:
        The complete statements, and the rest after the last semicolon; empty if that is blank or a complete
            comment.

    >>> split_statements("SELECT ';' AS a; -- one; two\nSELECT 2")
    (["SELECT ';' AS a"], '-- one; two\nSELECT 2')
    >>> split_statements(r"SELECT E'a\';b' AS x")
    ([], "SELECT E'a\\';b' AS x")
    >>> split_statements("SELECT 1;\n-- the end")
    (['SELECT 1'], '')
    >>> split_statements("SELECT 'a;\n")
    ([], "SELECT 'a;")
    >>> split_statements("SELECT 1 AS a$b$; SELECT 2 AS b$b$;")
    (['SELECT 1 AS a$b$', 'SELECT 2 AS b$b$'], '')
    """
    found, begin, blank = [], 0, True
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "open":
            blank = False
            break
        if token[0] == ";":
            if not blank:
                found.append(text[begin : token.start()].strip())
            begin, blank = token.end(), True
        elif token.lastgroup != "skip":
            blank = False
    return found, "" if blank else text[begin:].strip()


def normalized(statement: str) -> str:
    """Returns a statement in lower case without comments and the final semicolon, with single blanks.

    >>> normalized("SHOW  Tables -- all of them\\n;")
    'show tables'
    """
    tokens = (m[0].lower() for m in _TOKEN.finditer(statement) if m.lastgroup != "skip")
    return " ".join(tokens).removesuffix(";").strip()


def find_calls(statement: str) -> list[FunctionCall]:
    """Returns the table function calls of a statement.

    Arguments are literals: text, numbers, `true`, `false`, `null`, `[...]`, `{'name': ...}`, positional or by
    name with `=>`.

    Raises:
        ConfigError: an argument is not a literal.

    >>> find_calls("SELECT * FROM net('shop.item', start => 7) n, chain('shop.item', {'id': 1})")[1]
    FunctionCall(question='chain', begin=46, end=75, given=('shop.item', {'id': 1}), named={})
    >>> find_calls("SELECT net(1), 'FROM net(' FROM shop.net -- FROM net('x')")
    []
    """
    tokens = [m for m in _TOKEN.finditer(statement) if m.lastgroup != "skip"]
    found: list[FunctionCall] = []
    for i in range(1, len(tokens) - 1):
        name = tokens[i][0].lower()
        stands = tokens[i - 1][0].lower() in ("from", "join", ",") and tokens[i + 1][0] == "("
        if stands and name in FUNCTIONS and (not found or tokens[i].start() >= found[-1].end):
            found.append(_Arguments(statement, tokens, i + 2).call(name, tokens[i].start()))
    return found


def replace_calls(statement: str, by: Callable[[FunctionCall], str]) -> str:
    """Returns the statement with each table function call replaced by the result of `by`.

    >>> replace_calls("SELECT * FROM net('a') JOIN pairs('b') USING (id)", lambda call: f"x_{call.begin}")
    'SELECT * FROM x_14 JOIN x_28 USING (id)'
    """
    parts, at = [], 0
    for call in find_calls(statement):
        parts += [statement[at : call.begin], by(call)]
        at = call.end
    return "".join([*parts, statement[at:]])


class _Arguments:
    """Parses the arguments of one call, starting at the token after its `(`."""

    def __init__(self, statement: str, tokens: Sequence[re.Match[str]], at: int) -> None:
        self._statement, self._tokens, self._at = statement, tokens, at

    def call(self, name: str, begin: int) -> FunctionCall:
        given: list[Any] = []
        named: dict[str, Any] = {}
        while not self._is(")"):
            word = self._now()
            if word.lastgroup in ("word", "quoted") and self._now(1)[0] in ("=>", ":="):
                self._at += 2
                self._once(named, word[0].strip('`"'), self._value())
            elif named:
                raise self._wrong("a positional argument follows a named one")
            else:
                given.append(self._value())
            if not self._is(")"):
                self._take(",")
        end = self._now().end()
        return FunctionCall(name, begin, end, tuple(given), named)

    def _value(self) -> Any:
        token = self._now()
        self._at += 1
        if token.lastgroup == "text":
            return token[0][1:-1].replace("''", "'")
        if token.lastgroup == "number":
            return Decimal(token[0]) if "." in token[0] else int(token[0])
        if token[0] == "-" and self._now().lastgroup == "number":
            return -self._value()
        if token[0].lower() in _WORDS:
            return _WORDS[token[0].lower()]
        if token[0] == "[":
            return self._several("]", self._value)
        if token[0] == "{":
            found: dict[Any, Any] = {}
            for name, value in self._several("}", self._pair):
                self._once(found, name, value)
            return found
        self._at -= 1
        raise self._wrong(f"{token[0]!r} is not a literal")

    def _once(self, told: dict[Any, Any], name: Any, value: Any) -> None:
        if name in told:
            raise self._wrong(f"{name} is given twice")
        told[name] = value

    def _pair(self) -> tuple[str, Any]:
        name = self._value()
        self._take(":")
        return name, self._value()

    def _several(self, end: str, one: Callable[[], Any]) -> list[Any]:
        found = []
        while not self._is(end):
            found.append(one())
            if not self._is(end):
                self._take(",")
        self._at += 1
        return found

    def _now(self, ahead: int = 0) -> re.Match[str]:
        if self._at + ahead >= len(self._tokens):
            raise self._wrong("the closing bracket is missing")
        return self._tokens[self._at + ahead]

    def _is(self, sign: str) -> bool:
        return self._now()[0] == sign

    def _take(self, sign: str) -> None:
        if not self._is(sign):
            raise self._wrong(f"{sign!r} is missing before {self._now()[0]!r}")
        self._at += 1

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"the arguments of a table function cannot be parsed: {why}",
            where=self._statement,
            hint="write net('schema.table', start => '2026-11-22T10:00:00Z')",
        )
