"""What `apply` looks at before and after it reads a vendor's files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.apply import target_mode
from tailrace.engine.rules import Rules
from tailrace.errors import ConfigError, FormatError
from tailrace.formats.base import Read
from tailrace.model.change import ChangeTable
from tailrace.operate.vendor_reading import IncompleteFiles, as_in_target

pytestmark = pytest.mark.unit


def test_files_that_come_while_others_are_looked_at_are_looked_at_too(tmp_path: Path) -> None:
    def odd(*_: object) -> list[str]:
        """Files with less than two lines."""
        return [p.name for p in sorted(tmp_path.iterdir()) if len(p.read_text().splitlines()) < 2]

    side: Any = SimpleNamespace(path=str(tmp_path), options=None, form=SimpleNamespace(complete=odd))
    spark: Any = None
    (tmp_path / "a.csv").write_text("1\n2\n")
    files = IncompleteFiles(spark, side, fail=True)
    files.check_new()
    (tmp_path / "b.csv").write_text("1\n")
    with pytest.raises(FormatError, match=r"b\.csv") as error:
        files.check_new()
    assert error.value.where == str(tmp_path)
    assert IncompleteFiles(spark, side, fail=False).notes == ["b.csv"]
    side.path = str(tmp_path / "a.csv")  # one file
    IncompleteFiles(spark, side, fail=False).check_new()


@pytest.mark.parametrize(
    ("more", "added", "rules", "why"),
    [
        (["_deleted"], [], Rules(), "the target marks deleted rows in '_deleted'"),  # a shared target
        (["gone"], ["gone"], Rules.of("upsert"), "the target marks deleted rows in 'gone'"),
        (
            ["_deleted"],
            [],
            Rules.of("soft_delete", {}, "gone"),
            "the target marks deleted rows in '_deleted'",
        ),
        (["header__change_seq", "header__change_oper"], [], Rules(), "the target is an archive"),
        (["header__change_seq"], ["header__change_seq"], Rules.of("soft_delete"), "the target is an archive"),
    ],
)
def test_columns_of_another_mode_are_none_of_lines_that_leave_columns_out(
    more: list[str], added: list[str], rules: Rules, why: str
) -> None:
    target: Any = SimpleNamespace(
        exists=lambda _: True,
        columns=lambda _: dict.fromkeys(["id", "v", *more], "string"),
        rule_columns=lambda _: set(added),
    )
    nobody: Any = SimpleNamespace(withColumns=lambda _: nobody, withColumn=lambda *_: nobody)
    lines = ChangeTable(nobody, ["id"], ["id"], "header__", "s.t")
    for found in (Read({}, left_out=frozenset({"s.t"})), Read({}, partial=frozenset({"s.t"}))):
        made = as_in_target(target, {"s.t": lines}, found, rules)["s.t"]
        with pytest.raises(ConfigError, match=why):
            target_mode.check_mode(target, "s.t", made.columns, rules)
