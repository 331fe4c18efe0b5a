"""Checks the pages of this repository: links lead to existing files and headings, and named modules exist.

    python tools/check_links.py [FOLDER]

Looks at every Markdown file that git knows or would add. Addresses (`https://...`) are not visited.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
_MODULE = re.compile(r"`([\w/]+/\w+\.py)`")
_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def pages(folder: Path) -> list[Path]:
    """The Markdown files of a repository, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:  # not a git repository: a source archive
        return sorted(p for p in folder.rglob("*.md") if not any(x.startswith(".") for x in p.parts))
    return [folder / name for name in sorted(set(listed.stdout.splitlines())) if (folder / name).is_file()]


def links(text: str) -> list[tuple[int, str]]:
    """(line, address) of every link in a page, code left out."""
    # Blanks instead of code: positions, and so line numbers, stay.
    plain = _FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    plain = _CODE.sub(lambda m: "x" * len(m[0]), plain)
    found = ((plain.count("\n", 0, m.start()) + 1, m[1] or m[2]) for m in _LINK.finditer(plain))
    return [(line, to) for line, to in found if not re.match(r"[a-z][a-z0-9+.-]*:|//", to)]


def anchors(text: str) -> set[str]:
    """The anchors of a page: explicit ones, and its headings as GitHub names them."""
    plain = _FENCE.sub("", text)
    found = set(_ANCHOR.findall(plain))
    for heading in _HEADING.findall(plain):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = 0
        while (name if not number else f"{name}-{number}") in found:
            number += 1
        found.add(name if not number else f"{name}-{number}")
    return found


def broken(folder: Path) -> list[str]:
    """One line for each link, and each module in code quotes, that does not exist: `page:line: what`."""
    wrong = []
    for page in pages(folder):
        text = page.read_text(encoding="utf-8")
        for module in _MODULE.finditer(text):
            if not any((root / module[1]).exists() for root in (folder, folder / "src" / "tailrace")):
                line = text.count("\n", 0, module.start()) + 1
                wrong.append(f"{page.relative_to(folder)}:{line}: there is no {module[1]}")
        for line, to in links(text):
            path, _, anchor = unquote(to).partition("#")
            goal = (page.parent / path).resolve() if path else page
            at = f"{page.relative_to(folder)}:{line}"
            if not goal.exists():
                wrong.append(f"{at}: there is no {path}")
            elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text(encoding="utf-8")):
                wrong.append(f"{at}: {goal.name} has no heading #{anchor}")
    return wrong


def main() -> None:
    """Prints what is broken; code 1 when anything is."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    wrong = broken(folder)
    for line in wrong:
        sys.stdout.write(f"{line}\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
