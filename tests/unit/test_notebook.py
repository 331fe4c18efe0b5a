"""The notebook in `examples/` runs, and shows what it says it shows."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit
NOTEBOOK = Path(__file__).parents[2] / "examples" / "questions.ipynb"


def test_the_notebook_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    shown = 0
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text("utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), space)  # noqa: S102
        wanted = "".join(line for output in cell["outputs"] for line in output["text"])
        assert said.getvalue() == wanted, f"cell {number}"
        shown += bool(wanted)
    assert shown > 5
