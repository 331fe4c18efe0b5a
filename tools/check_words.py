"""Finds idioms that a reader of technical English stumbles over, and names a plain wording for each.

    python tools/check_words.py              compare with tools/words_baseline.txt; code 1 if a number rose
    python tools/check_words.py --list NAME  list the findings of `docs`, a package (`apply`) or `errors.py`
    python tools/check_words.py --update     write lower numbers into the baseline; it never raises one

Checks docstrings and string literals of src/tailrace, and the prose of Markdown pages without code and
generated parts. A package may have as many findings as the baseline allows, pages none. When code moves to
another package, move its number in the baseline by hand.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BASELINE = Path("tools/words_baseline.txt")
DOCS = "docs"

_IDIOMS = {
    r"\banew\b|\bonce more\b": "again",
    r"\b(?:some|no|any|every)body\b|\bwhoever\b": "the caller, another process, the operator",
    r"\bof (?:its|their|our|your|my|one's) own\b": "its own ...",
    r"\b(?:of|its) (?:this|that|its|their) kind\b|\bits kind\b": "of this type",
    r"\b(?:go|goes|going|went) on\b": "continue",
    r"\bbut for\b|\b(?:all|none|nothing) but\b": "except",
    r"\bso many\b": "the number of",
    r"\btells?\b|\btold\b|\btelling\b": "report, identify, distinguish, detect",
    r"\blook(?:s|ed|ing)? at\b|\b(?:a|one|two|each|every) looks?\b": "read, scan, check, inspect",
    r"\b(?:comes|came)\b(?! (?:from|with|first|last)\b)": "arrive, follow",
    r"\b(?:stands|stood)\b(?! for\b)": "is, is at",
    r"\b(?:lies|lives)\b": "is, is stored",
    r"\bof before\b": "earlier",
    r"\bwhat is left of\b": "the rest of",
    r"\bthere (?:is|are) none\b": "has no ...",
    r"\b(?:met|meets?) (?:a row|no row|the row)\b|\b(?:it|change) met\b": "find a row, the conflict",
    r"\bwhat bec(?:ame|omes) of\b": "the outcome of",
    r"\black(?:s|ed)?\b": "has no",
    r"(?<!in\s)(?<!take\s)(?<!takes\s)(?<!took\s)(?<!decimal\s)\bplaces?\b": "position, path, location",
    r"\b(?:a|the|one|each|every) taking\b|\btakings\b": "snapshot, baseline",
    r"\bslices?\b": "batch",
    r"\bstretch(?:es)?\b": "range",
    r"\bbags?\b": "keyless table, rows",
    r"\bmend(?:s|ed)?\b": "repair",
    r"\blanes?\b": "threads",
    r"\bwithout a word\b": "silently",
    r"\bput aside\b|\bkept aside\b": "reject",
    r"\bstand(?:s|ing)? still\b": "suspended, stopped",
}
_FIRST_WORDS = {
    r"\A(?:What|How)\b": "begin with a noun or a verb: 'Outcome of', 'Returns'",
    r"\AThe same (?:of|for)\b": "repeat the noun",
}
# Words of an idiom may be on two lines.
IDIOMS = [(re.compile(k.replace(" ", r"\s+"), re.IGNORECASE), plain) for k, plain in _IDIOMS.items()]
FIRST_WORDS = [(re.compile(pattern), plain) for pattern, plain in _FIRST_WORDS.items()]

_MARKUP = re.compile(
    r"^(```|~~~).*?^\1|<a [^>]*>|<!-- generated -->.*?<!-- /generated -->|`[^`\n]*`|\]\([^)\n]*\)",
    re.MULTILINE | re.DOTALL,
)
_CODE = re.compile(r"`[^`]*`|^ *(?:>>>|\.\.\.) .*$", re.MULTILINE)
_WHOLLY_GENERATED = {"types.md", "task-file.md", "types-postgresql.md", "exit-codes.md", "outcomes.md"}


class Finding(NamedTuple):
    """One idiom in one file."""

    path: str
    line: int
    words: str
    plain: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words!r}: write {self.plain}"


def in_text(text: str, path: str, line: int = 1, *, docstring: bool = False) -> Iterator[Finding]:
    """Yields the idioms of a text whose first line is `line` of the file."""
    for pattern, plain in IDIOMS + (FIRST_WORDS if docstring else []):
        for match in pattern.finditer(text):
            yield Finding(path, line + text.count("\n", 0, match.start()), match[0], plain)


def in_page(text: str, path: str) -> Iterator[Finding]:
    """Yields the idioms of a Markdown page outside code, links' addresses and generated parts."""
    yield from in_text(_MARKUP.sub(_blank, text), path)


