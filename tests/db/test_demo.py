"""The demo, small: what it says must hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tailrace.demo import demo, shop

pytestmark = [pytest.mark.db, pytest.mark.slow]

SHOP = ["Mixed Case", "customer", "document", "event", "orders", "product", "reading"]
BENCH = ["pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers"]


def test_the_demo_proves_its_targets_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
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

    customers = DeltaTable(f"{said['target']}/shop.customer").to_pyarrow_table()
    assert customers.num_rows == tables["shop.customer"]["source_rows"]
    assert "loyalty" in customers.column_names
    assert (folder / "demo.yaml").exists()
    assert not (folder / "pg" / "postmaster.pid").exists()
