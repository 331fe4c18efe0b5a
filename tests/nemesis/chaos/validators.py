"""What a round left, held against the source and against itself; no JVM. Each finding is a line of text.

Each validator counts what it held against something: one that had nothing to judge is a finding, too."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from psycopg.types.string import TextLoader

from tailrace.apply.vendor.openedge_tables import TRACKING_TABLE
from tailrace.config.task import Task
from tailrace.formats.openedge.metadata import change_table
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model.positions import order_key
from tailrace.model.sequence import number_of
from tailrace.state.baselines import Baseline, read_baselines
from tailrace.store.kept import kept, spans
from tailrace.targets.task_tables import iceberg_tables

from ...db.model import Row, bag, histories, replay
from .commands import tailrace
from .tasks import mapped

SEQ, OPER, POSITION = "header__change_seq", "header__change_oper", "header__stream_position"
MOST = 4
TEXTS = ("time", "timetz", "interval", "json", "jsonb", "inet", "cidr", "int4range")
ARRAYS = ("text", "time")
"""Types of the source, and of its arrays' values, that the lake has as the server's text."""
CALM = ("running", "stopped")
"""States of tables that nothing holds."""


SOURCE_TABLES = """
select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'm' and c.relkind in ('r', 'p') and not c.relispartition
"""


def validate(task: Task, file: Path, url: str, judged: Counter[str], *, applied: bool) -> Iterator[str]:
    """Everything that is wrong; `applied`: targets are up to date, else change tables alone are. `judged` gets
    how many rows, or changes, each validator had."""
    yield from _validated(task, file, url, judged, applied=applied)
    due = ["changes", "TRACKING"] + ["LOG"] * (task.maintenance.keep_log > 0)
    due += ["targets", "status"] if applied else []
    due += ["OpenEdge's tables"] * (applied and task.store.openedge)
    due += ["key log", "row counts"] * (applied and task.keylog.mode == "all")
    due += ["replayed"] * (not task.target.database)
    if task.retention.keep != math.inf:  # all that has changes may be gone
        due = [name for name in due if name in ("targets", "status", "LOG")]
    for name in due:
        if not judged[name]:
            yield f"the validator of {name} had nothing to judge"


def _validated(task: Task, file: Path, url: str, judged: Counter[str], *, applied: bool) -> Iterator[str]:
    baselines = read_baselines(task.control_path("baselines"))
    tables = source_tables(url)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("set timezone = 'UTC'")
        for kind in (*TEXTS, *(db.adapters.types[name].array_oid for name in ARRAYS)):
            db.adapters.register_loader(kind, TextLoader)
        now = {t: rows_of(db, t) for t in tables}
        for table in tables:
            if table not in baselines:
                yield f"{table}: no baseline"
                continue
            if applied:
                yield from _target(task, db, table, now[table], judged)
    yield from _log(task, judged)
    yield from _changes(task, sorted(baselines), judged)
    if applied and task.store.openedge:
        yield from _openedge(task, sorted(baselines), judged)
    if not task.target.database:
        yield from _replayed(task, now, baselines, judged)
    if applied:
        yield from _keylog(task, baselines, judged)
        yield from _status(file, tables, judged)


def source_tables(url: str) -> list[str]:
    """The tables that there are."""
    with psycopg.connect(url, autocommit=True) as db:
        return sorted(f"m.{n}" for (n,) in db.execute(SOURCE_TABLES).fetchall())


def rows_of(db: psycopg.Connection[Any], table: str, schema: str = "") -> list[Row]:
    """The rows of a source table."""
    own, name = table.split(".", 1)
    with db.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        where = psycopg.sql.Identifier(schema or own, name)
        found = cursor.execute(psycopg.sql.SQL("select * from {}").format(where)).fetchall()
    return [{k: _lake(v) for k, v in r.items()} for r in found]


def _lake(value: Any) -> Any:
    """A value as the lake has it."""
    return str(value) if type(value).__name__ == "UUID" else value


def _target(
    task: Task, db: psycopg.Connection[Any], table: str, want: list[Row], judged: Counter[str]
) -> Iterator[str]:
    to = task.table(table).target or table
    want = want if to == table else [mapped(r) for r in want]
    have = rows_of(db, to, "lake") if task.target.database else _rows(task, to)
    judged["targets"] += len(want)
    yield from _differ(f"{table}: target and source", have, want)


def _rows(task: Task, table: str, version: int | None = None) -> list[Row]:
    """A target's rows; by Spark where some are hidden by deletion vectors, which delta-rs does not read."""
    if task.target.type == "iceberg":
        tables = iceberg_tables(task)
        found = tables.catalog.load_table(tables.name(table))
        snapshots = {one.sequence_number: one.snapshot_id for one in found.snapshots()}
        scan = found.scan() if version is None else found.scan(snapshot_id=snapshots[version])
        return list(scan.to_arrow().to_pylist())
    path = task.target_path(table)
    delta = DeltaTable(path, version=version)
    if "deletionVectors" not in (delta.protocol().reader_features or []):
        return list(delta.to_pyarrow_table().to_pylist())
    from tailrace.runtime.session import session

    reader = session("chaos", little=True).read.format("delta").option("versionAsOf", delta.version())
    return list(reader.load(path).toArrow().to_pylist())


