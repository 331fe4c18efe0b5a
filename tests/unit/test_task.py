"""The task file: defaults, folders, every mistake with its line, and text that reads back."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tailrace.config.quantities import seconds, size
from tailrace.config.reference import reference
from tailrace.config.task import Task, file_name, load, read
from tailrace.config.template import full
from tailrace.errors import ConfigError
from tailrace.lake import json_files
from tailrace.state import live

pytestmark = pytest.mark.unit

HERE = Path("/work-folder")
URL = "postgresql://me@db:5432/shop"
SMALL = f"name: shop\nsource: {{url: '{URL}'}}\n"


def task(text: str) -> Task:
    found = read(text, HERE)
    assert isinstance(found, Task), found
    return found


def mistakes(text: str) -> list[str]:
    found = read(text, HERE)
    assert isinstance(found, list)
    return [str(one) for one in found]


def test_the_smallest_file_has_sensible_defaults() -> None:
    small = task(SMALL)
    assert small.source.tables == ["public.*"]
    assert (small.freshness, small.cost.cpu, small.capture.commit_bytes) == ("auto", 0.25, 64 << 20)
    assert small.target.one_task == 4 << 30
    assert small.maintenance.keep_log == 3600.0
    assert small.on_bad_value == "stop" and small.spark.session_conf == {}


def test_paths_start_at_the_file() -> None:
    small = task(SMALL + "home: ../tasks/shop\ntarget: {path: lake}\n")
    assert small.log_path == "/tasks/shop/log"
    assert small.changes_path("public.orders") == "/tasks/shop/changes/public.orders__ct"
    assert small.target_path("public.orders") == "/work-folder/lake/public.orders"
    assert small.control_path("stored") == "/tasks/shop/control/stored"
    assert task(SMALL).home == "/work-folder/shop"
    assert task(SMALL).target.path == "/work-folder/shop/target"


def test_names_of_tables_become_folders_that_differ() -> None:
    names = ["a.b", "a.B", "a.b c", "a.b~20~c", "a./etc", "a.b%20c", "a.é"]
    folders = [file_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert not any(set(folder) & set("/% ") for folder in folders)


def test_quantities_are_written_as_people_do() -> None:
    found = task(
        SMALL + "freshness: 500ms\ncapture: {commit_bytes: 1GiB, idle_advance: 2}\ncost: {cpu: 40%}\n"
    )
    assert (found.freshness, found.cost.cpu) == (0.5, 0.4)
    assert (found.capture.commit_bytes, found.capture.idle_advance) == (1 << 30, 2.0)


@pytest.mark.parametrize("bad", ["soon", "1x", "s", "", "-1s", True, None, "1 s 2"])
def test_wrong_durations(bad: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(bad)


@pytest.mark.parametrize("bad", ["big", "1XB", "", True, None, "-1B", 1.5j])
def test_wrong_sizes(bad: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        size(bad)


def test_every_mistake_is_told_with_its_line() -> None:
    text = """\
nam: shop
home: s4://bucket/x
source:
  url: postgesql://me@h/db
  table: [a.b]
  tables:
    - orders
capture:
  idle_advance: soon
  comit_bytes: 64MiB
  workers: 3
baseline: {workers: 0}
store: 5
on_bad_value: ignore
types:
  a.b: string
spark: {spark.x: true, spark.y: 5}
"""
    found = mistakes(text)
    expected = {
        "line 1: name is missing": "",
        "line 1: unknown setting 'nam'": "did you mean 'name'?",
        "line 2: home: there is no object store of the scheme s4": "s3://",
        "line 4: source.url: no source supports ": "did you mean postgresql?",
        "line 5: unknown setting 'source.table'": "did you mean 'tables'?",
        "line 7: source.tables: 'orders' has no schema": "public.orders",
        "line 9: capture.idle_advance: 'soon' is not a duration": "500ms",
        "line 10: unknown setting 'capture.comit_bytes'": "did you mean 'commit_bytes'?",
        "line 11: unknown setting 'capture.workers'": "it belongs under baseline",
        "line 12: baseline.workers: must be greater": "equal to 1",
        "line 13: store is a section": "",
        "line 14: on_bad_value: must be 'stop' or 'quarantine'": "",
        "line 16: types: 'a.b' has no column": "",
    }
    assert len(found) == len(expected), found
    for line, (begin, more) in zip(found, expected.items(), strict=True):
        assert line.startswith(begin) and more in line


TABLES = """\
apply: {mode: strict, on: {delete_missing: log then suspend after 100}}
tables:
  shop.log: {mode: archive}
  shop.*: {on: {insert_exists: ignore}}
  shop.item:
    soft_delete: gone
