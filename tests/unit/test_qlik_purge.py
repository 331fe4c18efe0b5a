"""Partitions of Qlik's change tables go whole, once they are over and every consumer has come to their end."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.errors import ConfigError
from tailrace.formats.qlik import partitions
from tailrace.formats.qlik.partitions import drop_partitions, has_partitions

pytestmark = pytest.mark.unit
ONE, TWO, NOW = (
    "20260101T000000_20260101T010000",
    "20260101T010000_20260101T020000",
    "20260101T020000_29990101T000000",
)
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def folder(at: Path) -> str:
    for table, parts in {
        "shop.item__ct": (ONE, TWO, NOW),
        "shop.note__ct": (f"header__partition_name={ONE}",),
    }.items():
        for part in parts:
            (at / table / part).mkdir(parents=True)
            for end in ("csv", "dfm"):
                (at / table / part / f"20260101-000000001.{end}").write_text("x")
    return str(at)


def left(at: Path) -> list[str]:
    return sorted(str(p.relative_to(at)) for p in at.rglob("*.csv"))


def test_partitions_that_are_over_go_with_their_files(tmp_path: Path) -> None:
    where = folder(tmp_path)
    said = [one.as_dict() for one in drop_partitions(where, NOON, {}, dry_run=True)]
    assert len(left(tmp_path)) == 4
    assert said == [one.as_dict() for one in drop_partitions(where, NOON, {})] == [
        {"table": "shop.item__ct", "partitions": [ONE, TWO], "held": {}},
        {"table": "shop.note__ct", "partitions": [ONE], "held": {}},
    ]  # fmt: skip
    assert left(tmp_path) == [f"shop.item__ct/{NOW}/20260101-000000001.csv"]
    assert [p.name for p in (tmp_path / "shop.item__ct").iterdir()] == [NOW]
    assert (
        drop_partitions(where, datetime.max.replace(tzinfo=timezone.utc), {})[0].partitions == []
    )  # it is open


def test_a_partition_stays_until_every_consumer_has_come_to_its_end(tmp_path: Path) -> None:
    where = folder(tmp_path)
    seqs = {"lake": "20260101010000000000000000000000009", "audit": "20260101030000000000000000000000099"}
    (item,) = drop_partitions(where, NOON, seqs, tables=["shop.item*"])
    assert (item.partitions, item.held) == ([ONE], {TWO: "lake"})
    assert len(left(tmp_path)) == 3
    with pytest.raises(ConfigError, match="'7' is not a change_seq"):
        drop_partitions(where, NOON, {"lake": "7"})


def test_what_a_crash_leaves_is_hidden_and_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = folder(tmp_path)
    with monkeypatch.context() as broken:
        real = partitions.filesystem

        class Dies:
            def __init__(self, path: str) -> None:
                self.fs = real(path)[0]

            def __getattr__(self, name: str) -> object:
                return (
                    (lambda _: (_ for _ in ()).throw(OSError("gone")))
                    if name == "delete_dir"
                    else getattr(self.fs, name)
                )

        broken.setattr(partitions, "filesystem", lambda path: (Dies(path), real(path)[1]))
        with pytest.raises(OSError, match="gone"):
            drop_partitions(where, NOON, {})
    assert [p.name.startswith(".gone-") for p in sorted((tmp_path / "shop.item__ct").iterdir())] == [
        True,
        False,
        False,
    ]
    drop_partitions(where, NOON, {})
    assert [p.name for p in (tmp_path / "shop.item__ct").iterdir()] == [NOW]


def test_the_command_knows_such_a_folder(tmp_path: Path) -> None:
    where = folder(tmp_path)
    assert has_partitions(where) and not has_partitions(str(tmp_path / "shop.item__ct" / ONE))
    run = CliRunner().invoke(app, ["purge-folder", where, "--end", f"20260101010000{0:021}", "--json"])
    assert [one["partitions"] for one in json.loads(run.output)] == [[ONE], [ONE]]


def test_the_command_takes_several_tables(tmp_path: Path) -> None:
    where = folder(tmp_path)
    words = ["purge-folder", where, "--end", f"20260101010000{0:021}", "--json", "--dry-run"]
    names = sorted(p.name for p in tmp_path.iterdir())
    for some in (names[:1], names):
        run = CliRunner().invoke(app, [*words, *some])
        assert [one["table"] for one in json.loads(run.output)] == some