def in_module(source: str, path: str) -> Iterator[Finding]:
    """Yields the idioms of a module's docstrings and of its string literals of at least two words."""
    tree = ast.parse(source)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            prose = _CODE.sub(_blank, node.value)
            yield from in_text(prose, path, node.lineno, docstring=node in docstrings)


def findings(root: Path) -> dict[str, list[Finding]]:
    """Returns the findings of each package of src/tailrace and, under `docs`, of the pages."""
    found: dict[str, list[Finding]] = {DOCS: []}
    for file in _pages(root):
        found[DOCS] += in_page(file.read_text("utf-8"), file.relative_to(root).as_posix())
    package = root / "src" / "tailrace"
    for file in sorted(package.rglob("*.py")):
        own = found.setdefault(file.relative_to(package).parts[0], [])
        own += in_module(file.read_text("utf-8"), file.relative_to(root).as_posix())
    return found


def read_baseline(root: Path) -> dict[str, int]:
    """Returns the number of findings that each package may have; zero for a package that is not named."""
    lines = (root / BASELINE).read_text("utf-8").splitlines()
    return {name: int(number) for name, number in (line.split() for line in lines if line[:1] != "#")}


def write_baseline(root: Path, found: dict[str, list[Finding]]) -> None:
    """Lowers the numbers of the baseline to those found."""
    allowed = read_baseline(root)
    lower = {name: min(allowed.get(name, 0), len(own)) for name, own in sorted(found.items())}
    text = "# Idioms that tools/check_words.py still allows in each package. Numbers only fall.\n"
    (root / BASELINE).write_text(text + "".join(f"{n} {k}\n" for n, k in lower.items() if k), "utf-8")


def compare(found: dict[str, list[Finding]], allowed: dict[str, int]) -> tuple[list[str], list[str]]:
    """Returns the lines that make the check fail, and hints for a baseline that is higher than needed."""
    wrong, hints = [], []
    for name, own in found.items():
        limit = allowed.get(name, 0)
        if len(own) > limit:
            rule = "the number may only fall" if limit else "none are allowed"
            wrong += [*map(str, own), f"{name}: {len(own)} idioms instead of at most {limit}; {rule}"]
        elif len(own) < limit:
            hints.append(f"{name}: {len(own)} idioms of {limit} allowed; lower it: check_words.py --update")
    return wrong, hints


def main() -> None:
    """Prints findings above the baseline; ends with code 1 if there are any."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--list", metavar="NAME", help="list the findings of a package or of docs")
    options.add_argument("--update", action="store_true", help="lower the baseline")
    given = options.parse_args()
    found = findings(ROOT)
    if given.list:
        sys.stdout.write("".join(f"{one}\n" for one in found.get(given.list, [])))
        return
    if given.update:
        write_baseline(ROOT, found)
    wrong, hints = compare(found, read_baseline(ROOT))
    sys.stdout.write("".join(f"{line}\n" for line in wrong or hints))
    sys.exit(1 if wrong else 0)


def _pages(root: Path) -> list[Path]:
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    return sorted(p for p in pages if p.name not in _WHOLLY_GENERATED)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


if __name__ == "__main__":
    main()
