"""The first rows of OpenEdge's tables, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...model import mask
from ...wire import cd_dump
from ..first_rows import Glance, TableSample
from ..folders import holds_files, places
from ..given import lists_in
from ..glances import plain_rows
from ..samples import sample
from .hidden import dumps_at, hidden_tables
from .options import OpenEdgeOptions, parse_numbers
from .plain_names import by_plain_name, is_dump, plain_name
from .policy import METADATA, POLICIES, CapturedTable, sources
from .reading import user_columns
from .tables import AFTER_UPDATE, CHANGE, KNOWN, OPER, TRACKING, knows

_TRACKING = "_cdc_change_tracking"
_HEADERS = {
    "_Tran-Id": "transaction_id", "_Time-Stamp": "timestamp", "_Recid": "recid", "_User-Name": "user_name",
    "_Partition-Id": "partition_id", "_Tenant-Id": "tenant_id",
}  # fmt: skip


def samples(path: str, options: OpenEdgeOptions) -> dict[str, TableSample]:
    """The tables under a path, including those whose names begin with `_`; policies and schema tables
    completely."""
    root = Path(path)
    hidden = hidden_tables(root)
    plain = not root.is_dir() or any(map(holds_files, root.glob("[!_.]*")))
    found = {} if is_dump(root.name) or not plain else places(path, hidden=hidden)
    found |= {p.name: p for p in hidden}
    return {n: sample(p, every=plain_name(n) in METADATA, options=options) for n, p in found.items()}


def dumps(path: str) -> list[cd_dump.TablePolicy]:
    """The policies of `.cd` files at a path."""
    read = (cd_dump.read(f.read_bytes(), where=f.name) for f in dumps_at(Path(path)))
    return [p for dump in read for p in dump.policies]


def glance(tables: Mapping[str, TableSample], options: OpenEdgeOptions, path: str) -> list[Glance]:
    """The first rows of change tables and tracking, by source table."""
    plain = by_plain_name(tables)
    images = {n: s for n, s in tables.items() if plain_name(n) not in KNOWN and knows(s.columns) == 1.0}
    metadata = {n: plain_rows(tables[plain[n]], KNOWN[n]) for n in METADATA if n in plain}
    tracked = plain_rows(tables[plain[_TRACKING]], TRACKING) if _TRACKING in plain else []
    if not images and not tracked:
        return []  # only policies and schema: no changes
    found = sources(
        metadata,
        {n: user_columns(s.columns) for n, s in images.items()},
        keys=lists_in(options.keys),
        numbers=parse_numbers(options.numbers),
        dumped=dumps(path),
    )
    mine = {s.name: [r for r in tracked if _is_of(r, s, len(found) == 1)] for s in found}
    return [_one(s, images, mine[s.name], options.chosen) for s in found]


def _is_of(row: Mapping[str, Any], source: CapturedTable, alone: bool) -> bool:
    """Whether a tracking row belongs to a source table; as `shares` decides it for rows in Spark."""
    ids = {r["_Policy-Id"] for r in source.rows.get(POLICIES, ())}
    if source.number is not None or ids:
        numbered = source.number is not None and row["_Source-Table-Number"] == source.number
        return numbered or row["_Policy-Id"] in ids
    return alone


def _one(
    source: CapturedTable,
    images: Mapping[str, TableSample],
    tracked: list[dict[str, Any]],
    tenant: int | None,
) -> Glance:
    places = {p: c for c, p in source.positions.items()}
    rows: list[dict[str, Any]] = []
    types: dict[str, str] = {}
    if source.change_table is not None:
        rows = plain_rows(images[source.change_table], CHANGE)
        own = set(source.columns)
        types = {c: t for c, t in images[source.change_table].types().items() if c in own}
    by_number = {r["_Change-Sequence"]: r for r in tracked}
    shown = {r["_Change-Sequence"] for r in rows}
    # Halves of a split record are one image.
    rows = list({(r["_Change-Sequence"], r["_Operation"]): r for r in reversed(rows)}.values())[::-1]
    rows += [r for r in tracked if r["_Change-Sequence"] not in shown]
    changes = []
    for row in rows:
        oper = OPER.get(row["_Operation"])
        other = by_number.get(row["_Change-Sequence"], {})
        if oper is None or (tenant is not None and other.get("_Tenant-Id") not in (None, tenant)):
            continue
        both = {**row, **{k: v for k, v in other.items() if v is not None and k != "_Operation"}}
        change = {h: both.get(n) for n, h in _HEADERS.items()}
        change |= {"change_seq": f"{row['_Change-Sequence'] or 0:035d}", "change_oper": oper}
        field_map = other.get("_Change-FieldMap") if row["_Operation"] == AFTER_UPDATE else None
        if field_map is not None:
            change["changed"] = [places[n] for n in mask.decode_field_map(field_map) if n in places]
        changes.append(change)
    return Glance(source.name, list(source.key), {**types, **source.types}, changes)
