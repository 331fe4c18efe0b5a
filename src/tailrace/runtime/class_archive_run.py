"""The process that writes the archive of Spark's classes (`python -m`, with the file and a folder)."""

from __future__ import annotations

import sys
from pathlib import Path

from ..formats import convert
from .class_archive import QUIET
from .local_settings import driver_options
from .session import session

_CHANGES = """\
header__change_seq,header__change_oper,header__change_mask,header__timestamp,header__transaction_id,id,name
20260101120000000000000000000000001,I,,2026-01-01 12:00:00.000000,0A,1,one
20260101120000000000000000000000002,I,,2026-01-01 12:00:00.000000,0A,2,two
20260101120001000000000000000000003,B,,2026-01-01 12:00:01.000000,0B,1,one
20260101120001000000000000000000003,U,,2026-01-01 12:00:01.000000,0B,1,uno
20260101120002000000000000000000004,D,,2026-01-01 12:00:02.000000,0C,2,two
"""


def run(file: str, folder: Path) -> None:
    """Runs Spark's part of the commands, in a JVM that writes the archive when it ends.

    Converting the tables of one vendor in both directions loads 98 % of the classes that all vendors load.
    """
    said = f'{driver_options(little=True)} -XX:ArchiveClassesAtExit="{file}" {QUIET}'
    spark = session(conf={"spark.driver.extraJavaOptions": said})
    (folder / "qlik" / "t__ct").mkdir(parents=True)
    (folder / "qlik" / "t__ct" / "t.csv").write_text(_CHANGES)
    source = convert.side("qlik", str(folder / "qlik"), {"key": "t=id"})
    lake = str(folder / "lake")
    convert.convert(spark, source, convert.side("tailrace", lake, {}, "delta"))
    back = convert.side("qlik", str(folder / "back"), {}, "csv")
    convert.convert(spark, convert.side("tailrace", lake, {}), back)
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    jvm.stdin.close()
    jvm.wait(300)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
