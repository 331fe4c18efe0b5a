"""Writes the pages that come from declarations in the code, and the generated parts of pages that people
write; with --check, says which are not current."""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace import formats
from tailrace.cli.exit_codes import markdown as exit_codes
from tailrace.config.reference import reference
from tailrace.engine.rule_docs import markdown as rules
from tailrace.engine.rule_docs import outcomes_markdown
from tailrace.formats.describe import markdown as declared
from tailrace.formats.describe import overview
from tailrace.runtime.metrics import markdown as metrics
from tailrace.targets.postgresql.types import markdown as postgresql_types
from tailrace.wire.pgtypes import markdown

DOCS = Path(__file__).parents[1] / "docs"
OPENS, CLOSES = "<!-- generated -->\n", "<!-- /generated -->"


def pages() -> dict[str, str]:
    """Every page as it should be, by its path under docs."""
    made = {"types.md": markdown(), "task-file.md": reference(), "types-postgresql.md": postgresql_types()}
    made |= {"exit-codes.md": exit_codes(), "outcomes.md": outcomes_markdown()}
    parts = {"formats/README.md": overview(), "apply.md": rules(), "metrics.md": metrics()}
    parts |= {f"formats/{name}.md": declared(formats.get(name)) for name in formats.OURS}
    return made | {name: _filled(name, part) for name, part in parts.items()}


def _filled(name: str, part: str) -> str:
    """A page with its generated part, which stands between two comments."""
    text = _text(name)
    head, opens, rest = text.partition(OPENS)
    _, closes, tail = rest.partition(CLOSES)
    if not opens or not closes:
        sys.exit(f"docs/{name} has no place for its generated part: {OPENS.strip()} ... {CLOSES}")
    return f"{head}{OPENS}\n{part.strip()}\n\n{CLOSES}{tail}"


def main() -> None:
    """Writes or checks every page."""
    wanted = pages()
    stale = [name for name, text in wanted.items() if not (DOCS / name).is_file() or _text(name) != text]
    if "--check" in sys.argv:
        sys.exit(f"not current, run `make docs`: {', '.join(stale)}" if stale else None)
    for name in stale:
        (DOCS / name).write_text(wanted[name], encoding="utf-8")
        sys.stdout.write(f"wrote docs/{name}\n")


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
