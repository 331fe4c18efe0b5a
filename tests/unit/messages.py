"""Builds pgoutput row messages from plain Python values, for tests that need images without a server."""

from __future__ import annotations

import struct

UNSENT = object()
"""A value the server did not send again (unchanged TOAST)."""


def _tuple(letter: bytes, values: list[object]) -> bytes:
    out = [letter, struct.pack(">H", len(values))]
    for v in values:
        if v is None:
            out.append(b"n")
        elif v is UNSENT:
            out.append(b"u")
        else:
            raw = str(v).encode()
            out.append(b"t" + struct.pack(">I", len(raw)) + raw)
    return b"".join(out)


def insert(relid: int, values: list[object]) -> bytes:
    return b"I" + struct.pack(">I", relid) + _tuple(b"N", values)


def update(
    relid: int, new: list[object], *, old: list[object] | None = None, key: list[object] | None = None
) -> bytes:
    before = _tuple(b"O", old) if old is not None else _tuple(b"K", key) if key is not None else b""
    return b"U" + struct.pack(">I", relid) + before + _tuple(b"N", new)


def delete(relid: int, *, old: list[object] | None = None, key: list[object] | None = None) -> bytes:
    image = _tuple(b"O", old) if old is not None else _tuple(b"K", key or [])
    return b"D" + struct.pack(">I", relid) + image
