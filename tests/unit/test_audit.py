"""The merge of a batch into a Delta table and a key log, without Spark: by one task, and by shards."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tailrace.apply.target_mode import relation_of
from tailrace.engine.log_rows import KeyLogHeader
from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError
from tailrace.keylog.control_tables import EXCEPTIONS, ApplyExceptions
from tailrace.keylog.key_log import SCHEMA
from tailrace.lake import delta as lake
from tailrace.model import mask, sequence
from tailrace.model.change import Relation
from tailrace.model.positions import ChangeRange, Position, order_key
from tailrace.model.types import schema_of
from tailrace.targets import text_renderer
from tailrace.targets.audit import Audit, KeyLogOutput
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.tables import DeltaTables
from tailrace.targets.lake.merge import MergeTask
from tailrace.targets.lake.sharded_merge import ShardedMerge
from tailrace.targets.lake.task_local_merge import TaskLocalMerge
from tailrace.targets.merge_result import MergeResult
from tailrace.targets.plans import Limits
from tailrace.wire.keylog_values import KeyLogField

from ..examples import rounds
from ..spark.rules_model import RELATION, Change, Model, history, logged, nulled

pytestmark = pytest.mark.unit
TABLES = DeltaTables("")
COLUMNS = schema_of(RELATION.columns)
HEADERS, KEY = 4, ("lane", "id")
STORED = pa.schema(
    [
        ("header__change_seq", pa.string()), ("header__change_oper", pa.string()),
        ("header__column_mask", pa.binary()), ("header__timestamp", pa.timestamp("us", "UTC")), *COLUMNS,
    ]
)  # fmt: skip
TIME = 2026010100000000


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are rendered in parts and by threads, as those of large batches are."""
    monkeypatch.setattr(text_renderer, "_ROWS", 3)
    monkeypatch.setattr(text_renderer, "_MIN_BYTES", 500)


class Place:
    """A Delta table, its key log and exceptions, and the model for them."""

    def __init__(self, root: Path, mode: str, on: Mapping[str, str], log: str = "all") -> None:
        self.root, self.rules, self.mode = root, Rules.of(mode, on), log
        self.path, self.log = str(root / "target"), str(root / "keylog")
        self.model = Model(mode, self.rules.on)
        self.exceptions: ApplyExceptions = ApplyExceptions(str(root), "task")
        self.relation, self.flagged = RELATION, 0
        self.memory: int | None = None
        marks = [pa.field("_deleted", pa.string())] if mode == "soft_delete" else []
        self.columns = pa.schema([*COLUMNS, *marks])
        lake.create(self.path, self.columns)
        lake.create(self.log, SCHEMA)

    def apply(self, changes: Sequence[Change]) -> MergeResult:
        done = self.merge(self.batch(changes))
        assert isinstance(done, MergeResult)
        lake.commit(self.log, list(done.parts), progress={})
        self.flagged = self.model.flagged
        return done

    def merge(self, one: ChangeBatch) -> MergeResult | str | None:
        """By one task; by shards if `memory` says so."""
        if self.memory is not None:
            return ShardedMerge(TABLES, None, Limits(), self.memory).merged(one)  # type: ignore[arg-type, return-value]
        return TaskLocalMerge(
            one, TABLES, TABLES.open(self.path), order_key(lake.progress(self.path, "t")), None
        ).run()

    def batch(self, changes: Sequence[Change], end: int | None = None) -> ChangeBatch:
        """A batch of changes that are stored in any order, in two files."""
        rows = [row for c in changes for row in images(c)]
        random.Random(1).shuffle(rows)
        numbers, files = [c.number for c in changes], list[str]()
        for some in filter(None, (rows[::2], rows[1::2])):
            files.append(f"{self.root}/{uuid4().hex}.parquet")
            pq.write_table(pa.Table.from_pylist(some, STORED), files[-1])
        return ChangeBatch(
            "s.t", self.relation, ChangeRange(numbers[0] - 1, end or numbers[-1]), target=self.path,
            audit=self.audit(numbers[0] - 1), layout=self.layout, app_id="t", files=tuple(files), columns=STORED,
            appends=self.rules.mode == "archive",
        )  # fmt: skip

    @property
    def layout(self) -> Relation:
        return relation_of(self.relation, self.rules)

    def audit(self, after: int) -> Audit:
        header = KeyLogHeader(
            "1", "g", "s.t", 0, self.flagged, 0, tuple(KeyLogField(c.name, c.type) for c in RELATION.columns),
            (), KEY, "<Dest>x</Dest>",
        )  # fmt: skip
        exceptions = self.exceptions
        return Audit(
            "s.t", self.rules, exceptions, header, KeyLogOutput(self.log, SCHEMA, header, self.mode),
            exceptions.counts("s.t", after, self.rules.limits), after,
        )  # fmt: skip

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(r.values()) for r in lake.read(self.path).to_pylist()), key=repr)

    def logged(self) -> list[dict[str, Any]]:
        return sorted(lake.read(self.log).to_pylist(), key=lambda r: r["keylog_sort"])

    def same(self, seed: object) -> None:
        assert self.rows() == sorted(self.model.state(), key=repr), seed
        assert logged(self.logged()) == self.model.log, seed


