"""Folders that a task cannot write to, and targets that another task writes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.apply.checks.folders import folder_findings
from tailrace.apply.target_owner import owner_findings, owner_of
from tailrace.config.task import Task, load, read
from tailrace.errors import StoreLostError
from tailrace.lake import delta as lake
from tailrace.targets.delta.applications import applications

from ..object_store import Store, object_store

pytestmark = pytest.mark.unit
T = "s.t"
ROWS = pa.table({"id": [1]})


def task(folder: Path, name: str = "shop", more: str = "target: lake\n") -> Task:
    made = read(f"name: {name}\nsource: {{url: 'postgresql://db/shop'}}\n{more}", folder)
    assert isinstance(made, Task)
    return made


def said(one: Task, version: int | None = None) -> list[str]:
    taken: dict[str, Any] = {} if version is None else {T: type("Taken", (), {"version": version})}
    found = folder_findings(one) + owner_findings(one, [T], owner_of(one, {}), taken)
    return [f"{f.level}: {f.where}: {f.what}" for f in found]


@pytest.mark.parametrize("inside", ["", "/lake"])
@pytest.mark.parametrize("setting", ["target.path", "home"])
def test_a_file_is_no_folder(tmp_path: Path, inside: str, setting: str) -> None:
    (tmp_path / "passwd").touch()
    more = f"target: passwd{inside}\n" if setting == "target.path" else f"home: passwd{inside}\n"
    assert said(task(tmp_path, more=more)) == [f"error: {setting}: {tmp_path}/passwd is a file, not a folder"]


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: "theirs" not in str(path))
    one = task(tmp_path, more="target: theirs/lake\n")
    assert said(one) == [f"error: target.path: {tmp_path}/theirs is a folder that this user may not write to"]
    assert said(task(tmp_path)) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="Linux has it")
def test_a_folder_that_cannot_be_made_whatever_the_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: True)  # as for root
    one = task(tmp_path, more="home: /proc/nope\n")
    assert said(one) == ["error: home: no folder can be created in /proc: No such file or directory"]


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    one = task(tmp_path, more="home: home\ntarget: target\n")
    (tmp_path / "target").mkdir()
    assert said(one) == []
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["target"]


def test_a_target_without_owner_belongs_to_those_that_wrote_since_the_baseline(tmp_path: Path) -> None:
    mine, theirs = task(tmp_path), task(tmp_path, "crm")
    path = mine.target_path(T)
    assert said(mine) == []
    lake.append(path, ROWS, progress={theirs.apply_app: 1})
    warning = f"error: s.t: the target {path} belongs to the task crm"
    assert said(mine) == [warning] and said(theirs) == []
    lake.append(path, ROWS, progress={mine.apply_app: 1})  # the baseline, version 2, replaced what crm wrote
    assert said(mine, 2) == [] and said(theirs, 1) == [warning.replace("crm", "shop")]
    lake.append(path, ROWS, progress={theirs.apply_app: 2})
    assert said(mine, 2) == [warning]


def test_constants_in_the_key_tell_the_rows_of_two_tasks_apart(tmp_path: Path) -> None:
    apart = "target: lake\ntables: {s.t: {constants: {site: '@TASK'}}}\n"
    mine, plain = task(tmp_path, more=apart), task(tmp_path, "other")
    lake.append(mine.target_path(T), ROWS, progress={f"tailrace/crm/{T}": 1, f"{mine.apply_app}/{T}": 1})
    assert said(mine) == []
    assert [one.split(" belongs to ")[1] for one in said(plain)] == ["the task crm, shop"]


def test_the_writers_of_a_table_are_in_its_checkpoint_and_in_the_commits_since(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    assert applications(path) == set()
    lake.append(path, ROWS, progress={"a": 1})
    lake.append(path, ROWS, progress={"b": 1})
    DeltaTable(path).create_checkpoint()
    lake.append(path, ROWS, progress={"c": 1})
    for old in (0, 1):
        (tmp_path / f"t/_delta_log/{old:020}.json").unlink()
    assert applications(path) == {"a", "b", "c"}
    assert applications(path, after=2) == {"c"} and applications(path, after=3) == set()


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with object_store("checks") as there:
        yield there


@pytest.mark.parametrize(
    ("denied", "right"),
    [
        ("", ""),
        ("PUT", "write a file (s3:PutObject)"),
        ("GET", "read a file (s3:GetObject)"),
        ("GET list-type", "list the files (s3:ListBucket)"),
        ("POST delete", "delete a file (s3:DeleteObject)"),
    ],
)
def test_a_right_that_is_missing_in_an_object_store_is_named(
    tmp_path: Path, store: Store, denied: str, right: str
) -> None:
    one = task(tmp_path, more=f"home: s3://checks/home\nstorage: {store.storage}\n")
    with store.faulty(denied=denied):
        found = [f.what for f in folder_findings(one)]
    assert len(found) == bool(right)
    assert all(f"the task cannot {right} in s3://checks/home: " in what for what in found)


def test_a_store_that_does_not_answer_is_an_error_with_what_to_do(
    tmp_path: Path,
) -> None:
    file = tmp_path / "shop.yaml"
    keys = "{endpoint: 'http://127.0.0.1:1', access_key: a, secret_key: b}"
    file.write_text(
        f"name: shop\nhome: s3://nowhere/home\nstorage: {keys}\nsource: {{url: 'postgresql://db/shop'}}\n"
    )
    with pytest.raises(StoreLostError, match="the object store does not answer") as told:
        load(file)
    assert told.value.where == "s3://nowhere/home/control" and "`storage`" in str(told.value.hint)
