"""Reads the first rows of a vendor's tables without Spark: steps that formats share."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..model import mask
from .first_rows import Glance, TableSample
from .shape import find_columns

if TYPE_CHECKING:
    from .base import VendorTable

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def plain_rows(sample: TableSample, table: VendorTable, *, binary: str = "hex") -> list[dict[str, Any]]:
    """The rows under the declared names, values of text kinds as the declared types; invalid values are
    NULL."""
    names = find_columns(sample.columns, table, where=table.name)
    kinds = {c.name: c.type for c in table.columns}
    rows = sample.named(names)
    for row in rows:
        for name, value in row.items():
            row[name] = _as(value, kinds[name], binary)
        row.update(dict.fromkeys(kinds.keys() - row.keys()))
    return rows


def _as(value: Any, kind: str, binary: str) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        if kind in ("int", "bigint"):
            return int(text)
        if kind == "binary":
            return base64.b64decode(text) if binary == "base64" else bytes.fromhex(text)
    except ValueError:
        return None
    if kind == "boolean":
        return _BOOLEANS.get(text.lower())
    return value


def headed(
    name: str,
    sample: TableSample,
    heads: Mapping[str, str],
    key: Sequence[str],
    *,
    types: Mapping[str, str] | None = None,
    counted: Sequence[str] | None = None,
    little: bool | None = False,
    native: Collection[str] = (),
) -> Glance:
    """A change table whose columns are headers and data, with masks by ordinal.

    Args:
        name: the source table.
        sample: the change table's.
        heads: canonical header -> column.
        key: the key columns.
        types: types that are told, over those that the files have.
        counted: the columns that bits of masks count; all by default.
        little: whether the first byte of masks is the least significant; None: as the rows show.
        native: columns that are carried as headers under names of their own.
    """
    order = list(sample.columns if counted is None else counted)
    data = [c for c in sample.columns if c not in (*heads.values(), *native)]
    changes = sample.named(heads)
    masks = {"changed": "change_mask", "carried": "column_mask"}
    octets = [{n: _as(c.get(h), "binary", "hex") for n, h in masks.items()} for c in changes]
    if little is None:
        own = set(data)
        first = {i for i, c in enumerate(order) if c not in own}
        little = any(first & set(mask.decode(o["changed"])) for o in octets) and not sample.text
    for change, one in zip(changes, octets, strict=True):
        for said, bits in one.items():
            if bits is not None:
                marked = mask.decode(bits[::-1] if little else bits)
                change[said] = [order[n] for n in marked if n < len(order)]
    known = {**sample.types(), **(types or {})}
    return Glance(name, list(key), {c: known[c] for c in data}, changes)