def images(change: Change) -> list[dict[str, Any]]:
    """Its rows; the mask of an image that lacks columns says which are there."""
    made = []
    for number, oper, values in change.images:
        some = mask.encode([HEADERS + i for i, f in enumerate(COLUMNS) if f.name in values])
        whole = len(values) == len(COLUMNS) or oper == "T"
        row = [sequence.make(TIME, number), oper, None if whole else some, 0]
        made.append(dict(zip(STORED.names, row, strict=False)) | {k: values.get(k) for k in COLUMNS.names})
    return made


CASES = [
    ("strict", {}),
    ("upsert", {}),
    ("strict", {"insert_exists": "apply"}),
    ("strict", {"update_missing": "apply", "delete_missing": "ignore"}),
    ("upsert", {"insert_exists": "ignore", "update_missing": "ignore", "delete_missing": "apply"}),
    ("upsert", {"insert_exists": "log", "delete_missing": "log", "data_error": "ignore"}),
    ("soft_delete", {"data_error": "log"}),
    ("soft_delete", {"update_missing": "log", "insert_exists": "log"}),
]


class Applies(Protocol):
    """A target under an audited merge, and its model."""

    model: Model

    def apply(self, changes: Sequence[Change]) -> MergeResult | str: ...


def until_done(place: Applies, changes: Sequence[Change]) -> None:
    """Applies changes; one at which they end is taken out, and what comes after it goes on."""
    left = list(changes)
    while left:
        ends = (n for n, c in enumerate(left) if place.model.apply(c))
        at = next(ends, len(left))
        done, bad = place.apply(left), left[at : at + 1]
        assert isinstance(done, MergeResult)
        assert done.ends == ((seq(bad[0].number), "data_error", "stop") if bad else None)
        assert done.end == (left[at - 1].number if at else None)
        left = left[at + 1 :]


ONE_TASK, TWO_SHARDS, MANY_SHARDS = None, 1 << 30, 20_000
"""Memory of a merge, by which it is one task or shards."""


@pytest.mark.parametrize(
    ("mode", "on", "memory"),
    [
        *((*case, ONE_TASK) for case in CASES),
        *((*case, TWO_SHARDS) for case in CASES[1::4]),
        *((*case, MANY_SHARDS) for case in CASES[::4]),
    ],
    ids=str,
)
def test_any_history_ends_as_row_by_row(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    on: Mapping[str, str],
    memory: int | None,
) -> None:
    monkeypatch.setattr(text_renderer, "_ROWS", 25)  # batches are of some hundred
    for round_ in range(rounds(1)):
        seed = random.randrange(10**6)
        changes = nulled(history(seed, 25, 10, truncate=not round_ % 2))
        first = len(changes) // 4
        cut = random.Random(seed).randrange(first + 1, len(changes))
        place = Place(tmp_path / str(round_), mode, on)
        place.memory = memory
        for some in (changes[:first], changes[first:cut], changes[cut:]):
            until_done(place, some)
            place.same(f"seed {seed}, cut {cut}")


