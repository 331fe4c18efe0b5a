"""Questions within an SQL statement: `FROM net('shop.item', start => '2026-11-22T10:00:00Z')`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ..errors import ConfigError

QUESTIONS = {
    "as_of": "the rows as they stood at a place",
    "current": "the target's rows, with the changes that are not applied to it yet",
    "diff": "the rows that differ between two places",
    "changes": "the rows of the change table, in order",
    "net": "at most one change for each key",
    "net_changes": "the same, in the style of SQL Server",
    "history": "every version of every row that changed, with the time it was in force",
    "pairs": "each change in one row, before and after",
    "chain": "what happened to the rows that ever had a key",
    "rebuild": "the rows of the change table, with whole images",
    "transactions": "who changed what together, over all tables or those that are named",
}
"""What can be asked of a table, by the names of the library's methods, and what it gives."""

_TOKEN = re.compile(
    r"(?P<skip>\s+|--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^']|'')*')"
    r"|(?P<dollar>[eE]'(?:[^'\\]|\\.|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)|(?P<quoted>\"(?:[^\"]|\"\")*\"|`[^`]*`)|(?P<open>['\"`]|/\*|\$\w*\$)"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<word>\w[\w$]*)|(?P<sign>=>|:=|.)",
    re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Call:
    """A question, where it stands in the statement, and its arguments."""

    question: str
    begin: int
    end: int
    given: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)


def statements(text: str) -> tuple[list[str], str]:
    r"""The statements of a text that end with a semicolon, and what follows the last one: nothing if that is
    blank or a comment that ends.

    >>> statements("SELECT ';' AS a; -- one; two\nSELECT 2")
    (["SELECT ';' AS a"], '-- one; two\nSELECT 2')
    >>> statements(r"SELECT E'a\';b' AS x")
    ([], "SELECT E'a\\';b' AS x")
    >>> statements("SELECT 1;\n-- the end")
    (['SELECT 1'], '')
    >>> statements("SELECT 'a;\n")
    ([], "SELECT 'a;")
    >>> statements("SELECT 1 AS a$b$; SELECT 2 AS b$b$;")
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


def bare(statement: str) -> str:
    """A statement in lower case without comments and what ends it, one blank between its words.

    >>> bare("SHOW  Tables -- all of them\\n;")
    'show tables'
    """
    tokens = (m[0].lower() for m in _TOKEN.finditer(statement) if m.lastgroup != "skip")
    return " ".join(tokens).removesuffix(";").strip()


def calls(statement: str) -> list[Call]:
    """The questions that stand where a table may stand. Arguments are literals: text, numbers, `true`,
    `false`, `null`, `[...]`, `{'name': ...}`; by place, or by name with `=>`.

    Raises:
        ConfigError: an argument is no literal.

    >>> calls("SELECT * FROM net('shop.item', start => 7) n, chain('shop.item', {'id': 1})")[1]
    Call(question='chain', begin=46, end=75, given=('shop.item', {'id': 1}), named={})
    >>> calls("SELECT net(1), 'FROM net(' FROM shop.net -- FROM net('x')")
    []
    """
    tokens = [m for m in _TOKEN.finditer(statement) if m.lastgroup != "skip"]
    found: list[Call] = []
    for i in range(1, len(tokens) - 1):
        name = tokens[i][0].lower()
        stands = tokens[i - 1][0].lower() in ("from", "join", ",") and tokens[i + 1][0] == "("
        if stands and name in QUESTIONS and (not found or tokens[i].start() >= found[-1].end):
            found.append(_Arguments(statement, tokens, i + 2).call(name, tokens[i].start()))
    return found


def replaced(statement: str, by: Callable[[Call], str]) -> str:
    """The statement with something else in place of its questions.

    >>> replaced("SELECT * FROM net('a') JOIN pairs('b') USING (id)", lambda call: f"x_{call.begin}")
    'SELECT * FROM x_14 JOIN x_28 USING (id)'
    """
    parts, at = [], 0
    for call in calls(statement):
        parts += [statement[at : call.begin], by(call)]
        at = call.end
    return "".join([*parts, statement[at:]])


class _Arguments:
    """Reads the arguments of one question, from the token behind its `(`."""

    def __init__(self, statement: str, tokens: Sequence[re.Match[str]], at: int) -> None:
        self._statement, self._tokens, self._at = statement, tokens, at

    def call(self, name: str, begin: int) -> Call:
        given: list[Any] = []
        named: dict[str, Any] = {}
        while not self._is(")"):
            word = self._now()
            if word.lastgroup in ("word", "quoted") and self._now(1)[0] in ("=>", ":="):
                self._at += 2
                self._once(named, word[0].strip('`"'), self._value())
            elif named:
                raise self._wrong("an argument without a name follows one with a name")
            else:
                given.append(self._value())
            if not self._is(")"):
                self._take(",")
        end = self._now().end()
        return Call(name, begin, end, tuple(given), named)

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
        raise self._wrong(f"{token[0]!r} is no literal")

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
            raise self._wrong("it has no end")
        return self._tokens[self._at + ahead]

    def _is(self, sign: str) -> bool:
        return self._now()[0] == sign

    def _take(self, sign: str) -> None:
        if not self._is(sign):
            raise self._wrong(f"{sign!r} is missing before {self._now()[0]!r}")
        self._at += 1

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"a question's arguments cannot be read: {why}",
            where=self._statement,
            hint="write net('schema.table', start => '2026-11-22T10:00:00Z')",
        )
