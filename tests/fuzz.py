"""A fuzz test guided by coverage, by hand: `python -m tests.fuzz -max_total_time=60`; arguments are libFuzzer's.

Frames of PostgreSQL's stream, mutated from real ones: `tests/unit/test_fuzz_pgoutput.py` tries random ones in each
test run, here atheris looks for those that reach code that no other has reached. It is not among the development
packages (`pip install atheris`). Ends with code 0 when nothing but errors of ours came of it.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

LONG = 256


def frames(data: bytes) -> None:
    """Reads bytes as frames, each with its length in front, and its row messages as those of tables with 0 to 4 columns."""
    import pyarrow as pa

    from tailrace.errors import FormatError
    from tailrace.sources.postgresql.records import RecordBuilder
    from tailrace.wire import pgoutput

    payloads, at = [], 0
    while at < len(data):
        payloads.append(b"w" + bytes(24) + data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    if not payloads:  # capture asks for none
        return
    with suppress(FormatError):
        RecordBuilder().build(payloads)
    rows = pa.array([p[25:] for p in payloads if p[25:26] in (b"I", b"U", b"D")], pa.binary())
    for columns in range(5 * bool(len(rows))):
        with suppress(FormatError):
            read = pgoutput.images(rows, columns)
            for one in (*read.new_text, *read.old_text):
                one.validate()


def seeds(folder: Path) -> None:
    """Writes real messages as files: one by one, and in a transaction."""
    from .unit.test_fuzz_pgoutput import BEGIN, COMMIT, GOLDEN, RELATION, TRUNCATE

    short = [m for m in GOLDEN if len(m) < LONG]
    for n, some in enumerate([[m] for m in short] + [[BEGIN, RELATION, m, TRUNCATE, COMMIT] for m in short]):
        (folder / f"{n}").write_bytes(b"".join(bytes([len(m)]) + m for m in some))


if __name__ == "__main__":
    try:
        import atheris  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris")
    with tempfile.TemporaryDirectory() as corpus:
        with atheris.instrument_imports(include=["tailrace"]):
            import tailrace.sources.postgresql.records  # noqa: F401 - what is imported here tells of its coverage
        seeds(Path(corpus))
        atheris.Setup([*sys.argv, corpus], frames)
        atheris.Fuzz()
