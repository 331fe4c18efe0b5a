"""Questions over change tables, in arrays, against a model that does one change after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine import key_timelines, sql_server
from tailrace.engine.chains import chain
from tailrace.engine.history import history
from tailrace.engine.net import net
from tailrace.engine.pairs import pairs
from tailrace.engine.rebuild import rebuild
from tailrace.engine.state_at import state_at
from tailrace.model import mask

from ..examples import examples
from . import change_model as cm
from .change_model import COLUMNS, UNKNOWN, Image, Model, Row, seq

pytestmark = pytest.mark.unit


@pytest.fixture(params=[16, 0], ids=["together", "key by key"], autouse=True, scope="module")
def _parts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keys are looked at together, and each in a part of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_timelines, "_GROUP_BITS", request.param)
        yield


many = examples(20, derandomize=True)


def values(row: Row) -> tuple[Any, ...]:
    return tuple(row[c] for c in COLUMNS)


def bag(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


def ended(images: list[Image]) -> dict[int, str]:
    """Change number -> the last change_seq of its transaction."""
    last: dict[int | None, int] = {}
    for one in images:
        last[one.transaction] = max(last.get(one.transaction, 0), one.number)
    return {one.number: seq(last[one.transaction]) for one in images}


@many
@given(cm.histories(), cm.bases())
def test_state_is_what_changes_leave_one_after_the_other(images: list[Image], base: list[Row] | None) -> None:
    found = state_at(cm.arrays(images), cm.base_of(base)).to_pylist()
    model = Model(images, base or [])
    assert bag([values(cm.shown(r)) for r in found]) == bag([values(v.row) for v in model.live.values()])


@many
@given(cm.histories(), cm.bases())
def test_history_has_every_version(images: list[Image], base: list[Row] | None) -> None:
    found = history(cm.arrays(images), base=cm.base_of(base), track_history_column_list=["name", "qty"])
    got = [(*values(cm.shown(r)), r["__START_AT"], r["__END_AT"], r["is_current"]) for r in found.to_pylist()]
    assert bag(got) == bag(_versions(Model(images, base)))
    starts = [None if r["valid_from"] is None else r["__START_AT"] for r in found.to_pylist()]
    assert starts == found["__START_AT"].to_pylist()


def _versions(model: Model) -> list[tuple[Any, ...]]:
    made = []
    for versions in model.versions.values():
        rows: list[tuple[Any, ...]] = []
        for k, one in enumerate(versions):
            begin, end = (None if i is None else seq(i.number) for i in (one.begin, one.end))
            before = versions[k - 1] if k else None
            if before and before.end is one.begin and _same(before, one):
                rows[-1] = (*values(one.row), *rows[-1][3:4], end, end is None)
            else:
                rows.append((*values(one.row), begin, end, end is None))
        made += rows
    return made


def _same(before: Any, one: Any) -> bool:
    if one.begin.oper == "I" and UNKNOWN in one.row.values():
        return False
    if any(c not in one.begin.values for c in one.begin.changed if c != "id"):
        return False
    return bool(before.row == one.row)


def _noop(step: Any) -> bool:
    stays = step.lived and step.old_key is None and step.before == step.after
    return bool(stays and UNKNOWN not in step.after.values())


def _every(model: Model, mode: str) -> list[tuple[Any, ...]]:
    """What `net` gives without netting."""
    made: list[tuple[Any, ...]] = []
    for step in model.steps:
        one, n = step.image, step.image.number
        if one.oper == "T":
            made.append((None, "truncate", n))
        elif one.oper == "I":
            made.append((values(step.after), "insert", n))
        elif one.oper == "D":
            made.append((values(step.before), "delete", n))
        elif step.old_key is not None:
            made += [(values(step.before), "delete", n), (values(step.after), "insert", n)]
        elif mode == "none" or not _noop(step):
            made += [(values(step.before), "update_preimage", n)] if step.before else []
            made.append((values(step.after), "update_postimage", n))
    return made


def _netted(model: Model) -> list[tuple[Any, ...]]:
    """At most one change a key."""
    truncates = [s.image.number for s in model.steps if s.image.oper == "T"]
    cut = bool(truncates) and not model.whole
    made: list[tuple[Any, ...]] = [(None, "truncate", truncates[-1])] if cut else []
    for key, versions in model.versions.items():
        old = versions[0].row if versions[0].begin is None and not cut else None
        new = versions[-1].row if versions[-1].end is None else None
        touching = [
            s.image.number for s in model.steps
            if s.image.oper != "T" and not _noop(s)
            and key in (s.image.values["id"], s.old_key)
        ]  # fmt: skip
        if versions[-1].end is not None:
            touching.append(versions[-1].end.number)
        if not touching:
            continue
        last = max(touching)
        words = ("update_preimage", "update_postimage") if old and new else ("delete", "insert")
        made += [(values(old), words[0], last)] if old else []
        made += [(values(new), words[1], last)] if new else []
    return made


def _rows(found: pa.Table) -> list[tuple[Any, ...]]:
    return [
        (
            None if r["_change_type"] == "truncate" else values(cm.shown(r)),
            r["_change_type"],
            r["_commit_version"],
        )
        for r in found.to_pylist()
    ]


@many
@given(cm.histories(), cm.bases(), st.sampled_from(["none", "dropCarryovers", "netChanges"]), st.booleans())
def test_net(images: list[Image], base: list[Row] | None, mode: Any, updates: bool) -> None:
    changes = cm.arrays(images)
    found = net(changes, base=cm.base_of(base), deduplicationMode=mode, computeUpdates=updates)
    model, commit = Model(images, base), ended(images)
    expected = _netted(model) if mode == "netChanges" else _every(model, mode)
    plain = {} if updates else {"update_preimage": "delete", "update_postimage": "insert"}
    wanted = [(row, plain.get(word, word), commit[n]) for row, word, n in expected]
    assert bag(_rows(found)) == bag(wanted)
    versions = found["_commit_version"].to_pylist()
    assert versions == sorted(versions)
    if mode == "netChanges" and base is not None:
        _does_what_changes_do(found, base, model)


def _does_what_changes_do(found: pa.Table, base: list[Row], model: Model) -> None:
    rows = {r["id"]: values(r) for r in base}
    changes = found.to_pylist()
    for one in changes:
        if one["_change_type"] in ("delete", "update_preimage"):
            assert rows.pop(one["id"]) == values(one)
    for one in changes:
        if one["_change_type"] in ("insert", "update_postimage"):
            assert one["id"] not in rows
            rows[one["id"]] = values(cm.shown(one))
    assert rows == {k: values(v.row) for k, v in model.live.items()}


@many
@given(cm.histories(), cm.bases())
def test_pairs(images: list[Image], base: list[Row] | None) -> None:
    found = pairs(cm.arrays(images), base=cm.base_of(base)).to_pylist()
    model = Model(images, base)
    assert [_pair(r) for r in found] == [_expected(s) for s in model.steps]


def _pair(row: Row) -> tuple[Any, ...]:
    sides = []
    for side in ("before", "after"):
        absent = {n.partition(".")[2] for n in row["_absent"] or () if n.startswith(side)}
        sides.append(row[side] and {c: UNKNOWN if c in absent else v for c, v in row[side].items()})
    return row["change_seq"], row["_change_type"], row["changed"], *sides


def _expected(step: Any) -> tuple[Any, ...]:
    one = step.image
    word = {"I": "insert", "U": "update", "D": "delete", "T": "truncate"}[one.oper]
    changed = None
    if one.oper == "U":
        before = step.before or cm.NOTHING
        known = {c: UNKNOWN not in (before[c], step.after[c]) for c in COLUMNS}
        # A mask that only repeats what was sent says nothing.
        says = {*one.changed} - {"id"} != {*one.values} - {"id"}
        told = {*one.changed} if says else {*one.changed} & {"id"}
        changed = [c for c in COLUMNS if (before[c] != step.after[c] if known[c] else c in told)]
    return seq(one.number), word, changed, step.before, step.after


@many
@given(cm.histories(), cm.bases(), st.integers(1, 4))
def test_chain(images: list[Image], base: list[Row] | None, key: int) -> None:
    found = chain(cm.arrays(images), {"id": key}, base=cm.base_of(base)).to_pylist()
    lives = _lives(images, base, key)
    assert [(r["life"], r["change_seq"], r["_change_type"]) for r in found] == lives


def _lives(images: list[Image], base: list[Row] | None, key: int) -> list[tuple[int, str, str]]:
    """The lives of a key, by the rows that it goes through one after the other."""
    model = Model(images, base)
    alive = {k: life for k, (_, life) in Model([], base).known.items()}
    mine = {s.life for s in model.steps if key in _keys(s)} | {alive.get(key, 0)}
    steps: list[tuple[int, int, str]] = []
    for step in model.steps:
        one = step.image
        if one.oper == "T":
            cut = [life for life in dict.fromkeys(s[0] for s in steps) if life in alive.values()]
            cut += [life for life in alive.values() if life in mine and life not in cut]
            steps += [(life, one.number, "truncate") for life in cut]
            alive = {}
            continue
        for gone in {one.values["id"], step.old_key}:
            alive.pop(gone, None)
        if one.oper != "D":
            alive[one.values["id"]] = step.life
        if step.life in mine:
            word = {"I": "insert", "U": "update", "D": "delete"}[one.oper]
            steps.append((step.life, one.number, word))
    order: dict[int, int] = {}
    made = []
    for life, number, word in steps:
        made.append((order.setdefault(life, len(order) + 1), seq(number), word))
    return made


def _keys(step: Any) -> set[int]:
    return {row["id"] for row in (step.before, step.after, step.image.values) if row and "id" in row}


@many
@given(cm.histories(), cm.bases())
def test_rebuild_fills_what_images_of_the_row_tell(images: list[Image], base: list[Row] | None) -> None:
    changes = cm.arrays(images)
    found = rebuild(changes, base=cm.base_of(base))
    assert found.schema == changes.rows.schema
    after = {s.image.number: s.after for s in Model(images, base).steps if s.image.oper in "IU"}
    start = len(cm.HEADERS)
    for row in found.to_pylist():
        if row["header__change_oper"] in "IU":
            wanted = after[int(row["header__change_seq"])]
            known = row["header__column_mask"]
            carried = [start + k for k in range(3)] if known is None else mask.decode(known)
            assert [COLUMNS[n - start] for n in carried] == [c for c in COLUMNS if wanted[c] != UNKNOWN]
            assert {c: row[c] for c in COLUMNS if wanted[c] != UNKNOWN} == {
                c: v for c, v in wanted.items() if v != UNKNOWN
            }


@many
@given(cm.histories(), cm.bases(), st.sampled_from(sql_server.STYLES))
def test_sql_server_styles_are_the_net_changes(
    images: list[Image], base: list[Row] | None, style: Any
) -> None:
    changes = cm.arrays(images)
    found = sql_server.net_changes(changes, style, base=cm.base_of(base)).to_pylist()
    model, commit = Model(images, base), ended(images)
    merge = style == "all with merge"
    codes = {"truncate": 0, "delete": 1, "insert": 5 if merge else 2, "update_postimage": 5 if merge else 4}
    wanted = [(codes[w], row, commit[n]) for row, w, n in _netted(model) if w != "update_preimage"]
    got = [
        (r["__$operation"], None if r["__$operation"] == 0 else values(cm.shown(r)), r["__$start_lsn"])
        for r in found
    ]
    assert bag(got) == bag(wanted)
    olds = {row[0]: row for row, w, _ in _netted(model) if w == "update_preimage" and row}
    for one in found:
        if style == "all with mask" and one["__$operation"] == 4:
            old, new = olds[one["id"]], values(cm.shown(one))
            changed = [c for c, a, b in zip(COLUMNS, old, new, strict=True) if a != b or a == UNKNOWN]
            assert (one["__$update_mask"] or []) == changed
        else:
            assert one["__$update_mask"] is None
