"""Rows of `control/ddl_history`."""

from __future__ import annotations

import json

import pytest

from tailrace.capture import ddl_history
from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.sources.postgresql.layout import USING

pytestmark = pytest.mark.unit


def test_a_column_of_another_type_has_a_note() -> None:
    key = Column("id", 1, "integer", "int4", "int", key=True)
    narrow, wide = Column("n", 2, "integer", "int4", "int"), Column("m", 2, "bigint", "int8", "bigint")
    layouts = [
        log.Layout(Relation(1, "s", "t", "d", (key, column)), bytes(20), make(0, number))
        for number, column in enumerate((narrow, wide))
    ]
    first, then = (json.loads(r["DETAILS"]) for r in ddl_history.ddl_rows("task", {"s.t": layouts}, []))
    assert [list(one["columns"]) for one in (first, then)] == [["id", "n"], ["n"]]
    assert "note" not in first["columns"]["n"]
    changed = then["columns"]["n"]
    assert (changed["columnNewName"], changed["type"], changed["note"]) == ("m", "bigint", USING)
