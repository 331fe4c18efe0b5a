"""The decision table, literal: every mode, change and policy."""

from __future__ import annotations

import pytest

from tailrace.engine.rule_docs import markdown, outcomes_markdown
from tailrace.engine.rules import CONFLICTS, MODES, POLICIES, SITUATIONS, Rules, reason
from tailrace.errors import ConfigError
from tailrace.operate.vendor_apply import Ruling, ruling

pytestmark = pytest.mark.unit

Told = tuple[str, str, "int | None", bool]
PLAIN: dict[str, dict[str, Told]] = {
    "strict": {
        "I0": ("write", "I", 1, False),
        "U1": ("write", "M", 1, False),
        "D1": ("delete", "D", 1, False),
        "K10": ("move", "M", 1, False),
        "T": ("truncate", "T", None, False),
        "?": ("nothing", "?", 0, True),
    },
    "upsert": {
        "I0": ("write", "I", 1, False),
        "U1": ("write", "U", 1, False),
        "D1": ("delete", "D", 1, False),
        "K10": ("move", "U", 1, False),
        "T": ("truncate", "T", None, False),
        "?": ("nothing", "?", 0, True),
    },
    "soft_delete": {
        "I0": ("write", "I", 1, False),
        "U1": ("write", "U", 1, False),
        "D1": ("mark", "D", 1, False),
        "K10": ("move", "U", 1, False),
        "T": ("truncate", "T", None, False),
        "?": ("nothing", "?", 0, True),
    },
}
APPLIED: dict[str, dict[str, Told]] = {
    "strict": {
        "I1": ("write", "M", 1, True),
        "U0": ("write", "I", 1, True),
        "D0": ("nothing", "D", 0, True),
        "K11": ("move", "M", 2, True),
        "K00": ("write", "I", 1, True),
        "K01": ("write", "M", 1, True),
    },
    "upsert": {
        "I1": ("write", "U", 1, False),
        "U0": ("write", "I", 1, False),
        "D0": ("nothing", "\0", 0, False),
        "K11": ("move", "U", 2, True),
        "K00": ("write", "I", 1, False),
        "K01": ("write", "U", 1, False),
    },
}
APPLIED["soft_delete"] = APPLIED["upsert"]
TRIED = {"I1": "I", "U0": "U", "D0": "D", "K11": "U", "K00": "U", "K01": "U"}


def told(rules: Rules, situation: str) -> Told:
    made = rules.outcome(situation)
    return made.effect, made.action, made.rows, made.flagged


@pytest.mark.parametrize("mode", list(PLAIN))
def test_the_whole_table(mode: str) -> None:
    for policy in POLICIES:
        kinds = [kind for kind in CONFLICTS if (kind, policy) != ("data_error", "apply")]
        rules = Rules.of(mode, dict.fromkeys(kinds, policy))
        want = dict(PLAIN[mode])
        for situation, letter in TRIED.items():
            tried = "M" if letter == "U" and mode == "strict" else letter
            want[situation] = {
                "apply": APPLIED[mode][situation],
                "ignore": ("nothing", "\0", 0, False),
            }.get(policy, ("nothing", tried, 0, True))
        for letter in "IUD":
            tried = "M" if letter == "U" and mode == "strict" else letter
            ignored = policy == "ignore"
            want[f"{letter}!"] = ("nothing", "\0" if ignored else tried, 0, not ignored)
        assert {s: told(rules, s) for s in SITUATIONS} == want, policy


def test_an_archive_copies_everything_but_truncates() -> None:
    found = {s: told(Rules.of("archive"), s) for s in SITUATIONS}
    assert found.pop("T") == ("nothing", "\0", 0, False)
    assert found.pop("?") == ("nothing", "?", 0, True)
    assert [found.pop(f"{letter}!")[0] for letter in "IUD"] == ["nothing"] * 3
    assert set(found.values()) == {("copy", "I", 1, False)}


def test_which_conflict_decides() -> None:
    kinds = {s: Rules.of("strict").conflict(s) for s in TRIED}
    assert kinds == {
        "I1": "insert_exists",
        "U0": "update_missing",
        "D0": "delete_missing",
        "K11": "insert_exists",
        "K00": "update_missing",
        "K01": "update_missing",
    }
    # Made an insert, the update meets the row of its new key.
    assert Rules.of("strict", {"update_missing": "apply"}).conflict("K01") == "insert_exists"


def test_defaults() -> None:
    lenient = ["apply", "apply", "ignore", "stop"]
    assert {m: list(Rules.of(m).on.values()) for m in MODES} == {
        "strict": ["log", "log", "log", "stop"],
        "upsert": lenient,
        "archive": ["stop"],
        "soft_delete": lenient,
    }
    assert [list(Rules.of(m).on) for m in ("strict", "upsert")] == [list(CONFLICTS)] * 2
    assert [Rules.of(m).plain for m in MODES] == [False, True, False, False]


def test_rules_of_an_open_window_fit_every_change_and_keep_the_policy_of_what_nothing_fits() -> None:
    own = Rules.of(
        "strict", {"update_missing": "log then stop after 9", "data_error": "log then suspend after 2"}
    )
    assert own.lenient.mode == "upsert"
    assert dict(own.lenient.on) == {
        "insert_exists": "apply", "update_missing": "apply", "delete_missing": "ignore", "data_error": "log",
    }  # fmt: skip
    assert own.lenient.limits == {"data_error": (2, "suspend")}
    assert Rules.of("soft_delete").lenient == Rules.of("soft_delete") and Rules.of("strict").lenient.plain


@pytest.mark.parametrize(
    ("mode", "on"),
    [
        ("merge", {}),
        ("strict", {"delete_exists": "log"}),
        ("strict", {"insert_exists": "retry"}),
        ("archive", {"insert_exists": "log"}),
        ("upsert", {"data_error": "apply"}),
        ("upsert", {"insert_exists": "ignore then stop after 3"}),
    ],
)
def test_what_there_is_not(mode: str, on: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Rules.of(mode, on)


def test_every_flag_has_a_reason_and_every_row_of_the_page_a_place() -> None:
    assert reason(None) and all(reason(k) for k in CONFLICTS)
    page = markdown() + outcomes_markdown()
    assert all(text in page for text in [*SITUATIONS.values(), *MODES.values(), *POLICIES.values()])


def test_options_of_the_command() -> None:
    assert ruling(None, {}, None, None, "all") is None
    assert ruling(None, {}, "gone", None, "all") == Ruling(Rules.of("soft_delete", {}, "gone"))
    assert ruling(None, {"insert_exists": "log"}, None, None, "all") == Ruling(
        Rules.of("upsert", {"insert_exists": "log"})
    )
    assert ruling(None, {}, None, "log", "keys") == Ruling(Rules.of("upsert"), "log", "keys")
    with pytest.raises(ConfigError, match="does not mark rows"):
        ruling("strict", {}, "gone", None, "all")
    with pytest.raises(ConfigError, match="no key log mode"):
        ruling("strict", {}, None, "log", "some")