def _differ(what: str, have: list[Row], want: list[Row]) -> Iterator[str]:
    one, other = Counter(bag(have)), Counter(bag(want))
    lacks, more = list((other - one).elements()), list((one - other).elements())
    if lacks or more:
        shown = "; ".join(
            [f"lacks {_short(r)}" for r in lacks[:MOST]] + [f"has {_short(r)}" for r in more[:MOST]]
        )
        yield f"{what} differ: {len(lacks)} rows are lacking, {len(more)} are too many: {shown}"


def _short(row: tuple[tuple[str, str], ...]) -> str:
    return "(" + ", ".join(f"{k}={v[:30]}" for k, v in row) + ")"


def _log(task: Task, judged: Counter[str]) -> Iterator[str]:
    """Transactions are whole and in order, no change sequence comes twice."""
    columns, folder = ["RECID", "CHANGE_SEQ", "LOGADDR", "TRXID"], Path(task.log_path)
    # Files that were given up for new baselines may stand in LOG's commits until they are trimmed.
    there = [p for s in spans(DeltaTable(folder), "CHANGE_SEQ") if (p := folder / s.path).exists()]
    if not there:
        return
    rows = pa.concat_tables([pq.read_table(p, columns=columns) for p in there]).sort_by("CHANGE_SEQ")
    seqs = rows["CHANGE_SEQ"].to_pylist()
    judged["LOG"] += len(seqs)
    if len(set(seqs)) != len(seqs):
        yield f"LOG: {len(seqs) - len(set(seqs))} change sequences come twice"
    addresses = rows["LOGADDR"].to_pylist()
    if any(b <= a for a, b in pairwise(addresses)):
        yield "LOG: positions are not in the order of change sequences"
    inside: int | None = None
    for kind, trx in zip(rows["RECID"].to_pylist(), rows["TRXID"].to_pylist(), strict=True):
        if kind == log.BEGIN:
            if inside is not None:
                yield f"LOG: transaction {trx} begins within {inside}"
            inside = trx
        elif kind == log.COMMIT:
            if inside != trx:
                yield f"LOG: transaction {trx} is not whole"
            inside = None
        elif kind != log.MESSAGE and inside != trx:
            yield f"LOG: a record of {trx} outside of it"


