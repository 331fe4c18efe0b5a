"""The file for `apply --tables`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.tables_file import load
from tailrace.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keylog: {mode: all}\n", "line 1: unknown setting 'keylog'; known here: tables"),
        ("table: {}\n", "line 1: unknown setting 'table'; did you mean 'tables'?"),
        ("tables:\n  a.b: {wher: x}\n", "line 2: unknown setting 'tables.a.b.wher'; did you mean 'where'?"),
    ],
)
def test_a_setting_that_the_file_does_not_have(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(file)
    assert error.value.what == f"the file has mistakes:\n  {said}"
