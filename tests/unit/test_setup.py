"""`init` and `validate` around their functions, with a source that only says what it is told to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tailrace.config.task import Task, load
from tailrace.demo import demo, demo_folder
from tailrace.demo.result import DemoResult, TableLine
from tailrace.errors import ConfigError
from tailrace.runtime import setup
from tailrace.sources import open_source, opener
from tailrace.sources.base import Finding, LeftOut
from tailrace.sources.postgresql.source import PostgresSource
from tailrace.state import live

pytestmark = pytest.mark.unit

URL = "postgresql://me@db:5432/Web%20Shop"
WARNING = Finding(
    "warning", "table public.b has no key", "public.b", "alter table public.b replica identity full"
)


class FakeSource:
    """Has three tables."""

    def __init__(self) -> None:
        self.closed = False

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        names = ("public.a", "public.b", "sales.c")
        return [n for n in names if any(fnmatchcase(n, p) for p in patterns)]

    def left_out(self) -> dict[str, LeftOut]:
        return {"public.v": LeftOut("a view", "list the tables under it")}

    def identity(self) -> dict[str, str]:
        return {"database": "shop"}

    def check(
        self,
        tables: Sequence[str],
        after: bytes | None,
        stored: Mapping[str, Any] | None = None,
        *,
        settled: bool = True,
    ) -> list[Finding]:
        return [WARNING] if "public.b" in tables else []

    def offers(self, tables: Sequence[str]) -> list[Finding]:
        return []

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    fake = FakeSource()
    monkeypatch.setattr(setup, "open_source", lambda task: fake)
    return fake


def test_a_draft_names_every_table_and_can_be_loaded(source: FakeSource, tmp_path: Path) -> None:
    made = setup.draft(URL, output=tmp_path / "shop.yaml")
    task = load(made.path)
    assert (task.name, task.source.url) == ("web-shop", URL)
    assert task.source.tables == made.tables == ["public.a", "public.b", "sales.c"]
    assert task.home == str(tmp_path.resolve() / "web-shop")
    note = Finding(
        "note", "wildcards leave out public.v: a view", "source.tables", "list the tables under it"
    )
    assert made.findings == [WARNING, note]
    assert made.as_dict()["findings"][0]["cure"] == WARNING.cure
    assert source.closed


def test_a_draft_keeps_patterns_as_they_were_given(source: FakeSource, tmp_path: Path) -> None:
    made = setup.draft(URL, name="s", patterns=["sales.*"], output=tmp_path / "s.yaml")
    assert load(made.path).source.tables == ["sales.*"]
    assert (made.tables, made.findings) == (["sales.c"], [])


def test_an_existing_file_is_overwritten_only_when_told(source: FakeSource, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        setup.draft(URL, output=file)
    assert file.read_text() == "mine"
    setup.draft(URL, output=file, force=True)
    assert load(file).name == "web-shop"


def test_a_password_from_the_environment_stays_out_of_the_file(
    source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "geheim")
    made = setup.draft("postgresql://me:${SHOP_PASSWORD}@db/shop", output=tmp_path / "s.yaml")
    assert "geheim" not in made.path.read_text()
    assert load(made.path).source.url == "postgresql://me:geheim@db/shop"


@pytest.mark.parametrize(
    ("address", "left"),
    [
        ("postgresql://me:ge%40heim@db:5433/shop", "postgresql://me:${SHOP_PASSWORD}@db:5433/shop"),
        ("postgresql://me@db/shop?password=ge%40heim", "postgresql://me@db/shop?password=${SHOP_PASSWORD}"),
    ],
)
def test_a_password_in_the_address_becomes_a_variable(
    source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, left: str
) -> None:
    made = setup.draft(address, output=tmp_path / "s.yaml")
    assert made.variables == ("SHOP_PASSWORD",) and f"url: {left}\n" in made.path.read_text()
    with pytest.raises(ConfigError, match="no variable SHOP_PASSWORD"):
        load(made.path)
    monkeypatch.setenv("SHOP_PASSWORD", "ge%40heim")
    assert load(made.path).source.url == address


def test_each_password_of_an_address_becomes_a_variable_of_its_own(
    source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "postgresql://me:a@db/shop?sslpassword=b&password=c"
    made = setup.draft(address, output=tmp_path / "s.yaml")
    assert made.variables == ("SHOP_PASSWORD", "SHOP_SSLPASSWORD", "SHOP_PASSWORD_2")
    for name, value in zip(made.variables, "abc", strict=True):
        monkeypatch.setenv(name, value)
    assert load(made.path).source.url == address


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": URL, "patterns": ["nobody.*"]}, "no table matches nobody"),
        ({"url": URL, "patterns": ["Sales.*"]}, r"did you mean sales\.\*"),
        ({"url": URL, "name": "My Task"}, "name"),
        ({"url": "postgresql://me:geheim@db/x", "patterns": ["noschema"]}, "has no schema"),
        (
            {"url": URL, "name": "Bad Name"},
            "^name: 'Bad Name' is no name of a task: write 1 to 40 lower-case",
        ),
    ],
)
def test_what_cannot_work_is_said_without_the_password(
    source: FakeSource, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        setup.draft(**given, output=tmp_path / "s.yaml")
    assert "geheim" not in str(caught.value)
    assert not (tmp_path / "s.yaml").exists()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("postgesql://db/x", "did you mean postgresql?"),
        ("oracle://db/x", "write postgresql://"),
        ("db", "write"),
    ],
)
def test_an_address_nobody_reads_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opener(url)
    assert hint in str(caught.value)


def test_a_postgresql_address_opens_without_connecting() -> None:
    task = Task.model_validate({"name": "t", "source": {"url": "postgresql://nobody@127.0.0.1:1/none"}})
    source = open_source(task)
    assert isinstance(source, PostgresSource)
    source.close()


@pytest.mark.parametrize("running", [[], ["capture"], ["pipeline"]])
def test_validation_catches_up_only_when_nothing_runs(
    source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: list[str]
) -> None:
    made = setup.draft(URL, output=tmp_path / "s.yaml")
    task, given = load(made.path), {}
    monkeypatch.setattr(
        "tailrace.runtime.session.session", lambda name, conf: pytest.fail("nobody asks for Spark")
    )
    monkeypatch.setattr(
        "tailrace.validate.validation.validate", lambda *args, **more: given.update(more, args=args)
    )
    with ExitStack() as held:
        for half in running:
            held.enter_context(live.lock(task.run_path, half))
        setup.validate_task(made.path, task, ["public.a"], timeout_s=1, samples=2)
    assert (given["args"][0], given["args"][2]) == (task, source)
    assert (given["tables"], given["samples"]) == (["public.a"], 2)
    assert (given["catch_up"] is None) == bool(running)


def test_the_demo_replaces_only_what_a_demo_made(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match="was not created by a demo"):
        demo_folder.make(tmp_path / "demo")
    assert (tmp_path / "demo" / "letter.txt").read_text() == "mine"
    server = demo_folder.make(tmp_path / "new" / "demo")
    (tmp_path / "new" / "demo" / "old").touch()
    assert demo_folder.server_of(tmp_path / "new" / "demo").port == server.port
    demo_folder.make(tmp_path / "new" / "demo")
    assert [p.name for p in (tmp_path / "new" / "demo").iterdir()] == [demo_folder.MARK]
    with pytest.raises(ConfigError, match="the folder has no demo"):
        demo_folder.server_of(tmp_path)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_demo_with_one_table_apart_says_so_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    lines = [TableLine("s.a", 2, 2, True, 5, 1.5), TableLine("s.b", 2, 1, False, 7, 2.0, "1 rows")]
    played = DemoResult("demo", "demo/demo.yaml", "demo/target", "demo/ct", tables=lines, position="0" * 40)
    monkeypatch.setattr("tailrace.demo.play.play", lambda *args, **more: played)
    assert not demo(tmp_path, seconds=1, scale=1, as_json=as_json)
    said = capsys.readouterr().out
    assert ('"equal": false' if as_json else "s.b differs: 1 rows") in said
    assert as_json or "every target is equal" not in said
