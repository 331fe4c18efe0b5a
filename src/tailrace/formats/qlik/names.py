"""Names of Qlik's files (spec/qlik.md §6)."""

from __future__ import annotations

import re

ENDINGS = {
    ".parquet": "parquet", ".csv": "csv", ".csv.gz": "csv", ".json": "json", ".json.gz": "json",
    ".jsonl": "json", ".jsonl.gz": "json",
}  # fmt: skip
"""File ending -> kind."""
DFM = ".dfm"
LOAD = re.compile(r"LOAD(_?\w+?_)?\d+", re.IGNORECASE)
CHANGES = re.compile(r"\d{8}-\d{9,10}(_\w+)?")


def stem_of(name: str) -> str:
    """A file's name without the extensions of data and DFM files.

    >>> stem_of("20211201-112233444.csv.gz"), stem_of("LOAD00000001.dfm")
    ('20211201-112233444', 'LOAD00000001')
    """
    lower = name.lower()
    for end in sorted([*ENDINGS, DFM], key=len, reverse=True):
        if lower.endswith(end):
            return name[: -len(end)]
    return name


def kind_of(name: str) -> str | None:
    """The kind of a data file by its name; None for other files.

    >>> kind_of("LOAD00000001.csv.gz"), kind_of("LOAD00000001.dfm")
    ('csv', None)
    """
    lower = name.lower()
    return next((kind for end, kind in ENDINGS.items() if lower.endswith(end)), None)
