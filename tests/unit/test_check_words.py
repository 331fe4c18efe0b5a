"""The linter of idioms, on texts written here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import check_words

pytestmark = pytest.mark.unit

IDIOMS = [
    ("It is read anew.", "anew"),
    ("It is read once more.", "once more"),
    ("Nobody has it.", "Nobody"),
    ("whoever made it", "whoever"),
    ("a file of its own", "of its own"),
    ("The task goes on.", "goes on"),
    ("all rows but for one", "but for"),
    ("so many rows", "so many"),
    ("The footer tells it.", "tells"),
    ("two looks of capture", "two looks"),
    ("One came twice.", "came"),
    ("where the target stands", "stands"),
    ("rows of before", "of before"),
    ("The file lacks a column.", "lacks"),
    ("a place in the log", "place"),
    ("None: there is none.", "there is none"),
    ("what it met", "it met"),
]
PLAIN = [
    "It is read again, and the task continues.",
    "The value comes from the log, and inserts come first.",
    "used in place of the file; decimal places; the merge takes place here",
    "B stands for before image",
    "Look up the key of a standalone table in its own file.",
]
MODULE = '''"""Reads files."""

def read(path):
    """What a file has.

    >>> tell(1)
    """
    raise ValueError(f"{path} lacks rows", "told", "`tell` it again")
'''
PAGE = """# Nobody

It goes
on, and `tells` [nothing](whoever.md).

```
somebody
```
<!-- generated -->
anew
<!-- /generated -->
It lies here.
"""


@pytest.mark.parametrize(("text", "words"), IDIOMS)
def test_an_idiom_in_a_text_is_found(text: str, words: str) -> None:
    assert [one.words for one in check_words.in_text(text, "x")] == [words]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_english_is_not_reported(text: str) -> None:
    assert list(check_words.in_text(text, "x", docstring=True)) == []


def test_a_module_is_searched_in_docstrings_and_messages() -> None:
    found = check_words.in_module(MODULE, "x.py")
    assert sorted((one.line, one.words) for one in found) == [(4, "What"), (8, "lacks")]


def test_a_page_is_searched_outside_code_addresses_and_generated_parts() -> None:
    found = check_words.in_page(PAGE, "x.md")
    assert sorted((one.line, one.words) for one in found) == [(1, "Nobody"), (3, "goes\non"), (12, "lies")]


@pytest.mark.parametrize(("number", "wrong", "hints"), [(1, 0, 1), (2, 0, 0), (3, 4, 0)])
def test_a_package_fails_only_above_its_baseline(number: int, wrong: int, hints: int) -> None:
    one = check_words.Finding("src/tailrace/apply/x.py", 1, "anew", "again")
    lines = check_words.compare({"apply": [one] * number}, {"apply": 2})
    assert tuple(map(len, lines)) == (wrong, hints)


def test_update_lowers_numbers_and_raises_none(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / check_words.BASELINE).write_text("# head\napply 3\nwire 1\n")
    one = check_words.Finding("x.py", 1, "anew", "again")
    check_words.write_baseline(tmp_path, {"apply": [one], "lake": [one], "wire": [one, one]})
    assert check_words.read_baseline(tmp_path) == {"apply": 1, "wire": 1}
