"""Folder names of tables. A separate module, so that the task file is read without loading table code."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def file_name(table: str) -> str:
    """Returns a folder name for a table: letters, digits, `_`, `.`, `-` stay, other characters become codes
    between `~`.

    >>> file_name("public.orders"), file_name('sales.Größe 1/2')
    ('public.orders', 'sales.Gr~f6~~df~e~20~1~2f~2')
    """
    return _UNSAFE.sub(lambda found: f"~{ord(found[0]):x}~", table)
