"""What cannot be read is refused before a JVM starts."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace import formats
from tailrace.cli.main import app
from tailrace.errors import TailraceError
from tailrace.formats import convert

pytestmark = pytest.mark.unit
EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = list(formats.OURS)


def put(folder: Path, kind: str) -> Path:
    if kind == "nowhere":
        return folder / "nowhere"
    if kind == "0 bytes":
        (folder / "shop.item__ct.csv").write_bytes(b"")
    if kind == "zip":
        with zipfile.ZipFile(folder / "a.zip", "w") as made:
            made.writestr("shop.item__ct.csv", "id\n1\n")
    return folder


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nothing", "contains no table"),
        ("0 bytes", "is empty"),
        ("zip", "a.zip is an archive"),
        ("nowhere", "there is no"),
    ],
)
def test_nothing_to_read(tmp_path: Path, name: str, kind: str, words: str) -> None:
    with pytest.raises(TailraceError, match=words):
        convert.refuse_nothing(convert.side(name, str(put(tmp_path, kind)), {}))


@pytest.mark.parametrize("name", [n for n in NAMES if (EXAMPLES / n).is_dir()])
def test_the_examples_are_not_refused(name: str) -> None:
    convert.refuse_nothing(convert.side(name, str(EXAMPLES / name / "tables"), {}))


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "{}", "{}/out", "--from", "qlik", "--to", "sqdr"],
        ["apply", "--changes", "{}", "--target", "{}/lake"],
    ],
)
def test_commands_do_not_start_spark_for_it(tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, [w.format(tmp_path) for w in words])
    assert isinstance(done.exception, TailraceError)
    assert "contains no table" in str(done.exception)
    assert "Spark" not in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "postgresql://me@db/shop"], "a database cannot hold exceptions"),
        (["--target", "s3://bucket/lake"], "there is no target of that scheme"),
        (["--target", "lake", "--on-bad", "skip"], "unknown treatment of bad rows: 'skip'"),
    ],
)
def test_apply_refuses_its_arguments_at_once(
    monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setattr("tailrace.runtime.session.session", lambda *a, **k: pytest.fail("Spark is started"))
    changes = str(EXAMPLES / "sqdr" / "tables")
    done = CliRunner().invoke(app, ["apply", "--changes", changes, "--format", "sqdr", *words])
    assert said in str(done.exception)
