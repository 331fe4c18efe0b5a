"""Tables that stay open are as new as those that are opened: after commits of others, removed, made again."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tailrace.lake import delta as lake
from tailrace.lake import opened as module
from tailrace.lake.opened import opened

pytestmark = pytest.mark.unit


def table_of(path: str, *rows: int) -> None:
    for row in rows:
        lake.append(path, pa.table({"n": [row]}))


def rows(path: str) -> list[int]:
    with opened(path) as table:
        return sorted(lake.dataset(table).to_table()["n"].to_pylist())


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "t")
    table_of(found, 1, 2)
    return found


def test_a_table_is_opened_once_and_has_what_others_commit(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows(path) == [1, 2]
    table_of(path, 3)
    DeltaTable(path).delete("n = 1")
    monkeypatch.setattr(module, "DeltaTable", lambda _: pytest.fail("opened again"))
    assert rows(path) == [2, 3]


def test_rows_that_were_read_stay_with_their_version(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = lake.read(path)
    assert lake.read(path) is read and sorted(read["n"].to_pylist()) == [1, 2]
    assert lake.read(path, ["n"]) is not read  # which columns there were is known, too
    table_of(path, 3)
    assert sorted(lake.read(path)["n"].to_pylist()) == [1, 2, 3]
    monkeypatch.setattr(module, "KEPT_BYTES", 3)
    table_of(path, 4)
    assert lake.read(path) is not lake.read(path)


@pytest.mark.parametrize("many", [1, 2, 5])
def test_a_table_that_is_made_again_is_another_one(path: str, many: int) -> None:
    """Whether it has fewer, as many or more versions by then."""
    assert rows(path) == [1, 2] == sorted(lake.read(path)["n"].to_pylist())
    assert lake.exists(path)
    shutil.rmtree(path)
    assert not lake.exists(path)
    with pytest.raises(TableNotFoundError), opened(path):
        pass
    table_of(path, *range(10, 10 + many))
    assert rows(path) == list(range(10, 10 + many)) == sorted(lake.read(path)["n"].to_pylist())


def test_a_table_whose_old_log_is_gone_is_opened_anew(path: str) -> None:
    assert rows(path) == [1, 2]
    table_of(path, *range(3, 14))
    table = DeltaTable(path)
    table.create_checkpoint()
    for file in sorted(Path(path, "_delta_log").glob("*.json"))[:-1]:
        file.unlink()
    assert rows(path) == list(range(1, 14))


def test_a_table_is_lent_to_one_at_a_time(path: str) -> None:
    with opened(path) as one, opened(path) as other:
        assert one is not other
    with opened(path) as again:
        assert again is one


def test_a_table_is_not_kept_after_an_error(path: str) -> None:
    with pytest.raises(OSError, match="full"), opened(path) as one:
        raise OSError("full")
    with opened(path) as again:
        assert again is not one


def test_no_more_are_kept_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    monkeypatch.setattr(module, "_kept", module._Kept())
    for name in "abca":
        table_of(f"{tmp_path}/{name}", 1)
        assert rows(f"{tmp_path}/{name}")
    assert list(module._kept._open) == [f"{tmp_path}/{n}" for n in "ca"]


def test_side_by_side_each_sees_its_own_commits(path: str) -> None:
    def work(n: int) -> bool:
        table_of(path, n)
        return n in rows(path)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(10, 40)))
    assert rows(path) == [1, 2, *range(10, 40)]


def test_no_more_files_are_kept_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `large`, a checkpoint names two actions more than files: those of the table itself."""
    monkeypatch.setattr(module, "_kept", module._Kept())
    small, large = f"{tmp_path}/small", f"{tmp_path}/large"
    for path, many in ((small, 1), (large, 4)):
        table_of(path, *range(many))
        DeltaTable(path).create_checkpoint()
    monkeypatch.setattr(module, "ACTIONS", 9)
    assert rows(small) and rows(large) == [0, 1, 2, 3]
    assert list(module._kept._open) == [small, large]
    monkeypatch.setattr(module, "ACTIONS", 8)
    assert rows(small)
    assert list(module._kept._open) == [small]
    assert rows(large) == [0, 1, 2, 3]
    assert list(module._kept._open) == [large]
    monkeypatch.setattr(module, "ACTIONS", 5)
    assert rows(large) == [0, 1, 2, 3] and not module._kept._open
