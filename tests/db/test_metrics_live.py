"""A process that captures, as Prometheus and a collector of logs see it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.db


def scrape(port: int) -> dict[str, float]:
    """The values of metrics that have no label but `task`; none as long as nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    except urllib.error.URLError:
        return {}
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {s.name: s.value for s in samples if s.labels.keys() <= {"task"}}


@pytest.mark.slow
def test_capture_serves_metrics_and_logs_objects(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create table s.a (id int primary key)")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nsource: {{url: '{database}', tables: [s.*]}}\nbaseline: {{enabled: false}}\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tailrace",
        "capture",
        str(file),
        "--metrics",
        f"127.0.0.1:{port}",
        "-v",
    ]
    with subprocess.Popen(
        [*command, "--log-format", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as ran:  # fmt: skip
        end, wrote = time.monotonic() + 180, False
        while (found := scrape(port)).get("tailrace_capture_records_total", 0) < 1002:
            assert ran.poll() is None, ran.communicate()[1]
            assert time.monotonic() < end, "it did not happen in time"
            if not wrote and found.get("tailrace_source_lag_bytes") is not None:  # the stream is being read
                db.execute("insert into s.a select generate_series(1, 1000)")
                wrote = True
            time.sleep(0.1)
        ran.send_signal(signal.SIGTERM)
        _, said = ran.communicate(timeout=60)
    assert ran.returncode == 0
    assert found["tailrace_capture_transactions_total"] == 1
    assert found["tailrace_capture_bytes_total"] > 10_000
    assert found["tailrace_source_retained_bytes"] > 0
    lsn = db.execute("select pg_current_wal_lsn() - '0/0'").fetchone()
    assert lsn is not None and 0 < found["tailrace_source_position_bytes"] <= lsn[0]
    lines = [json.loads(line) for line in said.splitlines()]
    captured = [one for one in lines if one["message"].startswith("captured ")]
    assert {(one["task"], one["command"], one["level"]) for one in captured} == {("shop", "capture", "INFO")}
    assert captured[-1]["batch"] >= 1002 and len(captured[-1]["position"]) == 40
