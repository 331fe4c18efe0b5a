"""Delta's jars: which ones the installed packages need, and their files on this machine."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..config.logs import line
from ..config.machine import cache_folder
from ..errors import ConfigError
from .java import ensure_java

KNOWN_PAIRS = {("4.2", "4.4.0"): "io.delta:delta-spark_4.2_2.13:4.4.0"}
"""(Spark release, delta-spark version) known to work together -> Maven coordinates of Delta's jar."""


def coordinates() -> str:
    """Returns the Maven coordinates of the Delta jar for the installed pyspark and delta-spark.

    Raises:
        ConfigError: one of them is missing, or the two are not known to work together.
    """
    try:
        spark, delta = version("pyspark"), version("delta-spark")
    except PackageNotFoundError as e:
        raise ConfigError(f"the package {e.name} is not installed", hint=_pip_pair()) from None
    known = KNOWN_PAIRS.get((".".join(spark.split(".")[:2]), delta))
    if known is None:
        raise ConfigError(
            f"pyspark {spark} with delta-spark {delta} is not a pair known to work", hint=_pip_pair()
        )
    return known


def _pip_pair() -> str:
    pairs = ", or ".join(f"pip install 'pyspark~={s}.0' 'delta-spark=={d}'" for s, d in KNOWN_PAIRS)
    return f"{pairs}; or name the jar yourself: spark: {{spark.jars.packages: ...}}"


def resolve_jars(
    say: bool = True, wanted: str = "", excluded: Sequence[str] = (), about: str = "about 90 MB"
) -> list[Path]:
    """Returns jars and their dependencies as local files; the first time, Ivy downloads them from Maven
    Central.

    A list of the files is kept in tailrace's cache folder, so that later sessions need neither Ivy nor the
    network.

    Args:
        say: report on standard error when a download starts, and how large it was.
        wanted: Maven coordinates, with commas between them; Delta's jar if not given.
        excluded: dependencies that are left out (`group:name`).
        about: the size of the download, for the report.
    """
    wanted = wanted or coordinates()
    notes = cache_folder() / f"jars-{re.sub(r'[^A-Za-z0-9.]+', '-', wanted)}.json"
    if notes.is_file():
        sizes: dict[str, int] = json.loads(notes.read_text())
        if sizes and all(_size(Path(p)) == size for p, size in sizes.items()):
            return [Path(p) for p in sizes]
    if say:
        sys.stderr.write(line("INFO", f"tailrace: downloading {wanted} and its dependencies, once ({about})"))
    jars = from_maven(wanted, excluded)
    sizes = {str(jar): jar.stat().st_size for jar in jars}
    draft = notes.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(sizes, indent=1))
    draft.replace(notes)
    if say:
        megabytes = sum(sizes.values()) / 1e6
        sys.stderr.write(line("INFO", f"tailrace: {len(jars)} jars, {megabytes:.0f} MB, in {jars[0].parent}"))
    return jars


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def from_maven(wanted: str, excluded: Sequence[str] = ()) -> list[Path]:
    """Returns the jars of Maven coordinates and of their dependencies; Ivy downloads those that are missing.

    Spark's launcher runs Ivy, in a JVM without a Spark context.

    Raises:
        ConfigError: they cannot be downloaded.
    """
    import pyspark
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    ensure_java()
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    settings = SparkConf(loadDefaults=False).set("spark.jars.packages", wanted)
    settings = settings.set("spark.jars.excludes", ",".join(excluded)) if excluded else settings
    with tempfile.TemporaryFile() as said:
        try:
            launch: Any = launch_gateway
            gateway = launch(settings, popen_kwargs={"stdout": said, "stderr": said})
        except PySparkRuntimeError:
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()
            cause = next((line.strip() for line in lines if "Exception" in line), "no reason given")
            raise ConfigError(
                f"jars could not be downloaded: {cause}",
                where=wanted,
                hint="check the connection to repo1.maven.org (proxy, certificates), or name local jars: "
                "spark: {spark.jars: ...}",
            ) from None
    jars = gateway.jvm.java.lang.System.getProperty("spark.jars")
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    return [Path(re.sub(r"^file:(//)?", "", jar)) for jar in jars.split(",")]
