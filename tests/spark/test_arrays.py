"""Array columns on their way to targets: read from OpenEdge's text, applied, in the key log's text, in every format."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from tailrace import formats
from tailrace.errors import UnsupportedError
from tailrace.formats import convert, file_writer
from tailrace.formats.base import WHY
from tailrace.operate import vendor_apply as incoming
from tailrace.targets.lake import merge as many
from tailrace.testing.changes import Image, change_table

from .literal_tables import rows_at

pytestmark = pytest.mark.spark

COLUMNS = {
    "id": "int",
    "tags": "array<string>",
    "sizes": "array<int>",
    "costs": "array<decimal(5,2)>",
    "n": "int",
}
FIRST = [
    Image(1, "I", {"id": 1, "tags": ["a;b", None, "?"], "sizes": [1, 2], "costs": [Decimal("1.50")], "n": 1}),
    Image(2, "I", {"id": 2, "tags": [], "sizes": None, "costs": [None], "n": 2}),
    Image(3, "I", {"id": 3, "tags": ["gone"], "sizes": [], "costs": [], "n": 3}),
]
SECOND = [
    Image(4, "U", {"id": 1, "tags": ["<new>"], "n": 5}, ["tags", "n"]),  # the others keep what they have
    Image(5, "D", {"id": 3}),
    Image(6, "I", {"id": 4, "tags": None, "sizes": [7], "costs": [], "n": 4}),
]
ROWS = [
    (1, ["<new>"], [1, 2], [Decimal("1.50")], 5),
    (2, [], None, [None], 2),
    (4, None, [7], [], 4),
]


def applied(spark, folder: Path, target: str, **more) -> None:
    """Both batches, as `tailrace apply` takes them from a folder, with a key log."""
    form = formats.get("tailrace")
    for n, images in enumerate((FIRST, SECOND)):
        place = str(folder / f"changes{n}")
        made = form.write({"shop.item": change_table(spark, images, columns=COLUMNS)}, form.options())
        file_writer.save(made, place, "parquet")
        ruling = incoming.ruling("upsert", {}, None, str(folder / "keylog"), "all")
        incoming.run(spark, place, "tailrace", {"key": "id"}, target, ruling=ruling, **more)


@pytest.mark.slow
def test_applied_to_delta_by_one_task_and_by_several(spark, tmp_path, monkeypatch):
    for way in ("one", "several"):
        if way == "several":
            monkeypatch.setattr(many, "ROWS", 0)
        applied(spark, tmp_path / way, str(tmp_path / way / "lake"))
        df = rows_at(spark, str(tmp_path / way / "lake" / "shop.item")).orderBy("id")
        assert [tuple(r) for r in df.collect()] == ROWS
        assert [f.dataType.simpleString() for f in df.schema] == list(COLUMNS.values())
        log = rows_at(spark, str(tmp_path / way / "keylog")).orderBy("keylog_sort")
        texts = [r["after_image"] for r in log.collect()]
        assert 'tags="a~;b;?;~?" sizes="1;2" costs="1.50"' in texts[0]
        assert 'tags="~" sizes=&xsi:nil="true" costs="?"' in texts[1]
        assert 'tags="&lt;new&gt;"' in texts[3]


def test_a_key_has_no_arrays(spark, tmp_path):
    form = formats.get("tailrace")
    made = form.write({"shop.item": change_table(spark, FIRST, columns=COLUMNS)}, form.options())
    file_writer.save(made, str(tmp_path / "changes"), "parquet")
    with pytest.raises(UnsupportedError, match=r"shop\.item: column tags of the key is array<string>"):
        incoming.run(spark, str(tmp_path / "changes"), "tailrace", {"key": "tags"}, str(tmp_path / "lake"))
    assert not (tmp_path / "lake").exists()


@pytest.mark.slow
def test_arrays_of_openedge(spark, tmp_path):
    tables = Path(__file__).parents[2] / "examples" / "openedge" / "tables"
    incoming.run(spark, str(tables), "openedge", {"arrays": "array"}, str(tmp_path), fail=False)
    df = rows_at(spark, str(tmp_path / "PUB.Item"))
    assert df.schema["Tags"].dataType.simpleString() == "array<string>"
    assert [r[0] for r in df.filter("Id = 1").select("Tags").collect()] == [["red", "small", None]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [("sqdr", "parquet"), ("tailrace", "csv"), ("openedge", "csv"), ("qlik", "csv"), ("qlik", "json")],
)
def test_there_and_back_as_text(spark, tmp_path, name, kind):
    form = formats.get(name)
    types = ", ".join(f"{c} {t}" for c, t in COLUMNS.items())
    given = {
        k: v
        for k, v in (("key", "id"), ("columns", types), ("arrays", "array"))
        if k in form.options.model_fields
    }
    side = convert.side(name, str(tmp_path / name), given)
    tables = form.write({"shop.item": change_table(spark, FIRST, columns=COLUMNS)}, side.options)
    file_writer.save(tables, side.path, kind) if form.save is None else form.save(
        tables, side.path, kind, side.options
    )
    ct = convert.read(spark, side).changes["shop.item"]
    found = [tuple(r) for r in ct.df.select("id", "tags", "sizes", "costs", "n").orderBy("id").collect()]
    assert found == [tuple(one.values.values()) for one in FIRST]
    assert ct.df.filter(f"{WHY} is not null").count() == 0
