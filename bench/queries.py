"""Questions: as of, net changes and history over a change table, against the same in hand-written Spark SQL and
in DuckDB SQL; a kept history that takes a batch with late events, against working it out anew; a cold process.

Run by `rows` as a process of its own: `queries.py FOLDER [--quick]` prints JSON. Each key has ten changes: an
insert, then updates with their before images left out, one in twenty of them a delete; columns: the key, a text,
a number, a decimal. Spark and DuckDB read the same Parquet files; all give rows in memory, Spark counts them.
They take turns; medians of `ROUNDS` are given.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import measure
from measure import HERE, Row, say
from tailrace import HistoryRules, HistoryTable, Result, TableChanges, read
from tailrace.lake import delta as lake
from tailrace.model import sequence

SPARK, DUCKDB, ANEW = "hand-written Spark SQL", "DuckDB SQL", "all events worked out anew"
FILE_ROWS = 1_000_000
ROUNDS = 3
BEGAN_US = 1_767_268_800_000_000
KEPT, LATE = 4, 0.05
"""Of a kept history: events a key; the share of late ones in a batch."""


def rows(folder: Path, *, quick: bool) -> list[Row]:
    """The bench `queries`."""
    say("queries: as of, net, history, a kept history")
    command = [sys.executable, HERE / "queries.py", folder / "queries", *(["--quick"] if quick else [])]
    done = measure.run(command, log=None)
    found = json.loads(done.output.strip().splitlines()[-1])
    return [Row(**{"peak_rss_mb": done.peak_mb, **one}) for one in found]


def events(first: int, many: int, keys: int) -> pa.Table:
    """Changes `first` and later: operations and values from the numbers alone."""
    number = np.arange(first, first + many)
    key = number * 7_919 % keys
    round_ = number // keys
    oper = np.where(round_ == 0, "I", np.where(number % 20 == 19, "D", "U")).astype(object)
    us = BEGAN_US + number * 1_000
    seqs = sequence.make_many(sequence.time_parts(us), number)
    data = pa.py_buffer(np.ascontiguousarray(seqs))
    offsets = pa.py_buffer((np.arange(many + 1) * sequence.WIDTH).astype(np.int32))
    texts = np.array([f"some text {n}" for n in range(1_000)], object)
    return pa.table(
        {
            "header__change_seq": pa.Array.from_buffers(pa.string(), many, [None, offsets, data]),
            "header__change_oper": pa.array(oper, pa.string()),
            "header__transaction_id": pa.array(number // 4).cast(pa.string()),
            "header__timestamp": pa.array(us, pa.timestamp("us", "UTC")),
            "id": pa.array(key),
            "name": pa.array(texts).take(pa.array(number % 1_000)),
            "quantity": pa.array(number % 97),
            "price": pa.array(number % 9_973).cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 2)),
        }
    )


def main(folder: str, keys: int) -> list[dict[str, object]]:
    """Every measurement."""
    many = 10 * keys
    table = f"{folder}/item__ct"
    for first in range(0, many, FILE_ROWS):
        lake.append(table, events(first, min(FILE_ROWS, many - first), keys))
    found = _questions(table, many)
    found += _cold(folder, table, keys)
    return found + _kept(folder, table, keys)


def _questions(table: str, many: int) -> list[dict[str, object]]:
    half = f"{many // 2:019d}"
    ours: dict[str, Callable[[TableChanges], Result]] = {
        "as of": lambda t: t.as_of(many // 2, base=t.schema.empty_table()),
        "net": lambda t: t.net(),
        "history": lambda t: t.history(),
    }
    spark, duck = _spark(table), _duckdb(table)
    found: list[dict[str, object]] = []
    for name, ask in ours.items():
        sql, seconds, many_rows = SQL[name].format(half=half), [], set()
        for _ in range(ROUNDS):
            round_ = [
                _answered(lambda ask=ask: ask(read(table, key=["id"])).table().num_rows),
                _answered(lambda sql=sql: spark(sql)),
                _answered(lambda sql=sql: duck(sql)),
            ]
            seconds.append([took for took, _ in round_])
            many_rows |= {rows for _, rows in round_}
        if len(many_rows) != 1:
            raise RuntimeError(f"{name}: answers of different sizes: {sorted(many_rows)} rows")
        mine, theirs, other = (statistics.median(one) for one in zip(*seconds, strict=True))
        bench = f"{name} over {many:,} changes"
        found.append(_told(bench, many / mine, "rows/s", SPARK, many / theirs, 1.0))
        found.append(_told(bench, many / mine, "rows/s", DUCKDB, many / other))
    return found


_NUMBER = "substring(header__change_seq, 17)"
SQL = {
    "as of": "SELECT id, name, quantity, price FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY "
    "header__change_seq DESC) AS n FROM ct WHERE " + _NUMBER + " <= '{half}') WHERE n = 1 AND "
    "header__change_oper <> 'D'",
    # At most one row a key, or two for an update: here every key begins with its insert.
    "net": "SELECT id, name, quantity, price, 'insert' AS _change_type, header__change_seq, header__timestamp FROM "
    "(SELECT *, row_number() OVER (PARTITION BY id ORDER BY header__change_seq DESC) AS n FROM ct) WHERE n = 1 "
    "AND header__change_oper <> 'D'",
    "history": "SELECT * FROM (SELECT id, name, quantity, price, header__change_oper AS oper, header__timestamp AS "
    "valid_from, lead(header__timestamp) OVER w AS valid_to, header__change_seq AS start_at, "
    "lead(header__change_seq) OVER w AS end_at FROM ct WINDOW w AS (PARTITION BY id ORDER BY header__change_seq)) "
    "WHERE oper <> 'D'",
}


def _spark(table: str) -> Callable[[str], int]:
    from tailrace.runtime.session import session

    spark = session("bench queries")
    spark.read.format("delta").load(table).createOrReplaceTempView("ct")
    spark.sql("SELECT count(*) FROM ct").collect()  # the session is warm

    def answered(sql: str) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        df = spark.sql(sql).observe(seen, F.count(F.lit(1)).alias("n"))
        df.write.format("noop").mode("overwrite").save()
        return int(seen.get["n"])

    return answered


def _duckdb(table: str) -> Callable[[str], int]:
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE VIEW ct AS SELECT * FROM read_parquet('{table}/*.parquet')")
    return lambda sql: int(connection.sql(sql).to_arrow_table().num_rows)


def _answered(ask: Callable[[], int]) -> tuple[float, int]:
    counted: list[int] = []
    seconds = _seconds(lambda: counted.append(ask()))
    return seconds, counted[0]


def _cold(folder: str, table: str, keys: int) -> list[dict[str, object]]:
    """A question over as many changes as there are keys, its process and imports included."""
    said = (
        "import tailrace; found = tailrace.read({!r}, key=['id']).net(0, {}).table(); print(found.num_rows)"
    )
    seconds = _seconds(
        lambda: subprocess.run(
            [sys.executable, "-c", said.format(table, keys - 1)], check=True, stdout=subprocess.DEVNULL
        )
    )
    return [_told(f"net changes of {keys:,} changes, from a cold process", seconds, "s", goal=2.0)]


def _kept(folder: str, table: str, keys: int) -> list[dict[str, object]]:
    """A batch of one in a hundred, of which one in twenty falls between events that were there."""
    many, size = KEPT * keys, KEPT * keys // 100
    made, first = _history(f"{folder}/kept", table), _events_of(events(0, many, keys))
    filled = _seconds(lambda: made.apply(first))
    late = int(size * LATE)
    batch = _events_of(events(many, size, keys))
    # Late events have the places of some of the last batches' worth of events, and half a step more.
    shift = np.where(np.arange(size) < late, -(1 + np.arange(size) * 13 % size), 0)
    number = pc.add(batch["__sequence"], pa.array(shift * 2 + (shift < 0)))
    batch = batch.set_column(batch.column_names.index("__sequence"), "__sequence", number)
    taken = _seconds(lambda: made.apply(batch))
    anew = _history(f"{folder}/anew", table)
    both = pa.concat_tables([first, batch])
    again = _seconds(lambda: anew.apply(both))
    here, there = (h.versions().table() for h in (made, anew))
    if (here.num_rows, pc.sum(here["__END_AT"])) != (there.num_rows, pc.sum(there["__END_AT"])):
        raise RuntimeError("the kept history is not the one that was worked out anew")
    return [
        _told(f"a history made of {many:,} events", many / filled, "rows/s"),
        _told(
            f"{size:,} events, {late:,} late, into a history of {keys:,} keys", taken, "s", ANEW, again, 10.0
        ),
    ]


def _history(path: str, table: str) -> HistoryTable:
    data = pa.schema([lake.arrow_schema(table).field(n) for n in ("id", "name", "quantity", "price")])
    return HistoryTable.make(path, data, HistoryRules(("id",), tuple(data.names)), pa.int64())


def _events_of(changes: pa.Table) -> pa.Table:
    oper = pc.if_else(pc.equal(changes["header__change_oper"], "D"), "D", "U")
    number = pc.utf8_slice_codeunits(changes["header__change_seq"].cast(pa.string()), sequence.TIME_DIGITS)
    made = changes.select(["id", "name", "quantity", "price"]).append_column("__operation", oper)
    return made.append_column("__sequence", pc.multiply(number.cast(pa.int64()), 2))


def _told(
    bench: str,
    value: float,
    unit: str,
    peer: str | None = None,
    theirs: float | None = None,
    goal: float | None = None,
) -> dict[str, object]:
    said = f", {peer}: {theirs:,.1f}" if peer else ""
    say(f"{bench}: {value:,.1f} {unit}{said}")
    return {"bench": bench, "value": value, "unit": unit, "peer": peer, "peer_value": theirs, "goal": goal}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], 20_000 if "--quick" in sys.argv else 1_000_000)))
