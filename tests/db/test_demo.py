"""The demo, small: what it says must hold."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import psycopg
import pytest
from deltalake import DeltaTable

from tailrace.demo import demo, demo_folder, shop

pytestmark = pytest.mark.db

SHOP = ["Mixed Case", "customer", "document", "event", "orders", "product", "reading"]
BENCH = ["pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below tmp_path: every pytest session that starts closes that folder to the server's own user."""
    made = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    yield made / "demo"
    shutil.rmtree(made)


@pytest.mark.slow
def test_the_demo_proves_its_targets_equal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    equal = demo(folder, seconds=3, scale=1, as_json=True)
    said = json.loads(capsys.readouterr().out)
    tables = {t["table"]: t for t in said["tables"]}

    assert equal, json.dumps(said["tables"], indent=1)
    assert said["equal"]
    assert sorted(tables) == [f"public.{t}" for t in BENCH] + [f"shop.{t}" for t in SHOP]
    assert tables["public.pgbench_accounts"]["target_rows"] == 100_000
    assert tables["public.pgbench_history"]["changes"] == said["load"]["pgbench_transactions"]
    assert all(t["changes"] > 0 for t in said["tables"])
    assert said["load"]["acts"] == [(act.__doc__ or "").strip() for act in shop.ACTS]

    story = [(e["oper"], e["changed"]) for e in said["life"]]
    assert story[1] == ("U", ["profile", "note"])
    assert [oper for oper, _ in story] == ["I", "U", "U", "U", "U", "D"]
    assert story[4] == ("U", ["id"])
    moved = said["life"][4]
    assert (moved["before"]["id"], moved["after"]["id"]) == (shop.HERO, shop.HERO_LATER)

    before, net, life = said["answers"]
    assert [r["as of"] for r in before["rows"]] == ["before", "after", "now"]
    assert before["rows"][0]["rows"] > 0
    assert {r["table"]: r["update_postimage"] > 0 for r in net["rows"]} == {
        f"public.{t}": t != "pgbench_history" for t in BENCH
    }
    assert life["rows"][-1]["change"] == "update" and "--key aid=" in life["command"]
    drawn = ElementTree.parse(said["plot"]).getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}path")) == 2

    assert (folder / "demo.yaml").exists()
    assert not (folder / "pg" / "postmaster.pid").exists()
    with demo_folder.server_of(folder) as server:
        for table, columns in LOOKED_AT.items():
            assert target(said["target"], table, columns) == source(server.tcp_url("demo"), table, columns)


# Without validation's code: what another reader of both sides sees.
LOOKED_AT = {
    "customer": ["id", "email", "note", "loyalty"],
    "document": ["id", "title", "revision", "body"],
    "event": ["kind", "amount"],
    "orders": ["customer_id", "number", "quantity", "price", "comment"],
    "product": ["sku", "price", "weight", "stock", "guarantee", "tags"],
    "reading": ["sensor", "flags"],
}


def target(root: str, table: str, columns: list[str]) -> list[tuple[str, ...]]:
    rows = DeltaTable(f"{root}/shop.{table}").to_pyarrow_table(columns=columns)
    return sorted(tuple(str(r[c]) for c in columns) for r in rows.to_pylist())


def source(url: str, table: str, columns: list[str]) -> list[tuple[str, ...]]:
    asked = ", ".join(f"{c}::text" if c in ("weight", "guarantee", "tags", "flags") else c for c in columns)
    with psycopg.connect(url) as session:
        rows = session.execute(f"select {asked} from shop.{table}").fetchall()
    return sorted(tuple(map(str, r)) for r in rows)