def test_tables_of_one_job_read_their_own_changes(tmp_path: Path) -> None:
    """A batch has the numbers (1, 3] at positions from "B" on; a table whose key is NULL fails alone."""
    rows = [(1, "A", "1"), (2, "A", "2"), (2, "B", "3"), (3, "B", "4"), (4, "B", "5")]
    columns = {
        "header__change_seq": [sequence.make(TIME, n) for n, _, _ in rows],
        "header__change_oper": ["I"] * len(rows),
        "header__stream_position": [p for _, p, _ in rows],
        "lane": pa.array([0] * len(rows), pa.int32()), "id": [k for _, _, k in rows], "b": ["x"] * len(rows),
    }  # fmt: skip
    todo = []
    for name in ("good", "bad", "new"):
        place = Place(tmp_path / name, "strict", {})
        changes = pa.table(columns if name != "bad" else columns | {"id": pa.nulls(len(rows), pa.string())})
        lake.append(f"{tmp_path}/{name}/changes", changes)
        target = place.path if name != "new" else f"{tmp_path}/nothing"
        todo.append(
            ChangeBatch(
                "s.t", RELATION, ChangeRange(1, 3), f"{tmp_path}/{name}/changes", Position("B"), target=target, app_id="t"
            )
        )  # fmt: skip
    good, bad, new = map(MergeTask(TABLES, Limits(), None), todo)
    assert isinstance(good, MergeResult) and good.outcome.inserted == 2
    assert lake.progress(str(tmp_path / "good" / "target"), "t") == 3
    found = lake.read(str(tmp_path / "good" / "target")).to_pylist()
    assert sorted(found, key=repr) == [{"lane": 0, "id": k, "a": None, "b": "x"} for k in ("3", "4")]
    assert isinstance(bad, ApplyError) and bad.what.startswith("a change has NULL in the row key (lane, id)")
    assert lake.read(str(tmp_path / "bad" / "target")).num_rows == 0
    assert new is None


@pytest.mark.parametrize(
    ("keys", "limit", "done"),
    [
        ("1", 1.5, True),  # one file of four is rewritten
        ("14", 1.5, False),
        ("14", 2.5, True),
        ("1", 0.5, False),  # no file may be
        ("14T", 1.5, True),  # a truncate leaves none to be rewritten
    ],
)
def test_one_task_writes_anew_up_to_a_limit(tmp_path: Path, keys: str, limit: float, done: bool) -> None:
    place, path = Place(tmp_path, "upsert", {}), f"{tmp_path}/changes"
    for n in range(4):
        rows = [{"lane": n, "id": "k", "a": 0, "b": "x"}]
        lake.append(place.path, pa.Table.from_pylist(rows, schema=COLUMNS))
    size = pa.table(DeltaTable(place.path).get_add_actions(flatten=True))["size_bytes"][0].as_py()
    changes = [
        {"header__change_seq": seq(n), "header__change_oper": "T" if k == "T" else "U",
         **({} if k == "T" else {"lane": int(k) - 1, "id": "k", "a": n, "b": "y"})}
        for n, k in enumerate(keys, 1)
    ]  # fmt: skip
    headers = [pa.field(f"header__change_{n}", pa.string()) for n in ("seq", "oper")]
    lake.append(path, pa.Table.from_pylist(changes, pa.schema([*headers, *COLUMNS])))
    one = ChangeBatch("s.t", RELATION, ChangeRange(0, 9), path, target=place.path, app_id="t")
    found = MergeTask(TABLES, Limits(local_bytes=int(limit * size)), None)(one)
    assert isinstance(found, MergeResult) is done, found
    assert (lake.progress(place.path, "t") == 9) is done
    changed = 0 if keys.endswith("T") else len(keys)
    assert len([r for r in place.rows() if r[3] == "y"]) == (changed if done else 0)


def test_flagged_changes_are_kept_and_end_a_batch(tmp_path: Path) -> None:
    place = Place(tmp_path, "strict", {"delete_missing": "stop"})
    start = [change(1, "I", "p"), change(2, "U", "q"), change(3, "I", "r"), change(4, "D", "s")]
    done = place.apply([*start, change(5, "I", "t")])
    assert done.ends == (sequence.make(TIME, 4), "delete_missing", "stop")
    assert (done.end, dict(done.counts)) == (3, {"I": 2, "U": 1, "D": 0, "T": 0})
    assert dict(done.tally) == {"U0": (1, sequence.make(TIME, 2))}
    assert [r[1] for r in place.rows()] == ["p", "r"]
    (kept,) = lake.read(str(tmp_path / EXCEPTIONS)).to_pylist()
    assert kept["STATEMENT"] == 'U <Dest>x</Dest><row>lane="0" id="q" a="2" b="q"</row>'
    assert kept["ERROR"].endswith(f", change_seq {sequence.make(TIME, 2)}")
    assert [r["action_taken"] for r in place.logged()] == ["I", "M", "I"]


