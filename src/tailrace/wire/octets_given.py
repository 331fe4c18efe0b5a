"""Binary values as users write them, in the notation of a key log or of PostgreSQL."""

from __future__ import annotations

import pyarrow as pa

from .keylog_values import HEX, KeyLogField, of_column

FORMS = r"write its bytes as in a key log (&#xFF01) or in PostgreSQL (\xff01)"
"""Hint with the accepted notations."""
_BYTEA = "\\x"


def octets(text: str) -> bytes | None:
    r"""Returns the bytes of a text, or None if it has neither notation.

    >>> octets("&#xFF01"), octets(r"\xff01"), octets("ff01")
    (b'\xff\x01', b'\xff\x01', None)
    """
    written = HEX + text[len(_BYTEA) :] if text.startswith(_BYTEA) else text
    values, _ = of_column(pa.array([written]), KeyLogField("", "binary"))
    found: bytes | None = values[0].as_py()
    return found
