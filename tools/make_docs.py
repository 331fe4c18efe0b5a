"""Writes the pages that come from declarations in the code; with --check, says which are not current."""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.control.task import reference
from tailrace.wire.pgtypes import markdown

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"types.md": markdown, "task-file.md": reference}


def main() -> None:
    """Writes or checks every page."""
    stale = [name for name, make in PAGES.items() if not (DOCS / name).is_file() or _text(name) != make()]
    if "--check" in sys.argv:
        sys.exit(f"not current, run `make docs`: {', '.join(stale)}" if stale else None)
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        sys.stdout.write(f"wrote docs/{name}\n")


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