def _changes(task: Task, tables: list[str], judged: Counter[str]) -> Iterator[str]:
    """No (change_seq, oper) twice, B next to its U, TRACKING has each change of each table once, from where on
    they are complete."""
    tracking = _tracked(task)
    for table in tables:
        tracked = Counter(tracking.get(table, []))
        if twice := [s for s, n in tracked.items() if n > 1]:
            yield f"TRACKING: {len(twice)} changes of {table} stand there twice, {twice[0]} first"
        pairs: Counter[tuple[str, str]] = Counter()
        if lake.exists(task.changes_path(table)):
            rows = lake.read(task.changes_path(table), [SEQ, OPER])
            pairs.update(zip(rows[SEQ].to_pylist(), rows[OPER].to_pylist(), strict=True))
        judged["TRACKING"] += len(tracked)
        judged["changes"] += len(pairs)
        if twice_ := [p for p, n in pairs.items() if n > 1]:
            yield f"{table}: {len(twice_)} change rows twice, {twice_[0]} first"
        alone = [s for s, o in pairs if o == "B" and (s, "U") not in pairs]
        if alone:
            yield f"{table}: {len(alone)} old images without an update, {alone[0]} first"
        # A batch may have ended between the two, and LOG have lost its first changes then.
        complete = max(kept(task.changes_path(table)) or 0, kept(task.tracking_path) or 0) if pairs else -1
        if differ := {s for s in {s for s, _ in pairs} ^ set(tracked) if number_of(s) > complete}:
            yield f"TRACKING and the changes of {table} differ in {len(differ)} changes, {min(differ)} first"


def _tracked(task: Task) -> dict[str, list[str]]:
    """The change sequences that TRACKING has of each table."""
    rows = lake.read(task.tracking_path, ["_Policy-Id", "change_seq"])
    found: dict[str, list[str]] = {}
    for table, seq in zip(rows["_Policy-Id"].to_pylist(), rows["change_seq"].to_pylist(), strict=True):
        found.setdefault(table, []).append(seq)
    return found


def _openedge(task: Task, tables: list[str], judged: Counter[str]) -> Iterator[str]:
    """The tables in OpenEdge's layout have what the task's own have, once, from where on they are complete."""
    own = _numbers(task.tracking_path)
    pairs = [(f"{task.openedge_path}/{TRACKING_TABLE}", own, kept(task.tracking_path) or 0)]
    for table in tables:
        if lake.exists(path := task.changes_path(table)):
            seqs = lake.read(path, [SEQ, OPER])
            mine = Counter(
                number_of(s)
                for s, o in zip(*(seqs[n].to_pylist() for n in (SEQ, OPER)), strict=True)
                if o != "T"
            )
            pairs.append((f"{task.openedge_path}/{change_table(table)}", mine, kept(path) or 0))
    for path, mine, complete in pairs:
        made = _numbers(path)
        judged["OpenEdge's tables"] += len(made)
        if differ := sorted(n for n in {*made, *mine} if n > complete and made[n] != mine[n]):
            yield f"{path} and the task's own table differ in {len(differ)} changes, {differ[0]} first"


def _numbers(path: str) -> Counter[int]:
    """How often a table has each change number."""
    if not lake.exists(path):
        return Counter()
    return Counter(lake.read(path, ["_Change-Sequence"])["_Change-Sequence"].to_pylist())


def _replayed(
    task: Task, now: dict[str, list[Row]], baselines: dict[str, Baseline], judged: Counter[str]
) -> Iterator[str]:
    """The change tables, row by row on top of the newest baselines, give the source's rows."""
    for table, history in histories(task.relations_path):
        if (taken := baselines.get(table)) is None or taken.window == "open" or table not in now:
            continue
        if taken.version is None or (kept(task.changes_path(table)) or 0) > taken.after:  # mapped; retention
            continue
        start = _rows(task, table, taken.version)
        layouts = [one for one in history if one.from_position.hex().upper() >= taken.position]
        first = log.Layout(taken.relation, b"", "")
        try:
            made = replay(task.changes_path(table), [first, *layouts], start, taken.position)
        except KeyError as error:
            yield f"{table}: a change does not follow from the ones before ({type(error).__name__} {error})"
            continue
        judged["replayed"] += len(made)
        yield from _differ(f"{table}: change tables replayed and source", made, now[table])


