"""The merge that audits, without Spark: its task gets Arrow batches and writes a Delta table and a key log."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace import lake, mask, sequence
from tailrace.apply.exceptions import Exceptions
from tailrace.apply.fold import OPER, SEQ
from tailrace.apply.keylog import SCHEMA
from tailrace.apply.keylog_rows import AT, MASK, Sheet
from tailrace.apply.rules import Rules
from tailrace.apply.targets.base import Outcome
from tailrace.apply.targets.delta_audit import Audit, Audited, AuditTask, LogPart
from tailrace.laketypes import schema_of
from tailrace.wire.keylog_values import Field

from ..spark.ruled_model import RELATION, Change, Model, history, logged

pytestmark = pytest.mark.unit
EXTRA = pa.schema([(MASK, pa.binary()), (AT, pa.timestamp("us", "UTC"))])
COLUMNS = schema_of(RELATION.columns)
HEADERS = 8
TIME = 2026010100000000


class Place:
    """A Delta table, its key log and exceptions, and the model beside them."""

    def __init__(self, root: Path, mode: str, on: Mapping[str, str], log: str = "all") -> None:
        self.root, self.rules, self.mode = root, Rules.of(mode, on), log
        self.path, self.log = str(root / "target"), str(root / "keylog")
        self.model = Model(mode, self.rules.on)
        self.sort = self.flagged = 0
        lake.create(self.path, COLUMNS)
        lake.create(self.log, SCHEMA)

    def apply(self, changes: Sequence[Change], *, shuffled: bool = True) -> Audited:
        rows = [row for c in changes for row in images(c)]
        if shuffled:
            random.Random(1).shuffle(rows)
        schema = pa.schema([(SEQ, pa.string()), (OPER, pa.string()), *EXTRA, *COLUMNS])
        sheet = Sheet(
            "1", "g", "s.t", 0, self.flagged, 0, tuple(Field(c.name, c.type) for c in RELATION.columns),
            tuple(range(HEADERS, HEADERS + 4)), ("lane", "id"), "<Dest>x</Dest>",
        )  # fmt: skip
        audit = Audit(
            "s.t", self.rules, Exceptions(str(self.root), "task"), sheet,
            LogPart(self.log, SCHEMA, sheet, self.mode),
        )  # fmt: skip
        upto = max((c.number for c in changes), default=0)
        task = AuditTask(self.path, "t", upto, ("lane", "id"), COLUMNS, EXTRA, None, audit)
        (told,) = list(task(iter([pa.RecordBatch.from_pylist(rows, schema)])))
        row = told.to_pylist()[0]
        outcome = Outcome(row["inserted"], row["updated"], row["deleted"], row["version"])
        done = Audited.from_json(row["told"], outcome)
        if done.part:
            lake.commit(self.log, [done.part], progress={})
        self.flagged = self.model.flagged
        return done

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(r.values()) for r in lake.read(self.path).to_pylist()), key=repr)

    def logged(self) -> list[dict[str, Any]]:
        return sorted(lake.read(self.log).to_pylist(), key=lambda r: r["keylog_sort"])

    def expect(self, changes: Sequence[Change]) -> None:
        for c in changes:
            assert self.model.apply(c.number, c.oper, c.old, c.values) is None

    def same(self, seed: object) -> None:
        assert self.rows() == sorted(self.model.state(), key=repr), seed
        assert logged(self.logged()) == self.model.log, seed


def images(change: Change) -> list[dict[str, Any]]:
    """Its rows; the mask of an image that lacks columns says which are there."""
    made = []
    for number, oper, values in change.images:
        some = mask.encode([HEADERS + i for i, f in enumerate(COLUMNS) if f.name in values])
        whole = len(values) == len(COLUMNS)
        row = {SEQ: sequence.make(TIME, number), OPER: oper, MASK: None if whole else some, AT: 0}
        made.append({**row, **{f.name: values.get(f.name) for f in COLUMNS}})
    return made


CASES = [
    ("strict", {}),
    ("upsert", {}),
    ("strict", {"insert_exists": "apply"}),
    ("strict", {"update_missing": "apply", "delete_missing": "ignore"}),
    ("upsert", {"insert_exists": "ignore", "update_missing": "ignore", "delete_missing": "apply"}),
    ("upsert", {"insert_exists": "log", "delete_missing": "log"}),
]


@pytest.mark.parametrize(("mode", "on"), CASES, ids=str)
def test_any_history_ends_as_row_by_row(tmp_path: Path, mode: str, on: Mapping[str, str]) -> None:
    for round_ in range(3):
        seed = random.randrange(10**6)
        changes = history(seed, 25, 10)
        first = len(changes) // 4
        cut = random.Random(seed).randrange(first + 1, len(changes))
        place = Place(tmp_path / str(round_), mode, on)
        for some in (changes[:first], changes[first:cut], changes[cut:]):
            place.expect(some)
            place.apply(some)
            place.same(f"seed {seed}, cut {cut}")
