"""Qlik's files of full loads that were delivered twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.formats.qlik import dfm, file_reader, files

from .test_qlik_files import HEADS, PLAIN, put

pytestmark = pytest.mark.unit

ID = [dfm.column(1, "id", "string")]


def read(root: Path) -> tuple[list[str], list[str]]:
    """The files that are read, and the notes on copies."""
    listed = files.listing(str(root), PLAIN)
    return [f.path for f in listed.files], [n for n in listed.notes if "equal" in n]


def notes(root: Path) -> dict[str, list[str]]:
    """What is said of the tables that have something odd."""
    listed = files.listing(str(root), PLAIN)
    found = files.tables(listed, PLAIN).items()
    return {name: said for name, its in found if (said := file_reader.file_notes(listed, its))}


def test_a_copy_of_a_full_loads_file_is_left_out(tmp_path: Path) -> None:
    put(tmp_path / "shop.item", "LOAD00000001.csv", "id\n1\n")
    put(tmp_path / "shop.item", "LOAD00000002.csv", "id\n1\n")
    put(tmp_path / "shop.item" / "again", "LOAD00000001.csv", "id\n1\n")
    put(tmp_path / "shop.item", "LOAD00000003.csv", "id\n2\n")
    put(tmp_path / "shop.line", "LOAD00000001.csv", "id\n1\n")
    assert read(tmp_path / "shop.item") == (
        ["LOAD00000001.csv", "LOAD00000003.csv", "again/LOAD00000001.csv"],
        ["LOAD00000002.csv: equal to LOAD00000001.csv byte for byte, not read"],
    )
    assert read(tmp_path)[0][-1] == "shop.line/LOAD00000001.csv"


@pytest.mark.parametrize(
    ("first", "second", "copies"),
    [
        ("2026-01-01T00:00:00.000", "2026-01-01T00:00:00.000", 1),
        ("2026-01-01T00:00:00.000", "2026-01-01T00:00:01.000", 0),
        ("2026-01-01T00:00:00.000", None, 1),
    ],
)
def test_a_dfm_of_its_own_says_that_it_is_no_copy(
    tmp_path: Path, first: str, second: str | None, copies: int
) -> None:
    folder = tmp_path / "shop.item"
    for n, start in ((1, first), (2, second)):
        put(folder, f"LOAD0000000{n}.csv", "id\n1\n")
        if start is not None:
            made = dfm.Dfm("LOAD00000001", tuple(ID), content="data", start=start)
            (folder / f"LOAD0000000{n}.dfm").write_text(made.to_json())
    paths, notes = read(tmp_path)
    assert (len(paths), len(notes)) == (2 - copies, copies)


def test_changes_that_come_twice_are_told_by_their_sequences(tmp_path: Path) -> None:
    for n in (1, 2):
        put(tmp_path / "shop.item__ct", f"20261102-08150050{n}.csv", ",".join([*HEADS, "id"]) + "\n1,I,,1\n")
    assert len(read(tmp_path)[0]) == 2


@pytest.mark.parametrize("place", ["", "shop.item"])
def test_a_copy_is_told_wherever_the_path_begins(tmp_path: Path, place: str) -> None:
    for n in (1, 2):
        put(tmp_path / "shop.item", f"LOAD0000000{n}.csv", "id\n1\n")
    put(tmp_path / "shop.line", "LOAD00000001.csv", "id\n2\n")
    inside = "" if place else "shop.item/"
    said = f"{inside}LOAD00000002.csv: equal to {inside}LOAD00000001.csv byte for byte, not read"
    assert notes(tmp_path / place) == {"shop.item": [said]}


def test_a_copy_in_another_folder_of_the_table_is_told(tmp_path: Path) -> None:
    for folder in ("shop.item", "shop.item__ct"):
        put(tmp_path / folder, "LOAD00000001.csv", "id\n1\n")
    said = "shop.item__ct/LOAD00000001.csv: equal to shop.item/LOAD00000001.csv byte for byte, not read"
    assert notes(tmp_path) == {"shop.item": [said]}


def test_odd_files_in_the_root_are_told_where_a_table_lies_in_it(tmp_path: Path) -> None:
    root = tmp_path / "shop.item"
    put(root, "LOAD00000001.csv", "id\n1\n")
    put(root, "LOAD00000002.dfm", "{}")
    put(root / "shop.line", "LOAD00000001.csv", "id\n2\n")
    put(root / "shop.line", "read.me", "")
    assert notes(root) == {
        "shop.item": ["LOAD00000002.dfm: there is no data file for it"],
        "shop.line": ["shop.line/read.me: neither data nor DFM, not read"],
    }
