"""Which tables lie under a path, which files are read of each, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.errors import ConfigError, FormatError
from tailrace.formats import folders
from tailrace.formats.file_reader import columns_at
from tailrace.formats.openedge.files import columns_at as openedge_columns
from tailrace.formats.openedge.files import dumps_at, refuse
from tailrace.formats.openedge.options import OpenEdgeOptions

pytestmark = pytest.mark.unit


def put(root: Path, *names: str, text: str = "id\n1\n") -> Path:
    """Files with one row each."""
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"id": [1]}), file)
        else:
            file.write_text(text)
    return root


def tables(root: Path) -> dict[str, list[str]]:
    """Table -> its files, below the root."""
    found = folders.tables_at(str(root))
    return {n: [f.relative_to(root).as_posix() for f in folders.data_files(p)] for n, p in found.items()}


def notes(root: Path) -> list[str]:
    return folders.not_read(root, folders.tables_at(str(root)).values())


@pytest.mark.parametrize("inside", ["dt=2026-03-02", "month2", "2026/03"])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_tables_folder_is_read_at_any_depth(tmp_path: Path, inside: str, kind: str) -> None:
    put(tmp_path, f"SYS_LOG/z.{kind}", f"SYS_LOG/{inside}/b.{kind}", text='{"id": 1}\n')
    put(tmp_path, f"SYS_LOG/_temporary/c.{kind}", f"SYS_LOG/{inside}/.d.{kind}")
    assert tables(tmp_path) == {"SYS_LOG": [f"SYS_LOG/{inside}/b.{kind}", f"SYS_LOG/z.{kind}"]}
    assert notes(tmp_path) == []


def test_endings_of_names_in_any_letter_case(tmp_path: Path) -> None:
    names = [
        "shop.item__ct.CSV",
        "tailrace_columns.Csv",
        "PUB._Cdc-Change-Tracking.CSV",
        "b.JSONL",
        "C.PARQUET",
    ]
    put(tmp_path, *(n for n in names if n != "C.PARQUET"), "c.parquet", "d.csv.GZ", "keys.CD")
    (tmp_path / "c.parquet").rename(tmp_path / "C.PARQUET")
    assert tables(tmp_path) == {n.rpartition(".")[0]: [n] for n in names} | {"d": ["d.csv.GZ"]}
    assert notes(tmp_path) == []
    assert [p.name for p in dumps_at(tmp_path)] == ["keys.CD"]


def test_two_files_of_one_name_but_for_the_endings_letter_case(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "a.CSV", "b.csv")
    with pytest.raises(ConfigError, match=r"a\.CSV and a\.csv are both the table a"):
        tables(tmp_path)


def test_a_table_that_has_only_folders(tmp_path: Path) -> None:
    files = ["ir_keylog/dt=1/a.parquet", "ir_keylog/dt=2/b.parquet"]
    put(tmp_path, *files)
    assert tables(tmp_path) == {"ir_keylog": files}
    assert list(folders.tables_at(str(tmp_path / "ir_keylog"))) == ["ir_keylog"]
    assert columns_at(str(tmp_path)) == {"ir_keylog": ["id"]}


def test_what_a_tables_folder_has_besides_is_told(tmp_path: Path) -> None:
    put(
        tmp_path, "t/a.csv", "t/x/notes.txt", "t/x/b.csv", "t/copy/part-0.parquet", "t/copy/_delta_log/0.json"
    )
    assert tables(tmp_path) == {"t": ["t/a.csv", "t/x/b.csv"]}
    assert notes(tmp_path) == [
        "t/copy is a Delta table in the folder of another table: not read",
        "t/x/notes.txt is not a table: not read",
    ]
    (tmp_path / "t" / "x" / "c.zip").write_bytes(b"PK")
    with pytest.raises(ConfigError, match=r"c\.zip is an archive"):
        tables(tmp_path)


@pytest.mark.parametrize("other", ["t/b.parquet", "t/x/b.parquet"])
def test_folders_of_several_kinds_are_told(tmp_path: Path, other: str) -> None:
    put(tmp_path, "t/a.csv", other)
    said = r"t has files of several kinds \(csv, parquet\)"
    with pytest.raises(ConfigError, match="contains no table; " + said):
        tables(tmp_path)
    put(tmp_path, "u.csv")
    assert tables(tmp_path) == {"u": ["u.csv"]}
    assert notes(tmp_path) == ["t has files of several kinds (csv, parquet): not read"]


@pytest.mark.parametrize(
    ("names", "both"),
    [
        (["PUB.CDC_item/a.csv", "PUB.CDC_item.csv"], r"PUB\.CDC_item and PUB\.CDC_item\.csv"),
        (["SYS_LOG/a.parquet", "SYS_LOG.parquet"], r"SYS_LOG and SYS_LOG\.parquet"),
        (["t.csv", "t.csv.gz"], r"t\.csv and t\.csv\.gz"),
    ],
)
def test_two_places_of_one_table_are_refused(tmp_path: Path, names: list[str], both: str) -> None:
    put(tmp_path, *names)
    with pytest.raises(ConfigError, match=both + " are both the table") as wrong:
        tables(tmp_path)
    assert "move one of them away" in str(wrong.value)


def test_hidden_files_tell_nothing(tmp_path: Path) -> None:
    root = put(tmp_path / "item", "a.csv", ".b.csv", "_c.csv")
    (root / ".old.zip").write_bytes(b"PK")
    assert tables(root) == {"item": ["a.csv"]}


def test_openedge_passes_over_hidden_dumps(tmp_path: Path) -> None:
    refuse(str(put(tmp_path, "policies.cd", ".old.cd")), OpenEdgeOptions())
    (tmp_path / "policies.cd").unlink()
    with pytest.raises(ConfigError, match="contains no table"):
        refuse(str(tmp_path), OpenEdgeOptions())


def test_a_loose_file_next_to_folders_of_tables_is_a_table(tmp_path: Path) -> None:
    root = put(tmp_path / "sqdr1", "ir_keylog/x.parquet", "tailrace_columns.csv")
    assert tables(root) == {
        "ir_keylog": ["ir_keylog/x.parquet"],
        "tailrace_columns": ["tailrace_columns.csv"],
    }
    assert set(columns_at(str(root))) == {"ir_keylog", "tailrace_columns"}


def test_a_loose_file_next_to_partitions_is_one_table(tmp_path: Path) -> None:
    root = put(tmp_path / "ir_keylog", "a.parquet", "dt=2026-03-02/b.parquet")
    assert tables(root) == {"ir_keylog": ["a.parquet", "dt=2026-03-02/b.parquet"]}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["part-0.csv", "month2/part-0.csv"], "part-0.csv is part of a table, but month2 is a folder of one"),
        (["a.csv", "b.csv", "dt=1/c.csv"], "dt=1 is a table's partition, but the files are tables"),
        (["dt=1/a.csv", "dt=2/b.parquet"], "several kinds"),
    ],
)
def test_what_could_be_both_is_refused(tmp_path: Path, names: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tables(put(tmp_path / "t", *names))


def test_tables_in_folders_of_a_folder_are_not_mixed(tmp_path: Path) -> None:
    put(tmp_path, "lake/a/1.csv")
    put(tmp_path, "lake/b/1.csv", text="no\n1\n")
    with pytest.raises(FormatError, match=r"b/1\.csv has other columns than a/1\.csv"):
        columns_at(str(tmp_path))


def test_a_link_that_leads_back_is_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "t/a.csv", "t/x/b.csv")
    (tmp_path / "t" / "x" / "back").symlink_to(tmp_path / "t")
    assert tables(tmp_path) == {"t": ["t/a.csv", "t/x/b.csv"]}


def test_openedge_does_not_pass_over_a_folder_of_several_kinds(tmp_path: Path) -> None:
    put(tmp_path, "p.cd", "PUB.CDC_item/a.csv", "PUB.CDC_item/b.parquet")
    with pytest.raises(ConfigError, match=r"PUB\.CDC_item has files of several kinds"):
        openedge_columns(str(tmp_path), OpenEdgeOptions())


def test_openedge_has_tables_in_hidden_folders(tmp_path: Path) -> None:
    put(
        tmp_path,
        "_Cdc-Change-Tracking/x/a.csv",
        "PUB.CDC_item.csv",
        "_pending/a/1.csv",
        "_pending/b/1.parquet",
    )
    assert set(openedge_columns(str(tmp_path), OpenEdgeOptions())) == {"_Cdc-Change-Tracking", "PUB.CDC_item"}


def test_openedges_hidden_folders_have_one_kind(tmp_path: Path) -> None:
    put(tmp_path, "_Cdc-Change-Tracking/a.csv", "_Cdc-Change-Tracking/b.parquet", "PUB.CDC_item.csv")
    for read in (openedge_columns, refuse):
        with pytest.raises(ConfigError, match="_Cdc-Change-Tracking has files of several kinds"):
            read(str(tmp_path), OpenEdgeOptions())
