"""Passwords from variables and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.config.task import Task, load, read
from tailrace.config.template import full
from tailrace.errors import ConfigError
from tailrace.runtime import setup
from tailrace.sources.postgresql.address import secrets

pytestmark = pytest.mark.unit


def url_of(said: str, folder: Path) -> str:
    found = read(f"name: shop\nsource: {{url: '{said}'}}", folder)
    assert isinstance(found, Task), found
    return found.source.url


def mistake(said: str, folder: Path) -> str:
    found = read(f"name: shop\nsource: {{url: '{said}'}}", folder)
    assert isinstance(found, list)
    return str(found[0])


def test_a_password_from_a_file_needs_no_encoding(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("p@ss/w:rd%\n")
    address = url_of("postgresql://me:${file:pw}@db/shop", tmp_path)
    assert secrets(address) == ["p@ss/w:rd%"]
    assert address == "postgresql://me:p%40ss%2Fw%3Ard%25@db/shop"
    assert url_of(f"postgresql://me:${{file:{tmp_path}/pw}}@db/shop", Path("/")) == address


def test_a_target_is_an_address_though_all_of_it_comes_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "postgresql://me@db/lake"
    (tmp_path / "url").write_text(f"{address}\n")
    monkeypatch.setenv("TARGET_URL", address)
    text = "name: shop\nsource: {url: 'postgresql://db/shop'}\n"
    for said in ("${TARGET_URL}", "${file:url}"):
        found = read(f"{text}target: '{said}'", tmp_path)
        assert isinstance(found, Task), found
        assert (found.target.type, found.target.database) == ("postgresql", address)
    for setting in ("target: {path: 'x/${TARGET_URL}'}", "home: '${TARGET_URL}'"):
        (wrong,) = read(f"{text}{setting}", tmp_path)  # type: ignore[misc]
        assert "a folder takes nothing from elsewhere" in str(wrong)


def test_variables_stand_as_they_are_also_in_a_file_s_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("a b")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("WHO", "me:p%40ss")
    assert url_of("postgresql://me:${file:${CREDENTIALS_DIRECTORY}/password}@db/shop", Path("/")) == (
        "postgresql://me:a%20b@db/shop"
    )
    assert url_of("postgresql://${WHO}@db/shop", Path("/")) == "postgresql://me:p%40ss@db/shop"


def test_a_whole_address_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://me:x%40y@db/shop\r\n")
    assert url_of("${file:url}", tmp_path) == "postgresql://me:x%40y@db/shop"


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (None, "the file pw cannot be read: No such file or directory"),
        (b"\n", "the file pw is empty"),
        (b"\xff\xfe", "the file pw is not UTF-8"),
    ],
)
def test_a_file_that_gives_nothing(tmp_path: Path, held: bytes | None, said: str) -> None:
    if held is not None:
        (tmp_path / "pw").write_bytes(held)
    assert mistake("postgresql://me:${file:pw}@db/shop", tmp_path) == f"line 2: source.url: {said}"


def test_what_a_file_holds_is_in_no_message(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://me:geheim@db:99999999/shop")
    assert "geheim" not in mistake("${file:url}", tmp_path)


def test_a_task_that_was_read_again_has_the_file_s_new_words(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("old")
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\nsource: {url: 'postgresql://me:${file:pw}@db/shop'}\n")
    assert secrets(load(file).source.url) == ["old"]
    (tmp_path / "pw").write_text("new")
    assert secrets(load(file).source.url) == ["new"]


def test_arguments_of_other_drivers(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("p@ss\n")
    text = "name: s\nsource: {url: 'soliddb://x', connect: 'a:b', arguments: {pw: '${file:pw}', port: 1}}"
    found = read(text, tmp_path)
    assert isinstance(found, Task)
    assert found.source.arguments == {"pw": "p@ss", "port": 1}


def test_init_takes_such_an_address_and_writes_it_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Source:
        def tables(self, *_: object) -> list[str]:
            return ["s.t"]

        def left_out(self) -> dict[str, object]:
            return {}

        def check(self, *_: object) -> list[object]:
            return []

        def offers(self, *_: object) -> list[object]:
            return []

        def identity(self) -> dict[str, str]:
            return {"database": "shop"}

        def close(self) -> None:
            pass

    monkeypatch.setattr(setup, "open_source", lambda task: Source())
    (tmp_path / "pw").write_text("p@ss")
    address = "postgresql://me:${file:pw}@db/shop"
    made = setup.draft(address, output=tmp_path / "shop.yaml")
    assert f"url: {address}" in made.path.read_text().replace("'", "")
    assert made.variables == ()
    assert "p@ss" not in made.path.read_text() and "p%40ss" not in made.path.read_text()
    assert secrets(load(made.path).source.url) == ["p@ss"]
    assert (tmp_path / "tailrace.schema.json").is_file()
    with pytest.raises(ConfigError, match="the file no cannot be read"):
        setup.draft("postgresql://me:${file:no}@db/shop", output=tmp_path / "other.yaml")
    assert "p%40ss" not in full(load(made.path), url=address)


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("postgresql://me:${NO_SUCH_PW}@db/shop", "postgresql://me:@db/shop"),
        ("postgresql://me:${file:/no/such/pw}@db/shop", "postgresql://me:@db/shop"),
        ("${NO_SUCH_URL}", "postgresql://"),
        ("${file:${NO_SUCH_FOLDER}/url}", "postgresql://"),
        ("${NO_SUCH_URL}?schema=sales", "postgresql://"),
        ("${NO_SUCH_URL}/shop", "postgresql://"),
    ],
)
def test_what_connects_to_nothing_needs_no_secrets(tmp_path: Path, said: str, seen: str) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(f"name: shop\nsource: {{url: '{said}'}}\ntarget: {{database: '{said}'}}\n")
    with pytest.raises(ConfigError, match="2 mistakes"):
        load(file)
    found = load(file, connects=False)
    assert (found.source.url, found.target.database, found.target.type) == (seen, seen, "postgresql")
    if said not in ("postgresql://me:${NO_SUCH_PW}@db/shop", "${NO_SUCH_URL}"):
        return  # commands see the same of all
    for asked, answer in {
        ("status", str(file)): None,
        ("status", str(file), "--json"): None,
        ("export-status", str(file), str(tmp_path / "out")): None,
        ("export-log", str(file), str(tmp_path / "log")): "there is no LOG yet",
        ("keylog", "tables", str(file)): "there is no key log",
        ("query", "chain", str(file), "public.a", "--key", "id=1"): "no table of the task matches",
        ("sql", str(file), "select * from public.a"): "public.a",
        ("check", str(file)): "2 mistakes",
    }.items():
        ran = CliRunner().invoke(app, asked)
        assert (ran.exit_code == 0) if answer is None else (answer in str(ran.exception)), asked


def test_other_mistakes_are_mistakes_without_secrets_too(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\nsource: {url: 'postgesql://me:${NO_SUCH_PW}@db/shop'}\n")
    with pytest.raises(ConfigError, match="no source supports postgesql"):
        load(file, connects=False)
    file.write_text("name: shop\nsource: {url: 'localhost:5432/shop'}\n")
    with pytest.raises(ConfigError, match="there is no :// in the address"):
        load(file, connects=False)
