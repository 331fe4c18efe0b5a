"""`tailrace prepare`: a JVM that has to use the file with Spark's classes starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


def test_spark_starts_with_the_classes_that_were_kept(tmp_path: Path) -> None:
    if not class_archive.able(ensure_java()):
        pytest.skip("this Java keeps no classes of others")
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tailrace", "prepare", "--json"]
    made = json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    assert Path(made["classes"]).parent == tmp_path / "tailrace"
    assert made["bytes"] > 50 << 20
    done = subprocess.run(
        [sys.executable, "-c", _SESSION], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "3"