keylog: {mode: off}
"""


def test_tables_have_settings_of_their_own() -> None:
    found = task(SMALL + TABLES)
    item, other = found.table("shop.item"), found.table("shop.other")
    assert (item.rule_mode, item.soft_delete, item.on) == ("soft_delete", "gone", {})
    assert {kind: str(policy) for kind, policy in other.on.items()} == {
        "delete_missing": "log then suspend after 100",
        "insert_exists": "ignore",
    }
    assert (found.table("shop.log").rule_mode, found.table("x.y").rule_mode) == ("archive", "strict")
    assert (found.keylog.mode, found.keylog_path) == ("off", "/work-folder/shop/keylog/ir_keylog")
    assert task(full(found)).tables == found.tables


def test_only_the_mode_soft_delete_marks_rows() -> None:
    """`soft_delete` implies its mode: another one beside it is a mistake, wherever both are named."""
    more = "apply: {mode: strict, soft_delete: gone}\ntables:\n  shop.*: {mode: archive, soft_delete: gone}\n"
    assert mistakes(SMALL + more) == [
        "line 3: apply: the mode strict does not mark rows, and `soft_delete` names the column for that",
        "line 5: tables.shop.*: the mode archive does not mark rows, and `soft_delete` names the column for that",
    ]


@pytest.mark.parametrize(
    ("apply", "of_table", "expected"),
    [
        ("soft_delete: gone", "mode: soft_delete", ("soft_delete", "gone", ["delete_missing"])),
        ("mode: soft_delete, soft_delete: gone", "soft_delete: away", ("soft_delete", "away", ["delete_missing"])),
        ("mode: upsert", "mode: upsert", ("upsert", None, ["delete_missing"])),
        ("", "mode: upsert", ("upsert", None, ["delete_missing"])),
        ("soft_delete: gone", "mode: strict", ("strict", None, [])),
        ("mode: strict", "soft_delete: gone", ("soft_delete", "gone", [])),
    ],
)  # fmt: skip
def test_who_names_the_mode_that_holds_anyway_keeps_what_was_said_of_it(
    apply: str, of_table: str, expected: tuple[str, str | None, list[str]]
) -> None:
    general = ", ".join(filter(None, [apply, "on: {delete_missing: log}"]))
    found = task(f"{SMALL}apply: {{{general}}}\ntables: {{s.t: {{{of_table}}}}}\n").table("s.t")
    assert (found.rule_mode, found.soft_delete, list(found.on)) == expected


@pytest.mark.parametrize(
    ("name", "section"),
    [
        *((n, "capture") for n in ("commit_bytes", "chunk_bytes")),
        ("max_bytes", "store"),
        *((n, "apply") for n in ("max_bytes", "merge_memory")),
    ],
)
def test_nothing_is_too_little(name: str, section: str) -> None:
    """With 0 bytes at once nothing would ever be read; with no time at all a loop would never rest."""
    assert mistakes(f"{SMALL}{section}: {{{name}: 0}}\n") == [
        f"line 3: {section}.{name}: must be more than 0"
    ]
    assert getattr(getattr(task(f"{SMALL}{section}: {{{name}: 1}}\n"), section), name) == 1


def test_a_duration_ends() -> None:
    assert mistakes(SMALL + "maintenance: {every: .inf}\n") == [
        "line 3: maintenance.every: must be a finite number"
    ]


def test_a_mistake_in_the_settings_of_a_group() -> None:
    assert mistakes(SMALL + "groups:\n  g: {tables: [s.*], retry: 3}\n") == [
        "line 4: unknown setting 'groups.g.retry'; did you mean 'retries'?"
    ]


def test_mistakes_in_the_settings_of_tables() -> None:
    text = SMALL + "tables:\n  a.b: {mod: strict}\n  a.c: {on: {insert_exists: never, gone: log}}\n"
    assert mistakes(text) == [
        "line 4: unknown setting 'tables.a.b.mod'; did you mean 'mode'?",
        "line 5: tables.a.c.on.insert_exists.policy: must be 'apply', 'ignore', 'log', 'suspend' or 'stop'",
        "line 5: tables.a.c.on: unknown conflict 'gone': use one of insert_exists, update_missing, delete_missing, "
        "data_error",
    ]
    limited = SMALL + "apply: {on: {insert_exists: {policy: ignore, after: 5}}}\n"
    assert mistakes(limited) == [
        "line 3: apply.on.insert_exists: only `log` can be given a limit, not 'ignore'"
    ]


def test_text_that_yaml_reads_as_something_else() -> None:
    assert mistakes(SMALL.replace("shop\n", "2024\n")) == ["line 1: name: 2024 is not text: put it in quotes"]


def test_broken_yaml_and_keys_that_stand_twice() -> None:
    assert mistakes("name: [shop\nsource: x") == ["line 2: not YAML: expected ',' or ']', but got ':'"]
    assert mistakes(SMALL + "name: again\n") == ["line 3: 'name' is already on line 1"]
    assert mistakes("") == ["line 1: a task file is a mapping: name, source, target, ..."]
    assert mistakes("- name: shop") == ["line 1: a task file is a mapping: name, source, target, ..."]


def test_an_empty_section_has_its_defaults() -> None:
    assert task(SMALL + "capture:\n  # idle_advance: 5s\ntarget:\n") == task(SMALL)


def test_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    text = SMALL.replace("me@", "me:${SHOP_PASSWORD}@")
    assert mistakes(text) == ["line 2: source.url: the environment has no variable SHOP_PASSWORD"]
    monkeypatch.setenv("SHOP_PASSWORD", "s3cret")
    assert task(text).source.url == "postgresql://me:s3cret@db:5432/shop"
    assert "s3cret" not in repr(task(text))


def test_mistakes_never_show_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "s3cret")
    assert "s3cret" not in str(
        mistakes(SMALL.replace("postgresql", "oracle").replace("me@", "me:${SHOP_PASSWORD}@"))
    )


def test_load_tells_file_and_count(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\nsorce: {}\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert "2 mistakes:\n  line 1: source is missing\n  line 2: unknown setting 'sorce'" in caught.value.what
    assert caught.value.where == str(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    file.write_text(SMALL)
    assert load(file).home == str(tmp_path.resolve() / "shop")


@pytest.mark.parametrize(
    "more",
    [
        "",
        "freshness: 100ms\ncapture: {commit_bytes: 1500}\nbaseline: {enabled: false}\n",
        "home: /elsewhere/x\ntarget: {path: ../lake}\n",
        "types: {a.b.c: 'decimal(12,2)'}\nspark: {spark.master: 'local[2]'}",
        "on_bad_value: quarantine\nmaintenance: {every: 0s, keep_log: 90s, small_files: 4}\n",
    ],
)
def test_a_task_written_as_text_is_read_back_the_same(more: str) -> None:
    once = task(SMALL + more)
    assert task(full(once)) == once


def test_a_dumped_task_explains_its_settings_and_shows_defaults() -> None:
    text = full(task(SMALL.replace("url", "tables: ['a.b', 'c.*'], url")))
    assert "\nhome: shop\n" in text and "  path: shop/target\n" in text
    assert "  tables:\n    - a.b\n    - c.*\n" in text
    assert "  # Interval at which an idle source gets the position that was read" in text


def test_a_password_is_written_only_when_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "s3cret")
    address = URL.replace("me@", "me:${SHOP_PASSWORD}@")
    hidden = full(task(SMALL.replace(URL, address)), url=address)
    assert f"\n  url: {address}\n" in hidden and "s3cret" not in hidden


def test_every_setting_is_documented_and_the_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "task-file.md"
    assert page.read_text() == reference(), "run `make docs`"
    assert "|  |\n" not in reference()


def test_live_state_is_replaced_whole(tmp_path: Path) -> None:
    assert json_files.read(tmp_path / "run", "capture") is None
    json_files.write(tmp_path / "run", "capture", {"state": "running", "lag_bytes": 5})
    json_files.write(tmp_path / "run", "capture", {"state": "stopped"})
    state = json_files.read(tmp_path / "run", "capture")
    assert state is not None and state.pop("at") and state == {"state": "stopped"}
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["capture.json"]


def _hold(folder: str, ready: object, done: object) -> None:
    with live.lock(folder, "capture"):
        ready.set()  # type: ignore[attr-defined]
        done.wait(30)  # type: ignore[attr-defined]


def test_one_process_a_half_of_a_task(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Event(), spawn.Event()
    assert not live.locked(tmp_path, "capture")
    other = spawn.Process(target=_hold, args=(str(tmp_path), ready, done))
    other.start()
    assert ready.wait(30)
    assert live.locked(tmp_path, "capture") and not live.locked(tmp_path, "pipeline")
    with pytest.raises(ConfigError, match=f"as process {other.pid}"), live.lock(tmp_path, "capture"):
        pass
    other.kill()  # the lock goes with its process, however it ends
    other.join()
    assert not live.locked(tmp_path, "capture")
    with live.lock(tmp_path, "capture"):
        assert live.locked(tmp_path, "capture")
    assert not live.locked(tmp_path, "capture")


@pytest.mark.parametrize(
    "text",
    [
        "target: '%s?schema=lake'",
        "target: {database: '%s?schema=lake'}",
        "target: {type: postgresql, database: '%s?schema=lake'}",
    ],
)
def test_a_target_may_be_a_database(text: str) -> None:
    found = task(SMALL + text % URL + "\n")
    assert (found.target.type, found.target.database) == ("postgresql", f"{URL}?schema=lake")
    assert task(full(found)) == found
    assert URL not in repr(found.target)


def test_a_target_is_one_thing() -> None:
    assert task(SMALL + "target: lake\n").target.path == "/work-folder/lake"
    assert mistakes(SMALL + "target: mysql://h/d\n")[0].startswith(
        "line 3: target.database: there is no target of that scheme"
    )
    assert "type postgresql has a `database`" in mistakes(SMALL + "target: {type: postgresql}\n")[0]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("shop/control", "/work-folder/shop/control has other files of the task"),
        ("shop/changes/lake", "/work-folder/shop/changes has other files of the task"),
        ("shop/keylog/lake", "/work-folder/shop/keylog has other files of the task"),
    ],
)
def test_targets_have_a_folder_of_their_own(path: str, why: str) -> None:
    said = [f"line 3: target.path: {why}: give the targets their own folder"]
    assert mistakes(f"{SMALL}target: {path}\n") == mistakes(f"{SMALL}target: {{path: {path}}}\n") == said
    for good in ("shop/lake", "shop", "."):
        assert task(f"{SMALL}target: {good}\n").target.path == str(Path("/work-folder") / good)
    assert task(f"{SMALL}target: postgresql://h/d\nhome: target\n").home == "/work-folder/target"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("shop/log", "/work-folder/shop/log has other files of the task"),
        ("shop/changes/keylog", "/work-folder/shop/changes has other files of the task"),
        ("shop", "/work-folder/shop holds `home`"),
        ("shop/target", "/work-folder/shop/target holds the targets"),
    ],
)
def test_a_key_log_has_a_folder_of_its_own(path: str, why: str) -> None:
    found = mistakes(f"{SMALL}keylog: {{path: {path}}}\n")
    assert found == [f"line 3: keylog.path: {why}: give the key log its own folder"]
    assert task(f"{SMALL}keylog: {{path: target/keylog}}\n").keylog_path == "/work-folder/target/keylog"


def test_settings_of_postgresql_with_another_source_name_their_line() -> None:
    found = mistakes(
        "name: shop\nsource: {url: 'soliddb://me@db:1964'}\ntarget: lake\ntables:\n  s.t: {identity: full}\n"
    )
    assert found == ["line 4: tables.s.t.identity: it needs a PostgreSQL source"]
