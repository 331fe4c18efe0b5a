"""Names of folders. By itself, so that the task file is read without loading what reads tables."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def file_name(table: str) -> str:
    """A table's name as a folder's: letters, digits, `_`, `.`, `-` stay, others become codes between `~`.

    >>> file_name("public.orders"), file_name('sales.Größe 1/2')
    ('public.orders', 'sales.Gr~f6~~df~e~20~1~2f~2')
    """
    return _UNSAFE.sub(lambda found: f"~{ord(found[0]):x}~", table)
