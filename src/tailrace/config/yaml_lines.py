"""YAML with line numbers: the values of a file, and the line of each key and value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

_MOST = 100_000
"""Maximum number of nodes in a document."""
_DEEPEST = 100
"""Maximum depth of nested brackets."""
Path = tuple[str | int, ...]
"""Path of a value: keys and list indexes from the top, e.g. `("source", "tables", 0)`."""


@dataclass(frozen=True)
class Mistake:
    """A mistake in a file: the line (from 1) and a message."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


@dataclass
class Document:
    """A parsed YAML text.

    Attributes:
        data: its values; None when the text is not YAML (then `mistakes` says why).
        lines: path of a value -> the line of its key, or of the value itself in a list.
        mistakes: what is wrong with the text as YAML: syntax, and keys that stand twice.
    """

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of that value, or of the nearest enclosing one that is in the file.

        >>> doc = parse("{a: 1, b: {c: [2, 3]}}")
        >>> doc.data, doc.line(("b", "c", 1)), doc.line(("b", "missing")), doc.line(("x",))
        ({'a': 1, 'b': {'c': [2, 3]}}, 1, 1, 1)
        """
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Loader(yaml.SafeLoader):
    """Nested brackets cost the square of their depth, so the depth is limited."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - as in the library
        if self.flow_level >= _DEEPEST:
            raise yaml.scanner.ScannerError(None, None, "it is nested too deeply", self.get_mark())
        super().fetch_flow_collection_start(TokenClass)


def parse(text: str) -> Document:
    """Parses a YAML text; never raises because of its contents."""
    document = Document()
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:  # characters that YAML does not allow
        document.mistakes.append(_syntax(error))
        return document
    try:
        node = loader.get_single_node()
        if node is not None and not _bounded(node):
            document.mistakes.append(Mistake(1, "aliases (*name) make it endless, or far too large"))
        elif node is not None:
            document.mistakes += _duplicates(node)
            document.data = loader.construct_document(node)
            document.lines.update(_lines(node, ()))
    except yaml.YAMLError as error:
        document.mistakes.append(_syntax(error))
    except RecursionError:
        document.mistakes.append(Mistake(1, "it is nested too deeply"))
    except (ValueError, OverflowError) as error:  # of a scalar that looks like a number or a date
        document.mistakes.append(Mistake(1, f"a value that YAML cannot read: {error}; put it in quotes"))
    finally:
        loader.dispose()
    return document


def _bounded(root: yaml.Node) -> bool:
    """Whether the number of nodes is within bounds, counting those behind aliases each time."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = _MOST + 1  # while it is inside itself
            pairs = node.value if isinstance(node, yaml.CollectionNode) else ()
            children = (n for p in pairs for n in (p if isinstance(p, tuple) else (p,)))
            sizes[id(node)] = 1 + sum(map(size, children))
        return sizes[id(node)]

    return size(root) <= _MOST


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
    """Duplicate keys in one mapping: YAML readers silently keep the last."""
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in first:
                yield Mistake(line, f"{name!r} is already on line {first[name]}")
            first.setdefault(name, line)
            children.append(value)
    elif isinstance(node, yaml.SequenceNode):
        children = list(node.value)
    for child in children:
        yield from _duplicates(child)


def _syntax(error: yaml.YAMLError) -> Mistake:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return Mistake(mark.line + 1 if mark else 1, f"not YAML: {what}")
