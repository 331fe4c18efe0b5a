"""Octets as people write them: in the words of a key log, or of PostgreSQL."""

from __future__ import annotations

import pyarrow as pa

from .keylog_values import HEX, KeyLogField, of_column

FORMS = r"write its octets as the key log does (&#xFF01), or as PostgreSQL does (\xff01)"
"""What is taken, for hints."""
_BYTEA = "\\x"


def octets(text: str) -> bytes | None:
    r"""The octets that a text is; None if it is neither a key log's nor PostgreSQL's.

    >>> octets("&#xFF01"), octets(r"\xff01"), octets("ff01")
    (b'\xff\x01', b'\xff\x01', None)
    """
    written = HEX + text[len(_BYTEA) :] if text.startswith(_BYTEA) else text
    values, _ = of_column(pa.array([written]), KeyLogField("", "binary"))
    found: bytes | None = values[0].as_py()
    return found
