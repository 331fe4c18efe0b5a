"""YAML with line numbers: the values of a file, and on which line each key and value stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Where a value stands: keys and list indexes from the top, e.g. `("source", "tables", 0)`."""


@dataclass(frozen=True)
class Mistake:
    """One thing wrong in a file: the line (from 1) and what is wrong there."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


@dataclass
class Document:
    """What a YAML text holds.

    Attributes:
        data: its values; None when the text is not YAML (then `mistakes` says why).
        lines: path of a value -> the line of its key, or of the value itself in a list.
        mistakes: what is wrong with the text as YAML: syntax, and keys that stand twice.
    """

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of that value, or of the nearest thing around it that is in the file.

        >>> doc = parse("{a: 1, b: {c: [2, 3]}}")
        >>> doc.data, doc.line(("b", "c", 1)), doc.line(("b", "missing")), doc.line(("x",))
        ({'a': 1, 'b': {'c': [2, 3]}}, 1, 1, 1)
        """
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def parse(text: str) -> Document:
    """The document a YAML text holds; never raises for what is in the text."""
    document = Document()
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            document.mistakes += _duplicates(node)
            document.data = loader.construct_document(node)
            document.lines.update(_lines(node, ()))
    except yaml.YAMLError as error:
        document.mistakes.append(_syntax(error))
    finally:
        loader.dispose()
    return document


def _lines(node: yaml.Node, path: Path) -> Iterator[tuple[Path, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*path, index)
            yield here, value.start_mark.line + 1
            yield from _lines(value, here)


def _duplicates(node: yaml.Node) -> Iterator[Mistake]:
    """Keys that stand twice in one mapping: YAML readers silently keep the last."""
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in first:
                yield Mistake(line, f"{name!r} stands on line {first[name]} already")
            first.setdefault(name, line)
            children.append(value)
    elif isinstance(node, yaml.SequenceNode):
        children = list(node.value)
    for child in children:
        yield from _duplicates(child)


def _syntax(error: yaml.YAMLError) -> Mistake:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or str(error)
    return Mistake(mark.line + 1 if mark else 1, f"not YAML: {what}")