def _keylog(task: Task, baselines: dict[str, Baseline], judged: Counter[str]) -> Iterator[str]:
    """Each change that TRACKING has since a table's newest baseline stands in the key log once, no other one
    more than once; it met what it expected, and touched one row (a truncate has no count)."""
    if task.keylog.mode != "all" or not lake.exists(task.keylog_path):
        return
    columns = ["subscription_id", "change_row_counter", "change_row_type", "result_error", "result_row_count"]
    rows, tracking = lake.read(task.keylog_path, columns), _tracked(task)
    for table, taken in baselines.items():
        mine = rows.filter(pc.equal(rows["subscription_id"], table))
        mine = mine.filter(pc.invert(pc.is_in(mine["change_row_type"], value_set=pa.array(["C", "#"]))))
        logged = Counter(mine["change_row_counter"].to_pylist())
        if not lake.exists(task.changes_path(table)):
            continue
        changes = lake.read(task.changes_path(table), [SEQ, POSITION])
        new = set(changes.filter(pc.greater_equal(changes[POSITION], taken.position))[SEQ].to_pylist())
        numbers = {int(s[16:]) for s in tracking.get(table, []) if s in new}
        judged["key log"] += len(numbers)
        if lost := sorted(numbers - set(logged)):
            yield f"{table}: {len(lost)} changes are not in the key log, {lost[0]} first"
        if twice := sorted(n for n, times in logged.items() if times > 1):
            yield f"{table}: {len(twice)} changes are in the key log more than once, {twice[0]} first"
        known, gone = {int(s[16:]) for s in tracking.get(table, [])}, kept(task.tracking_path) or 0
        if strange := sorted(n for n in set(logged) - known if n > gone):
            yield f"{table}: {len(strange)} changes of the key log are not in TRACKING, {strange[0]} first"
        # In an open window changes may meet what the baseline has already; none behind it does.
        exact = numbers if taken.window == "exact" else {n for n in numbers if n > order_key(taken.closes)}
        yield from _unexpected(table, mine, exact, judged)


def _unexpected(table: str, logged: pa.Table, numbers: set[int], judged: Counter[str]) -> Iterator[str]:
    """Changes on top of a baseline, and behind its window, that met something else than they expected."""
    since = logged.filter(
        pc.is_in(logged["change_row_counter"], value_set=pa.array(sorted(numbers), pa.int64()))
    )
    judged["row counts"] += since.num_rows
    kinds, counts = since["change_row_type"], since["result_row_count"]
    one = pc.and_(pc.fill_null(pc.equal(counts, 1), False), pc.is_null(since["result_error"]))
    none = pc.and_(pc.equal(kinds, "T"), pc.is_null(counts))
    odd = since.filter(pc.invert(pc.or_(one, none)))
    if odd.num_rows:
        said = Counter(
            tuple(r.values())
            for r in odd.select(["change_row_type", "result_error", "result_row_count"]).to_pylist()
        )
        yield f"{table}: {odd.num_rows} changes met something else than they expected: {said.most_common(2)}"


def _status(file: Path, tables: list[str], judged: Counter[str]) -> Iterator[str]:
    done = tailrace("status", file, "--json")
    if done.returncode:
        yield f"status ends with code {done.returncode}: {done.stderr[-500:]}"
        return
    said = {one["table"]: one for one in json.loads(done.stdout)["tables"]}
    judged["status"] += len(said)
    for table in tables:
        one = said.get(table, {"state": "missing", "behind": 0})
        if one["state"] not in CALM:
            yield f"status: {table} is {one['state']}: {one.get('why')}"
        if one["behind"]:
            yield f"status: {table} is {one['behind']} rows behind, and everything is applied"