def test_a_change_without_an_operation_keeps_its_line_in_the_key_log(tmp_path: Path) -> None:
    place = Place(tmp_path, "upsert", {})
    nothing: Any = None
    place.apply([change(1, "I", "p"), change(2, nothing, "q"), change(3, "I", "r")])
    assert [(r["change_row_counter"], r["after_image"]) for r in place.logged()] == [
        (1, '<Dest>x</Dest><row>lane="0" id="p" a="1" b="p"</row>'),
        (2, None),
        (3, '<Dest>x</Dest><row>lane="0" id="r" a="3" b="r"</row>'),
    ]


@pytest.mark.parametrize("mode", ["strict", "soft_delete"])
def test_a_truncate_behind_the_end_of_a_batch_empties_nothing(tmp_path: Path, mode: str) -> None:
    place = Place(tmp_path, mode, {"delete_missing": "stop"})
    place.apply([change(1, "I", "p"), change(2, "I", "q")])
    some = [
        change(3, "I", "r"),
        EMPTIED,
        change(5, "I", "s"),
        change(6, "D", "x"),
        replace(EMPTIED, number=7),
    ]
    done = place.apply(some)
    assert (done.ends, done.end) == ((seq(6), "delete_missing", "stop"), 5)
    assert [r[1] for r in place.rows()] == ["s"]
    assert (done.outcome.inserted, done.outcome.updated, done.outcome.deleted) == (1, 0, 2)
    assert place.apply(some[3:]).end is None
    assert [r[1] for r in place.rows()] == ["s"]
    assert [r["change_row_type"] for r in place.logged()] == ["I", "I", "I", "T", "I"]
    assert place.apply([some[4]]).outcome.deleted == 1
    assert place.rows() == []


def test_without_rules_a_truncate_takes_rows_away_unseen(tmp_path: Path) -> None:
    """What stood in the files is not even read; an image that lacks a column has NULL there."""
    place = Place(tmp_path, "upsert", {})
    place.apply([change(n, "I", f"p{n}") for n in range(1, 9)])
    for file in DeltaTable(place.path).file_uris():
        Path(file).unlink()
    part = replace(change(11, "U", "p1"), values={"lane": 0, "id": "p1", "a": 7})
    one = place.batch([replace(EMPTIED, number=9), change(10, "I", "z"), part])
    done = place.merge(replace(one, audit=None))
    assert isinstance(done, MergeResult)
    assert (done.outcome.inserted, done.outcome.deleted) == (2, 8)
    assert place.rows() == [(0, "p1", 7, None), (0, "z", 10, "z")]


def test_a_limit_counts_over_batches_and_those_that_come_again(tmp_path: Path) -> None:
    place = Place(tmp_path, "strict", {"delete_missing": "log then suspend after 2"})
    first = [change(1, "D", "p"), change(2, "I", "q")]
    assert place.apply(first).ends is None
    exceptions = ApplyExceptions(str(tmp_path), "task")
    assert exceptions.counts("s.t", 2, ["delete_missing"]) == {"delete_missing": 1}
    more = [change(3, "D", "p"), change(4, "I", "r"), change(5, "D", "s"), change(6, "I", "t")]
    done = place.apply(more)
    assert (done.ends, done.end) == ((sequence.make(TIME, 5), "delete_missing", "suspend"), 4)
    assert dict(done.tally) == {"D0": (1, sequence.make(TIME, 3))}
    assert exceptions.counts("s.t", 4, ["delete_missing"]) == {"delete_missing": 2}
    # A crash kept the target from it: the same changes, and more, come again.
    assert exceptions.counts("s.t", 2, ["delete_missing"]) == {"delete_missing": 1}
    shutil.rmtree(place.path)
    lake.create(place.path, COLUMNS)
    again = place.apply([*more, change(7, "U", "x")])
    assert (again.ends, again.end) == (done.ends, 4)
    assert len(lake.read(str(tmp_path / EXCEPTIONS))) == 2


class Meanwhile(ApplyExceptions):
    """Somebody else writes to the target once, when exceptions are there and the merge is not."""

    target = ""

    def add_rows(self, *args: Any, **more: Any) -> None:
        super().add_rows(*args, **more)
        if self.target:
            DeltaTable(self.target).delete("id = 'p'")
            row = {"lane": 0, "id": "q", "a": 0, "b": "theirs"}
            lake.append(self.target, pa.Table.from_pylist([row], schema=COLUMNS))
            self.target = ""


