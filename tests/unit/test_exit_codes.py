"""What commands end with: 0 fine, 1 an error, 2 wrong usage, 3 findings or differences."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

import tailrace
from tailrace.cli import main as cli
from tailrace.config.task import load
from tailrace.errors import ConfigError
from tailrace.runtime.setup import Draft
from tailrace.sources.base import Finding
from tailrace.validate.validation import validate

pytestmark = pytest.mark.unit
TASK = "name: shop\nsource: {url: 'postgresql://db/shop'}\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "shop.yaml").write_text(TASK)
    return str(tmp_path / "shop.yaml")


def code(*words: str) -> int:
    done = CliRunner().invoke(cli.app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code


def test_an_error_of_ours_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tailrace", "status", str(tmp_path / "none.yaml")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1 and "cannot be read" in capsys.readouterr().err


def test_a_missing_task_file_is_refused_before_anything_is_loaded_that_reads_tables(tmp_path: Path) -> None:
    """These take seconds of a slow machine."""
    heavy = ("pyarrow", "deltalake", "pandas", "psycopg", "pyspark")
    code = (
        "import sys\nfrom tailrace.cli.main import main\n"
        "try:\n    main()\nfinally:\n    print([m for m in " + repr(heavy) + " if m in sys.modules])"
    )
    words = [sys.executable, "-c", code, "status", str(tmp_path / "none.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "cannot be read" in done.stderr
    assert (done.stdout.splitlines()[-1], done.returncode) == ("[]", 1)


@pytest.mark.parametrize("words", ["status", "status x --nothing", "nothing", "resync TASK"])
def test_wrong_usage_ends_with_2(words: str, file: str) -> None:
    assert code(*words.replace("TASK", file).split()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--umask 9 formats", "'9' is not a umask"),
        ("run TASK --metrics nohost", "'nohost' is not HOST:PORT"),
        ("capture TASK --metrics :1", "':1' is not HOST:PORT"),
        ("pipeline TASK --metrics localhost:0", "'localhost:0' is not HOST:PORT"),
        ("status TASK --max-lag soon", "soon"),
        ("purge TASK --older-than soon", "soon"),
        ("validate TASK --timeout soon", "soon"),
        ("purge-folder . --older-than 3d", "use --start and --end"),
        ("purge-folder .", "no source table is named"),
        ("purge-folder . t --end soon", "'soon' is not a _Change-Sequence"),
        ("purge-folder . t --consumer a", "'a' has no value"),
        ("purge-folder . t --consumer a=b", "'b' is not a _Change-Sequence"),
        ("purge TASK --end ٣", "'٣' is not a position"),
        ("purge TASK --end soon", "'soon' is not a position"),
        ("purge TASK --end 9", "9 is beyond what is stored"),
        ("consumer ack TASK a soon", "'soon' is not a position"),
        ("query as-of TASK s.t --at soon", "'soon' is not a position"),
        ("query diff TASK s.t --start soon", "'soon' is not a position"),
        ("query net TASK s.t --end soon", "'soon' is not a position"),
        ("query chain TASK s.t --key id", "'id' has no value"),
        ("keylog story log --key id", "'id' has no value"),
        ("keylog errors log --since soon", "'soon' is not a time"),
        ("export-log TASK out --option x", "'x' has no value"),
        ("convert . out --from qlik --to delta --option x", "'x' has no value"),
    ],
)
def test_a_value_that_cannot_be_is_wrong_usage(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.app, words.replace("TASK", file).split(), env={"COLUMNS": "400"})
    assert (done.exit_code, said in done.output) == (2, True), (done.output, done.exception)


@pytest.mark.parametrize(("levels", "expected"), [((), 0), (("warning",), 0), (("error", "warning"), 3)])
def test_check_ends_with_3_when_a_finding_is_an_error(
    file: str, monkeypatch: pytest.MonkeyPatch, levels: tuple[str, ...], expected: int
) -> None:
    found = [Finding(level, "odd", "s.t", "mend it") for level in levels]  # type: ignore[arg-type]
    monkeypatch.setattr("tailrace.operate.checks.check_and_offers", lambda task, spark: (found, []))
    assert code("check", file) == expected


@pytest.mark.parametrize(("equal", "expected"), [(True, 0), (False, 3)])
def test_validate_ends_with_3_when_a_target_differs(
    file: str, monkeypatch: pytest.MonkeyPatch, equal: bool, expected: int
) -> None:
    report = SimpleNamespace(equal=equal, as_dict=lambda: {"equal": equal})
    monkeypatch.setattr("tailrace.runtime.setup.validate_task", lambda *args, **more: report)
    assert code("validate", file, "--json") == expected


@pytest.mark.parametrize(
    ("level", "expected", "then"), [("warning", 0, "next: "), ("error", 3, "tailrace check")]
)
def test_init_with_errors_ends_with_3_and_does_not_say_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Any, expected: int, then: str
) -> None:
    made = Draft(tmp_path / "shop.yaml", ["s.t"], [Finding(level, "odd", "s.t", "mend it")])
    monkeypatch.setattr("tailrace.runtime.setup.draft", lambda *args, **more: made)
    done = CliRunner().invoke(cli.app, ["init", "postgresql://db/shop"])
    assert (done.exit_code, "tailrace run" in done.output) == (expected, level == "warning")
    assert then in done.output
    assert code("init", "postgresql://db/shop", "--json") == expected


def test_a_validation_that_compares_nothing_is_no_success(file: str) -> None:
    with pytest.raises(ConfigError, match="nothing was compared"):
        validate(load(file), cast(Any, None), cast(Any, None))


def test_an_error_under_json_is_a_document_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tailrace", "status", str(tmp_path / "none.yaml"), "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert (ended.value.code, error["kind"], error["where"]) == (
        1,
        "ConfigError",
        str(tmp_path / "none.yaml"),
    )
    assert error["what"] in said.err


def test_a_full_standard_output_is_named() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        words = [sys.executable, "-m", "tailrace", "schema"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "no space left on the device" in done.stderr and "where: standard output" in done.stderr


def test_no_code_stands_anywhere_else() -> None:
    files = Path(tailrace.__file__).parent.rglob("*.py")
    numbered = re.compile(r"(?:typer\.Exit|sys\.exit)\(\d")
    assert [f.name for f in files if numbered.search(f.read_text())] == []
