"""The link checker itself, on pages written here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

TOOL = Path(__file__).parents[2] / "tools" / "check_links.py"

PAGE = """# One page

[good](docs/other.md) [far](https://example.org/none) [mail](mailto:a@b) `[code](none.md)`
[heading](docs/other.md#a-second--heading-1) [here](#one-page) [anchor](docs/other.md#mark "title")
[gone](docs/none.md) ![picture](docs/none.svg)
[no heading](docs/other.md#third)

```sh
[in a fence](none.md)
```

[named]: docs/lost.md
"""
OTHER = """# Other
## A second / heading
## A `second` [/](x) heading
<a id="mark"></a>
```
# third
```
[back](../README.md)
"""


def check(folder: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, str(TOOL), str(folder)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_links_that_lead_nowhere_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs" / "other.md").write_text(OTHER.replace(" [/](x)", " [/](../README.md)"))
    assert check(tmp_path) == (
        1,
        [
            "README.md:5: there is no docs/none.md",
            "README.md:5: there is no docs/none.svg",
            "README.md:6: other.md has no heading #third",
            "README.md:12: there is no docs/lost.md",
        ],
    )


def test_good_links_are_silent(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A\n[a](#a) [self](README.md)\n")
    assert check(tmp_path) == (0, [])
