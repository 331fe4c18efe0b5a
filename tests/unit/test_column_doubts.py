"""Columns whose older values are in doubt are named, until a baseline reads the table again."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.capture.column_doubts import find_doubts, identity_findings
from tailrace.cli import screen
from tailrace.config.task import Task, load
from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.operate.status import status
from tailrace.sources.postgresql.layout import UNKNOWN_COLUMN, UNKNOWN_VALUE
from tailrace.state.baselines import Baseline, read_baselines, write_baseline

pytestmark = pytest.mark.unit
AT = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
RELATION = Relation(7, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "shop.yaml").write_text("name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\n")
    made = load(tmp_path / "shop.yaml")
    taken = Baseline("s.t", RELATION, "0" * 40, 100, 0, AT, 2.0, after=3)
    write_baseline(made.control_path("baselines"), taken)
    return made


def test_a_column_that_is_proved_later_is_said_until_a_baseline_reads_it(task: Task) -> None:
    columns = [
        Column("note", -1, "text", "text", "string", note=UNKNOWN_COLUMN),
        Column("note", 5, "text", "text", "string", note=UNKNOWN_VALUE),
        Column("remark", 5, "text", "text", "string", note=UNKNOWN_VALUE),
    ]
    told = [replace(RELATION, columns=(*RELATION.columns, one)) for one in columns]
    for number, one in enumerate(told, 4):
        log.record_layouts(task.relations_path, [log.Layout(one, bytes(20), make(0, number))])
        found = next(t for t in status(task).tables if t.table == "s.t")
        name = one.columns[-1].name
        assert found.unknown_columns == ([name] if number == 4 else [])
        assert found.proved_columns == ([] if number == 4 else [name])
    seen = "\n".join(screen.reasons(status(task)))
    assert "s.t: the identity of columns remark was proved only by a later change" in seen
    assert "may have been replaced by NULL" in seen and "validate --repair" in seen and "resync" in seen
    shown = {t["table"]: t for t in json.loads(json.dumps(status(task).as_dict()))["tables"]}
    assert shown["s.t"]["proved_columns"] == ["remark"]
    baselines = read_baselines(task.control_path("baselines"))
    (warning,) = identity_findings(task, ["s.t"], baselines)
    assert (warning.level, warning.where) == ("warning", "s.t") and "remark" in warning.what
    for after, reads, left in ((5, told[0], ["remark"]), (5, told[1], []), (6, told[2], [])):
        again = Baseline("s.t", reads, "0" * 40, 100, 0, AT, 2.0, after=after, number=2)
        doubts = find_doubts(task, {"s.t": again}).get("s.t")
        assert (doubts.proved if doubts else []) == left


def test_a_new_column_whose_older_value_is_unknown_is_not_one_proved_later(task: Task) -> None:
    added = Column("note", 5, "text", "text", "string", note=UNKNOWN_VALUE)
    told = replace(RELATION, columns=(*RELATION.columns, added))
    log.record_layouts(task.relations_path, [log.Layout(told, bytes(20), make(0, 4))])
    assert find_doubts(task, read_baselines(task.control_path("baselines"))) == {}
