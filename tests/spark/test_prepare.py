"""`tailrace prepare`: a JVM that has to use the file with Spark's classes starts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tailrace.runtime import class_archive
from tailrace.runtime.java import ensure_java

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SESSION = """
from tailrace.runtime import class_archive
from tailrace.runtime.java import ensure_java
from tailrace.runtime.session import session
said = class_archive.options(ensure_java())
assert "SharedArchiveFile" in said
print(session(conf={"spark.driver.extraJavaOptions": said + " -Xshare:on"}).range(3).count())
"""


def test_spark_starts_with_the_classes_that_were_kept() -> None:
    """Made once on a machine, for this test and for those that start a Spark of their own."""
    if not class_archive.supports_archives(home := ensure_java()):
        pytest.skip("this Java keeps no classes of others")
    if not class_archive.options(home):
        command = [sys.executable, "-m", "tailrace", "prepare", "--json"]
        made = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert made["classes"] == str(class_archive.archive_path(home))
    assert class_archive.archive_path(home).stat().st_size > 50 << 20
    done = subprocess.run([sys.executable, "-c", _SESSION], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3", done.stderr
