"""What `deploy/` has is made for metrics and commands that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailrace.runtime.metrics import METRICS

pytestmark = pytest.mark.unit
DEPLOY = Path(__file__).parents[2] / "deploy"
SERIES = {series: one for one in METRICS.values() for series in one.series}
ELSEWHERE = {"up", "process_resident_memory_bytes"}
"""Metrics of Prometheus itself, and of every process that its library serves."""
_WORDS = {
    "by", "on", "ignoring", "unless", "and", "time", "rate", "increase", "sum", "max", "min", "count", "topk",
    "histogram_quantile", "or", "label_values", "last_over_time",
}  # fmt: skip


def names(expression: str) -> set[str]:
    """The metrics of an expression.

    >>> sorted(names('sum by (a) (rate(b_total{c=~"$d"}[5m])) > 3 unless on (a) e{f="g h"}'))
    ['b_total', 'e']
    """
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|ignoring) *\([^)]*\)", " ", expression)
    return {w for w in re.findall(r"[a-zA-Z_:][\w:]*", bare) if w not in _WORDS}


def labels(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Of each metric in an expression the labels that it is selected by."""
    for name, inside in re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))


def rules() -> list[dict[str, Any]]:
    return [
        r
        for g in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
        for r in g["rules"]
    ]


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/tailrace.json").read_text())
    return found


def expressions() -> dict[str, str]:
    made = {r["alert"]: r["expr"] for r in rules()}
    return made | {f"{p['title']} {t['refId']}": t["expr"] for p in board()["panels"] for t in p["targets"]}


@pytest.mark.parametrize("where", expressions())
def test_every_metric_exists_with_its_labels(where: str) -> None:
    expression = expressions()[where]
    found = names(expression)
    assert found and found - SERIES.keys() - ELSEWHERE == set()
    for name, used in labels(expression):
        if name in SERIES:
            assert used - {"task", "le"} <= set(SERIES[name].labels)


def test_rates_are_of_counters_and_quantiles_of_histograms() -> None:
    for expression in expressions().values():
        for name in re.findall(r"(?:rate|increase)\((\w+)", expression):
            assert SERIES[name].kind in ("counter", "histogram")
        for name in re.findall(r"histogram_quantile\(.*?(\w+_bucket)", expression):
            assert SERIES[name].kind == "histogram"


def test_states_and_kinds_that_are_asked_for_exist() -> None:
    said = {one.name: one.help for one in METRICS.values()}
    for expression in expressions().values():
        for name, inside in re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression):
            for label, values in re.findall(r'(\w+)\s*(?:=~|!~|=|!=)\s*"([^"]*)"', inside):
                if label in ("state", "stage", "process", "kind", "operation") and "$" not in values:
                    assert all(f"`{v}`" in said[SERIES[name].name] for v in values.split("|"))


@pytest.mark.parametrize("stage", ["apply", "store", "maintenance"])
def test_a_stage_that_has_never_succeeded_is_late_too(stage: str) -> None:
    """Such a stage has no series: a rule that has it on the right of `and` cannot come true."""
    success = rf"tailrace_stage_last_success_timestamp_seconds{{stage=\"{stage}\"}}"
    found = [" ".join(r["expr"].split()) for r in rules() if re.search(success, r["expr"])]
    started = r"time\(\) - tailrace_process_start_time_seconds{process=\"pipeline\"} > (.*?)"
    late = re.compile(rf"{started} unless on \(task\) time\(\) - {success} <= \1")
    assert len(found) == 1 and late.search(found[0])


@pytest.mark.parametrize("name", ["tailrace_source_retained_bytes", "tailrace_source_headroom_bytes"])
def test_what_the_source_keeps_is_known_after_capture_has_ended(name: str) -> None:
    """Which has no series while capture does not run, when it matters most."""
    (found,) = [" ".join(r["expr"].split()) for r in rules() if name in r["expr"]]
    running = r'unless on \(task\) tailrace_process_state{process="capture", state="running"} == 1'
    assert re.fullmatch(rf"{name} ([<>].*) or last_over_time\({name}\[1d\]\) \1 {running}", found)


def test_every_rule_says_what_is_the_matter() -> None:
    alerts = [r["alert"] for r in rules()]
    assert len(set(alerts)) == len(alerts) > 10
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
        own = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        known = {
            "task",
            "instance",
            *(x for n in names(rule["expr"]) & SERIES.keys() for x in SERIES[n].labels),
        }
        assert own <= known


def test_the_board_has_one_number_for_each_panel_and_no_overlap() -> None:
    panels = board()["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    spots = [
        (x, y)
        for p in panels
        for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
        for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
    ]
    assert len(set(spots)) == len(spots) and max(x for x, _ in spots) < 24


def test_prometheus_reads_the_rules_that_are_there() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus/scrape.yml").read_text())
    assert all((DEPLOY / "prometheus" / name).is_file() for name in scrape["rule_files"])
    jobs = {one["job_name"] for one in scrape["scrape_configs"]}
    assert set(re.findall(r'job="(\w+)"', " ".join(r["expr"] for r in rules()))) <= jobs


def unit() -> str:
    return (DEPLOY / "systemd/tailrace@.service").read_text()


def test_the_unit_runs_a_command_that_there_is() -> None:
    line = re.search(r"^ExecStart=(.*)$", unit(), re.MULTILINE)
    assert line is not None
    words = (
        line[1].replace("${METRICS}", "127.0.0.1:1").replace("/etc/tailrace/%i.yaml", "/no/such.yaml").split()
    )
    ran = subprocess.run(
        [sys.executable, "-m", "tailrace", *words[1:]], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1 and "the task file cannot be read" in ran.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "tailrace@.service"
    file.write_text(unit().replace("/opt/tailrace/bin/tailrace", sys.executable))
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
