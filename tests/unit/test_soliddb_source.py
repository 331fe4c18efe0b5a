"""The live source against a server of our own that behaves as the fact sheet says, over a real socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailrace.errors import (
    ConfigError,
    ConnectionLostError,
    FormatError,
    PositionError,
    UnsupportedError,
)
from tailrace.formats.soliddb.options import SolidOptions
from tailrace.model.types import header_schema, schema_of
from tailrace.sources.base import Renamed
from tailrace.sources.soliddb import connect as soliddb_connect
from tailrace.sources.soliddb.source import SolidSource
from tailrace.store import images
from tailrace.wire import soliddb
from tailrace.wire.records import COMMIT, DDL, DELETE, INSERT, TRX_START, UPDATE, Chunk
from tailrace.wire.soliddb import RowField, Style

from ..soliddb_server import Database, Server, serving

pytestmark = pytest.mark.unit
ITEM, NOTE = 10003, 10004
COLUMNS = [("ID", "INTEGER", 4, 1), ("NAME", "WVARCHAR", -9, 7), ("PRICE", "NUMERIC", 2, 5)]
MORE = [*COLUMNS, ("BIN", "VARBINARY", -3, 6)]
CONNECT = "tests.soliddb_server:connect"
FIELDS = [
    RowField("ID", "INTEGER", "int"),
    RowField("NAME", "UNICODE", "string"),
    RowField("PRICE", "DFLOAT", "string"),
]


def item(id: int, name: str | None, price: str = "1.50", *more: bytes | None) -> bytes:
    """A row of SHOP.ITEM in layout A."""
    fields = [*FIELDS, *[RowField("BIN", "BINARY", "binary")] * len(more)]
    types = [pa.int32(), pa.string(), pa.string(), *[pa.binary()] * len(more)]
    values = [pa.array([v], t) for v, t in zip((id, name, price, *more), types, strict=True)]
    return bytes(soliddb.encode(values, fields, Style())[0].as_py())


def database(bytes_28: bool) -> Database:
    """SHOP.ITEM with two rows, and SHOP.NOTE, in one of the two widths of log addresses."""
    made = Database(bytes_28=bytes_28)
    made.table(ITEM, "SHOP.ITEM", COLUMNS, [(1, "bolt", "1.50"), (2, None, "2.00")])
    made.table(NOTE, "SHOP.NOTE", COLUMNS[:1])
    return made


@pytest.fixture(params=[False, True], ids=["20 bytes", "28 bytes"])
def data(request: pytest.FixtureRequest) -> Database:
    return database(request.param)


@pytest.fixture
def node(data: Database) -> Iterator[Server]:
    with serving(data) as nodes:
        yield nodes[0]


def source(*nodes: Server, **more: Any) -> SolidSource:
    options = SolidOptions.model_validate({"keys": "SHOP.ITEM=ID", **more.pop("options", {})})
    server = soliddb_connect.Server(CONNECT, "soliddb://test", {}, [{"port": n.port} for n in nodes], **more)
    return SolidSource(server, options, fetch_rows=50)


def started(
    one: SolidSource, after: bytes | None = None, tables: tuple[str, ...] = ("SHOP.ITEM",)
) -> SolidSource:
    one.prepare(one.tables(tables))
    one.start(after, [])
    return one


def until(one: SolidSource, commits: int, timeout: float = 5) -> list[Chunk]:
    """Chunks until that many transactions came."""
    chunks: list[Chunk] = []
    end = time.monotonic() + timeout
    seen = 0
    while seen < commits:
        assert time.monotonic() < end, chunks
        if (chunk := one.read(1 << 20, 0.1)) is not None:
            chunks.append(chunk)
            seen += sum(k == COMMIT for k in chunk.records["RECID"].to_pylist())
    return chunks


def changes(chunks: list[Chunk], relation: Any) -> list[dict[str, Any]]:
    """The change-table rows that the store makes of the records of one layout."""
    records = pa.Table.from_batches([c.records for c in chunks]).combine_chunks().to_batches()[0]
    rows = records.filter(pc.is_in(records["RECID"], pa.array([INSERT, UPDATE, DELETE], pa.int32())))
    numbered = rows.append_column("CHANGE_SEQ", pa.array([f"{n:035d}" for n in range(rows.num_rows)]))
    found = images.decode(
        numbered, relation, pa.schema([*header_schema(), *schema_of(relation.columns)])
    ).rows.to_pylist()
    names = ["header__change_oper", *(c.name for c in relation.columns)]
    found.sort(key=lambda r: (r["header__change_seq"], r["header__change_oper"]))
    return [{k.removeprefix("header__change_"): r[k] for k in names} for r in found]


def test_a_transaction_as_log_has_it(data: Database, node: Server) -> None:
    one = started(source(node))
    data.commit(
        (1, ITEM, item(1, "é🚀")), (5, ITEM, item(1, "é🚀")), (3, ITEM, item(1, None, "+2E0")),
        (3, ITEM, item(2, "", "3")), (4, ITEM, item(1, None)), (99, ITEM, b"?"), (6, None, b"sql"),
    )  # fmt: skip
    chunks = until(one, 1)
    kinds = [k for c in chunks for k in c.records["RECID"].to_pylist()]
    assert kinds == [TRX_START, INSERT, UPDATE, UPDATE, DELETE, COMMIT]
    assert chunks[0].relations == [(1, one.relation("SHOP.ITEM"))]
    assert one.relation("SHOP.ITEM").key == ["ID"]
    addresses = [a for c in chunks for a in c.records["LOGADDR"].to_pylist()]
    assert addresses == sorted(addresses)
    assert {len(a) for a in addresses} == {20}
    assert chunks[-1].position is not None
    assert addresses[-1] < chunks[-1].position
    assert dict(one._stream.skipped) == {99: 1}
    found = changes(chunks, one.relation("SHOP.ITEM"))
    assert [(r["oper"], r["ID"], r["NAME"], str(r["PRICE"])) for r in found] == [
        ("I", 1, "é🚀", "1.50"), ("B", 1, "é🚀", "1.50"), ("U", 1, None, "2.00"), ("U", 2, "", "3.00"),
        ("D", 1, None, "1.50"),
    ]  # fmt: skip
    one.close()


def test_a_renamed_table_goes_on_under_the_name_it_is_known_by(data: Database, node: Server) -> None:
    one = started(source(node))
    (table,) = [t for t in data.system["SYS_TABLES"] if t["ID"] == ITEM]
    table["TABLE_NAME"] = "THING"
    one.called([Renamed(ITEM, "SHOP.ITEM", "SHOP.THING")])
    assert one.tables(["SHOP.[IT]*"]) == ["SHOP.THING"] and one.names([ITEM]) == {ITEM: "SHOP.THING"}
    one.prepare(["SHOP.ITEM"])
    relation = one.relation("SHOP.ITEM")
    assert (relation.table, relation.relid, relation.key) == ("SHOP.ITEM", ITEM, ["ID"])
    assert one.parts(relation, 10)[0].leaf == '"SHOP"."THING"' and one.published(["SHOP.ITEM"]) == {
        "SHOP.ITEM": ""
    }
    data.commit((1, ITEM, item(1, "a")))
    chunks = until(one, 1)
    assert [r.table for c in chunks for _, r in c.relations] == ["SHOP.ITEM"]
    one.close()


def test_key_changes_in_either_order(data: Database, node: Server) -> None:
    one = started(source(node))
    data.commit(
        (4, ITEM, item(1, "a")), (1, ITEM, item(2, "a")), (4, ITEM, item(2, "a")), (1, ITEM, item(3, "b"))
    )
    data.commit((1, ITEM, item(5, "c")), (4, ITEM, item(4, "c")))
    data.commit((4, ITEM, item(5, "c")), (1, ITEM, item(5, "d")))  # the same key: no key change
    data.commit(
        (4, ITEM, item(7, "x")), (4, ITEM, item(8, "x")), (1, ITEM, item(9, "x")), (1, ITEM, item(6, "x"))
    )
    chunks = until(one, 4)
    found = changes(chunks, one.relation("SHOP.ITEM"))
    assert [(r["oper"], r["ID"]) for r in found] == [
        ("B", 1), ("U", 2), ("B", 2), ("U", 3), ("B", 4), ("U", 5), ("D", 5), ("I", 5),
        ("D", 7), ("D", 8), ("I", 9), ("I", 6),
    ]  # fmt: skip
    assert chunks[0].complete == chunks[0].records.num_rows
    one.close()


def test_restart_behind_a_commit(data: Database, node: Server) -> None:
    one = started(source(node))
    data.commit((1, ITEM, item(1, "a")))
    first = until(one, 1)[-1].position
    one.close()
    data.commit((1, ITEM, item(2, "b")))
    data.commit((1, ITEM, item(3, "c")))
    again = started(source(node), after=first)
    chunks = until(again, 2)
    assert [r["ID"] for r in changes(chunks, again.relation("SHOP.ITEM"))] == [2, 3]
    again.close()


def test_idle_rows_and_the_end(data: Database, node: Server) -> None:
    one = started(source(node), tables=("SHOP.*",))
    assert one.read(1 << 20, 0.01) is None
    data.commit()  # nothing in it
    data.commit((1, 4711, b"?"))  # of a table that is not wanted
    end = one.end_position()
    deadline = time.monotonic() + 5
    while (one.reached() or b"") < end:
        assert time.monotonic() < deadline
        chunk = one.read(1 << 20, 0.01)
        assert chunk is None or not chunk.records.num_rows
    assert one.lag().seconds == 0.0
    one.close()


def test_a_lost_log(data: Database, node: Server) -> None:
    data.commit((1, ITEM, item(1, "a")))
    data.lost = data.end()
    with pytest.raises(PositionError, match="Log overflow"):
        started(source(node), after=bytes(19) + b"\1")


@pytest.mark.parametrize(("policy", "want"), [("skip-all", ""), ("skip-deletes", "IBU"), ("keep", "IBUD")])
def test_capture_off(data: Database, node: Server, policy: str, want: str) -> None:
    one = started(source(node, options={"capture_off": policy}), tables=("SHOP.*",))
    row = item(1, "a")
    data.commit((5, ITEM, row), (3, ITEM, row), (4, NOTE, b"\4\0\0\0\1"), (1, ITEM, row), flags=0x41)
    data.commit((1, NOTE, b"\4\0\0\0\1"))
    found = "".join(
        {1: "I", 3: "BU", 4: "D", 12: ""}.get(k, "")
        for c in until(one, 1 if policy == "skip-all" else 2)
        for k in c.records["RECID"].to_pylist()
    )
    assert sorted(found) == sorted(want + "I")
    one.close()


def test_layouts_change_in_the_log(data: Database, node: Server) -> None:
    one = started(source(node))
    data.commit((1, ITEM, item(1, "a")))
    chunks = until(one, 1)
    old = one.relation("SHOP.ITEM")
    data.table(ITEM, "SHOP.ITEM", MORE)
    data.commit((13, ITEM, b"\0\0\0\x16ITEM\0"))
    data.commit((1, ITEM, item(2, "b", "1", b"\1")), (13, None, b"\0\0\0\x49SHOP.ITEM\0"))
    more = until(one, 1)
    new = one.relation("SHOP.ITEM")
    assert [r["ID"] for r in changes(chunks, old)] == [1]
    assert [(r["ID"], r["BIN"]) for r in changes(more, new)] == [(2, b"\1")]
    assert [r for c in more for _, r in c.relations] == [new]
    assert DDL in more[-1].records["RECID"].to_pylist()
    one.close()


def drop(data: Database, relid: int) -> None:
    data.system["SYS_TABLES"] = [r for r in data.system["SYS_TABLES"] if r["ID"] != relid]
    data.system["SYS_COLUMNS"] = [r for r in data.system["SYS_COLUMNS"] if r["REL_ID"] != relid]


@pytest.mark.parametrize("keys", ["SHOP.ITEM=ID", ""])
def test_a_table_that_was_dropped_since_keeps_the_layout_it_had(
    data: Database, node: Server, keys: str
) -> None:
    one = started(source(node, options={"keys": keys}))
    relation = one.relation("SHOP.ITEM")
    data.commit((1, ITEM, item(1, "a")))
    until(one, 1)
    data.commit((13, ITEM, b"\0\0\0\x16ITEM\0"), (1, ITEM, item(2, "b")))
    drop(data, ITEM)
    assert [r["ID"] for r in changes(until(one, 1), relation)] == [2]
    one.close()


@pytest.mark.parametrize("keys", ["SHOP.ITEM=ID", ""])
def test_changes_of_a_dropped_table_whose_layout_is_unknown_are_said(
    data: Database, node: Server, keys: str
) -> None:
    one = started(source(node, options={"keys": keys}), tables=("SHOP.*",))
    data.commit((1, ITEM, item(1, "a")))
    drop(data, ITEM)
    with pytest.raises(FormatError, match="was dropped before this change was read") as caught:
        until(one, 1)
    assert "SHOP.ITEM" in (caught.value.where or "") and "tailrace remove" in (caught.value.hint or "")
    one.close()


def test_bad_rows_stop_it(data: Database, node: Server) -> None:
    one = started(source(node))
    data.commit((1, ITEM, item(1, "a")[:-1]))
    with pytest.raises(FormatError, match="DATA ends in column 3") as caught:
        until(one, 1)
    assert "SHOP.ITEM, LOGADDR 000000" in str(caught.value)
    data.commit((5, ITEM, item(1, "a")))
    one.start(None, [])
    with pytest.raises(FormatError):
        until(one, 1)
    one.close()
    free = started(source(node, options={"keys": ""}))
    data.commit((3, ITEM, item(1, "a")))
    with pytest.raises(FormatError, match="an update without its before image, and the table has no key"):
        until(free, 1)
    free.close()


def test_a_partition_hides_tables(data: Database, node: Server) -> None:
    data.partitions["P"] = {NOTE}
    one = started(source(node, statements=["USE PARTITION P"]), tables=("SHOP.*",))
    data.commit((1, ITEM, item(1, "a")), (1, NOTE, b"\4\0\0\0\1"))
    relids = [r for c in until(one, 1) for r in c.records["RELID"].to_pylist()]
    assert relids == [0, NOTE, 0]
    one.close()


def test_the_other_node_goes_on(data: Database) -> None:
    with serving(data, 2) as (first, second):
        one = started(source(first, second))
        data.commit((1, ITEM, item(1, "a")))
        position = until(one, 1)[-1].position
        first.stop()
        with pytest.raises(ConnectionLostError):
            until(one, 1)
        one.close()
        data.commit((1, ITEM, item(2, "b")))
        again = started(source(first, second), after=position)
        assert [r["ID"] for r in changes(until(again, 1), again.relation("SHOP.ITEM"))] == [2]
        again.close()


def test_shutdown_and_no_node(data: Database) -> None:
    with serving(data) as (node,):
        one = started(source(node))
        with data.changed:
            data.log.append({"RECID": 0, "FLAGS": 2, "RELID": None, "LOGADDR": b"\x7f" * 20, "DATA": None, "TRXID": None, "STMTTRXID": None})  # fmt: skip
            data.changed.notify_all()
        with pytest.raises(ConnectionLostError, match="shutting down"):
            until(one, 1)
        one.close()
    with pytest.raises(ConnectionLostError, match="no node answers"):
        source(node).end_position()


def test_what_is_refused(data: Database, node: Server) -> None:
    one = source(node, options={"keys": "SHOP.ITEM=NO_SUCH"})
    with pytest.raises(ConfigError, match="no column NO_SUCH"):
        one.relation("SHOP.ITEM")
    with pytest.raises(ConfigError, match=r"no table SHOP\.NONE"):
        one.tables(["SHOP.NONE"])
    with pytest.raises(UnsupportedError):
        one.mark("x")
    with pytest.raises(ConfigError, match="no connect function"):
        soliddb_connect.Server("nowhere:connect", "x").open()
    assert [f.where for f in one.check(["SHOP.NOTE"], None)] == ["SHOP.NOTE"]
    other = {"logaddr_bytes": "24", "begin": ""}
    assert [f.level for f in one.check([], None, other)] == ["error"]
    one.close()
