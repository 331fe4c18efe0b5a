"""Checks that no file imports one that imports it, be it for types or within a function.

Which package may import which is in `pyproject.toml`, and checked by import-linter.
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

import grimp


def main() -> int:
    """The exit code: 1 if files import each other in a circle."""
    graph = grimp.build_graph("tailrace", cache_dir=None)
    files = graph.modules
    sys.stdout.write(f"{len(files)} files\n")
    try:
        TopologicalSorter({f: graph.find_modules_directly_imported_by(f) for f in files}).prepare()
    except CycleError as error:
        sys.stdout.write(f"they import each other: {' <- '.join(error.args[1])}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
