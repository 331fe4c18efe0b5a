"""What commands log: text, or one JSON object a line with what it is about."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tailrace.config import logs
from tailrace.runtime.process_log import ProcessLog

pytestmark = pytest.mark.unit


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


EACH = """
import json, os, sys
import tailrace.operate.status
from tailrace.cli import main
for words, env in json.loads(sys.argv[1]):
    if not os.fork():
        os.environ.update(env)
        sys.argv = ["tailrace", *words]
        main.main()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
"""Runs commands, each in a process of its own, which need not load everything; prints their codes."""


def test_an_error_is_an_object_wherever_the_option_stands_and_text_without_it() -> None:
    commands: list[tuple[list[str], dict[str, str]]] = [
        (["--log-format", "json", "status", "no.yaml"], {}),
        (["status", "no.yaml", "--log-format=json"], {}),
        (["status", "no.yaml"], {logs.FORMAT: "json"}),
        (["status", "no.yaml"], {}),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps(commands)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["1"] * 4
    objects, error, text = ran.stderr.partition("error: ")
    for said in (said_by_each := lines(objects)):
        assert (said["level"], said["command"], said["where"]) == ("ERROR", "status", "no.yaml")
        assert said["message"] == "the task file cannot be read: No such file or directory"
        assert said["hint"].startswith("`tailrace init") and said["time"].endswith("Z")
    assert len(said_by_each) == 3
    assert error and text.startswith("the task file cannot be read")


def test_tracebacks_warnings_and_threads_are_objects_too() -> None:
    code = """
import logging, threading, warnings
from tailrace.config import logs
logs.begin("json", logging.WARNING)
logs.about(task="shop")
warnings.warn("odd")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
logging.getLogger("tailrace.apply").warning("%s waits", "s.t", extra={"table": "s.t", "batch": 7})
raise KeyError("x")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    odd, thread, waits, end = lines(ran.stderr)
    assert {one["task"] for one in (odd, thread, waits, end)} == {"shop"}
    assert (odd["level"], odd["logger"]) == ("WARNING", "py.warnings") and "odd" in odd["message"]
    assert thread["message"] == "ZeroDivisionError: division by zero" and "Traceback" in thread["exception"]
    assert (waits["message"], waits["table"], waits["batch"]) == ("s.t waits", "s.t", 7)
    assert (end["level"], end["message"], ran.returncode) == ("CRITICAL", "KeyError: 'x'", 1)


def test_a_command_that_is_stopped_says_so_in_an_object() -> None:
    code = "import logging, time; from tailrace.cli import signals; from tailrace.config import logs; signals.end_on_interrupt();"
    code += "logs.begin('json', logging.WARNING); print('ready', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as ran:
        assert ran.stdout is not None and ran.stdout.readline() == "ready\n"
        ran.send_signal(signal.SIGINT)
        _, said = ran.communicate(timeout=60)
    assert ran.returncode == 130
    assert [one["message"] for one in lines(said)] == ["stopped"]


def test_a_child_s_lines_are_kept_and_passed_on(tmp_path: Path) -> None:
    log, passed = ProcessLog(tmp_path / "capture.log"), list[str]()
    with subprocess.Popen(
        [sys.executable, "-c", "print('{\"message\": \"a\"}'); print('b')"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        log.take(child.stdout, also=passed.append)
        words = log.last_lines(5)
    assert passed == ['{"message": "a"}\n', "b\n"]
    assert words == '{"message": "a"}\nb'
    assert [logs.text(one) for one in words.splitlines()] == ["a", "b"]


def test_what_spark_logs_has_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PatternLayout" in logs.log4j()
    monkeypatch.setenv(logs.FORMAT, "json")
    kind, template = logs.log4j().splitlines()[-2:]
    assert kind.endswith("= JsonTemplateLayout")
    said = json.loads(template.partition(" = ")[2])
    assert [*said][:4] == ["time", "level", "logger", "message"]
    jars = Path(pyspark.__file__).parent / "jars"  # the layout is a jar of its own, which Spark brings
    assert list(jars.glob("log4j-layout-template-json-*.jar"))


def test_times_are_utc_with_milliseconds() -> None:
    record = logging.makeLogRecord({"msg": "x", "created": time.time()})
    assert len(json.loads(logs.JsonLines().format(record))["time"]) == len("2026-11-22T10:00:00.000Z")
