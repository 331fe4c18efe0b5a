"""What is said when the JVM goes: nothing by pyspark."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest
from py4j import protocol
from py4j.protocol import Py4JError
from pyspark import accumulators

from tailrace.errors import SparkLostError, from_spark, spark_lost
from tailrace.runtime.jvm import reported_by_us

pytestmark = pytest.mark.unit


def _jvm_that_says(words: bytes) -> None:
    """Connects as the JVM does, says so much, and is gone; returns when pyspark's thread is through with it."""
    server = accumulators._start_update_server("token", is_unix_domain_sock=False)
    reported_by_us(SimpleNamespace(_accumulatorServer=server))
    with socket.create_connection(server.server_address) as jvm:
        jvm.sendall(words)
        jvm.shutdown(socket.SHUT_WR)
        while jvm.recv(1):
            pass
    server.shutdown()


def test_a_jvm_that_ends_leaves_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    _jvm_that_says(b"token" + struct.pack("!i", 0))
    assert capsys.readouterr().err == ""


def test_anything_else_that_goes_wrong_there_is_still_told(capsys: pytest.CaptureFixture[str]) -> None:
    _jvm_that_says(b"wrong")
    assert "provided token" in capsys.readouterr().err


def test_a_call_that_nobody_answers_says_that_the_jvm_is_gone() -> None:
    """py4j gives such a call the answer `ERROR`, without a word behind it."""
    with pytest.raises(Py4JError) as raised:
        protocol.get_return_value(protocol.ERROR, None, "o104", "stop")
    told = from_spark(raised.value, where="store")
    assert isinstance(told, SparkLostError) and told.where == "store"


def test_a_call_that_java_answers_with_an_error_does_not() -> None:
    with pytest.raises(Py4JError) as raised:
        protocol.get_return_value(f"{protocol.ERROR}sjava.lang.Exception: odd", None, "o104", "stop")
    assert "odd" in str(from_spark(raised.value, where="store"))
    assert spark_lost(raised.value, where="store") is None


def test_what_py4j_says_while_the_jvm_ends_is_not_told() -> None:
    said = (
        "import logging, subprocess, sys; from tailrace.runtime import jvm\n"
        "jvm._end(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1, stderr=-3))\n"
        "logging.exception('Exception while sending command.'); logging.error('another')"
    )
    done = subprocess.run([sys.executable, "-c", said], check=True, capture_output=True, text=True)
    assert done.stderr == "ERROR:root:another\n"


def test_a_value_that_does_not_fit_is_told_without_spark_s_advice() -> None:
    said = """[CAST_INVALID_INPUT] The value 'x' of the type "STRING" cannot be cast to "INT" because it is malformed. Correct \
the value as per the syntax, or change its target type. Use `try_cast` to tolerate malformed input and return NULL \
instead. SQLSTATE: 22018
== DataFrame ==
"cast" was called from
jdk.internal.reflect.GeneratedMethodAccessor16.invoke(Unknown Source)
"""
    told = from_spark(RuntimeError(said), where="apply s.t")
    assert told.what.endswith(
        """does not fit its column: The value 'x' of the type "STRING" cannot be cast to "INT" because it is malformed"""
    )
    assert "data_error" in str(told.hint)


def test_an_exception_in_a_task_is_told_without_its_traceback() -> None:
    said = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "task.py", line 7, in f
    yield pa.array(["x"]).cast("int64")
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status
pyarrow.lib.ArrowInvalid: Failed to parse string: 'x'
as a scalar of type int64

JVM stacktrace:
org.apache.spark.SparkException: Job aborted due to stage failure
"""
    told = from_spark(RuntimeError(said), where="validate s.t")
    assert told.what == (
        "a task failed: pyarrow.lib.ArrowInvalid: Failed to parse string: 'x'\nas a scalar of type int64"
    )