def test_exceptions_are_those_of_the_attempt_that_came_through(tmp_path: Path) -> None:
    place = Place(tmp_path, "strict", {"update_missing": "log then stop after 9"})
    place.apply([change(1, "I", "p")])
    changes = [change(2, "U", "p"), change(3, "U", "q"), change(4, "U", "r")]
    place.exceptions = Meanwhile(str(tmp_path), "task")
    place.exceptions.target = place.path
    done = place.apply(changes)
    assert dict(done.tally) == {"U0": (2, seq(2))}
    assert place.rows() == [(0, "q", 3, "q")]
    kept = sorted(r["ERROR"][-19:].lstrip("0") for r in lake.read(str(tmp_path / EXCEPTIONS)).to_pylist())
    assert kept == ["2", "4"]
    assert [r["change_row_counter"] for r in place.logged() if r["result_error"]] == [2, 4]
    assert place.exceptions.counts("s.t", 4, ["update_missing"]) == {"update_missing": 2}


def test_exceptions_of_a_batch_that_never_came_through_are_taken_back(tmp_path: Path) -> None:
    """A crash after the exceptions; before the batch comes again, the rows that it missed are there."""
    place = Place(tmp_path, "strict", {"update_missing": "log then stop after 9"})
    for table in ("s.t", "s.other.lines"):
        exceptions = ApplyExceptions(str(tmp_path), "task")
        told = {"resync_state": TIME, "result_error": "update_missing", "change_row_type": "U"}
        rows = pa.Table.from_pylist(
            [told | {"change_row_counter": n} for n in (1, 2)], exceptions.rows_schema
        )
        exceptions.add_rows(rows, table, 2, start=0, counts={"update_missing": (0, 2)})
    lake.append(place.path, pa.Table.from_pylist([{"lane": 0, "id": k} for k in "pq"], schema=COLUMNS))
    assert not place.apply([change(1, "U", "p"), change(2, "U", "q")]).tally
    kept = lake.read(str(tmp_path / EXCEPTIONS)).to_pylist()
    assert {(r["TABLE_OWNER"], r["TABLE_NAME"]) for r in kept} == {("s", "other.lines")}
    assert place.exceptions.counts("s.t", 2, ["update_missing"]) == {"update_missing": 0}
    place.apply([change(3, "U", "x")])
    assert place.exceptions.counts("s.t", 3, ["update_missing"]) == {"update_missing": 1}
    assert place.exceptions.counts("s.other.lines", 2, ["update_missing"]) == {"update_missing": 2}
    place.exceptions.remove_after("s.other.lines", -1, {})
    assert [r["TABLE_NAME"] for r in lake.read(str(tmp_path / EXCEPTIONS)).to_pylist()] == ["t"]
    assert place.exceptions.progress("s.other.lines") == -1


@pytest.mark.parametrize("policy", ["log", "stop", "suspend"])
def test_a_null_in_the_key_is_set_aside_or_ends_the_batch(tmp_path: Path, policy: str) -> None:
    place = Place(tmp_path, "strict", {"data_error": policy})
    moved = Change(3, "U", (0, None), {"lane": 0, "id": "p", "a": 3, "b": "p"})  # type: ignore[arg-type]
    changes = [change(1, "I", "p"), change(2, "I", None), moved, change(4, "U", "p"), change(5, "D", None)]
    done = place.apply(changes)
    if policy != "log":
        assert (done.ends, done.end) == ((seq(2), "data_error", policy), 1)
        assert done.why == "NULL in id, which is in the key"
        again = place.apply(changes[1:])
        assert (again.ends, again.end, place.rows()) == (done.ends, None, [(0, "p", 1, "p")])
        return
    assert place.rows() == [(0, "p", 4, "p")]
    assert dict(done.tally) == {"I!": (1, seq(2)), "U!": (1, seq(3)), "D!": (1, seq(5))}
    odd = [(r["change_row_counter"], r["result_row_count"], r["result_error"]) for r in place.logged()]
    why = "data_error: NULL in id, which is in the key"
    assert odd == [(1, 1, None), (2, 0, why), (3, 0, why), (4, 1, None), (5, 0, why)]
    keys = [place.logged()[2][n] for n in ("before_key", "after_key")]
    assert keys == ['lane="0" id=&xsi:nil="true"', 'lane="0" id="p"']
    kept = lake.read(str(tmp_path / EXCEPTIONS)).to_pylist()
    assert [r["STATEMENT"].split(" ", 1)[0] for r in kept] == ["I", "U", "D"]


EMPTIED = Change(4, "T", None, {})


def seq(number: int) -> str:
    return sequence.make(TIME, number)


def change(number: int, oper: str, key: str | None) -> Change:
    rest = {} if oper == "D" else {"a": number, "b": key}
    return Change(number, oper, None, {"lane": 0, "id": key} | rest)
