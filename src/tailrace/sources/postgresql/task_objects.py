"""Objects of a task at a PostgreSQL server, slot and publication, and their removal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base import SourceObject
from . import slot as pg_slot
from .connect import Session, quoted

_SLOT = "select plugin, database, active_pid from pg_replication_slots where slot_name = %s"
_IDENTITY = "select system_identifier::text, current_database()::text from pg_control_system()"


def kept(
    session: Session, slot: str, publication: str, stored: Mapping[str, Any] | None
) -> list[SourceObject]:
    """Returns the slot and the publication, if they exist.

    `stored` is the server that the task has read (None: none yet); only a slot on that server belongs to it.
    """
    found = []
    if row := session.execute(_SLOT, (slot,)).fetchone():
        plugin, database, reader = row
        system, here = session.execute(_IDENTITY).fetchone() or ("", "")
        known = stored or {}
        same = (known.get("system_identifier"), known.get("database")) == (system, here)
        _, size, _ = pg_slot.retained(session, slot)
        ours = same and plugin == "pgoutput" and database == here
        said = [f"process {reader} reads it"] if reader else []
        said += [] if ours else ["this task did not create it"]
        sql = f"SELECT pg_drop_replication_slot('{slot}')"
        found.append(SourceObject(f"slot {slot}", "; ".join(said), ours, sql, size))
    if (tables := pg_slot.published(session, publication)) is not None:
        ours = pg_slot.owned(session, publication)
        detail = ("of 1 table" if len(tables) == 1 else f"of {len(tables)} tables") + (
            "" if ours else "; the role does not own it"
        )
        name = quoted(publication)
        found.append(SourceObject(f"publication {publication}", detail, ours, f"DROP PUBLICATION {name}"))
    return found


def leave(session: Session, slot: str, publication: str, stored: Mapping[str, Any] | None) -> None:
    """Removes the objects that belong to the task."""
    for one in kept(session, slot, publication, stored):
        if not one.ours:
            continue
        if one.what.startswith("slot "):
            pg_slot.drop(session, slot)
        else:
            session.execute(one.sql.encode())
