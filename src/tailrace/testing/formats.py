"""The conformance suite for vendor formats: subclass it with your format and a few of the vendor's rows.

    class TestMine(FormatConformance):
        format = tailrace.formats.get("mine")
        def vendor(self, spark): return {"MY_LOG": spark.createDataFrame([...])}
        def hostile(self, spark): yield "unknown code", {"MY_LOG": ...}, "unknown operation"

`spark` is your fixture. A format declares the information that it cannot hold: a declared loss must occur as
declared and be counted, and no other loss may occur.
"""

# ruff: noqa: S101 - a test suite

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .. import formats
from ..formats import checks, file_reader, file_writer
from ..formats.base import ADDED_COLUMNS, AGAIN, WHY, Format, Options, Read, Tables
from ..model.change import ChangeTable
from .changes import COLUMNS, TABLE, Image, change_table, comparable_rows, reasons, reasons_and_rows
from .histories import EXTREMES, HISTORIES, full, one_after_the_other, random_history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADDED = (
    "file row why raw finer line from first pieces file_index at copy repeated hash number second most lost0 "
    "partition tailrace_operation flagged epoch base truncates reset usable split half there carried zone "
    "stays"
)
"""Names of columns that are added to a vendor's columns, without their prefix."""


class FormatConformance:
    """The tests that every format must pass. Subclasses set `format` and define `vendor`."""

    format: Format
    extremes: Sequence[str] = tuple(EXTREMES)
    """Types whose extreme values the format keeps; other types of `EXTREMES` must be in `cannot_types`."""
    cannot_types: Mapping[str, str] = {}
    """Reasons why the format does not keep all values of a type, by type name."""

    def vendor(self, spark: SparkSession) -> dict[str, DataFrame]:
        """Returns some of the vendor's rows, with every column filled at least once."""
        raise NotImplementedError

    def hostile(self, spark: SparkSession) -> Iterator[tuple[str, Tables, str | Sequence[str]]]:
        """Returns invalid input: a description, the vendor's tables with it, and text that its reason must
        contain (or several texts, one for each reason)."""
        yield from ()

    def vendor_options(self) -> Options:
        """Returns options to read `vendor`, and to write it again."""
        return self.format.options()

    def options(self, changes: Mapping[str, ChangeTable]) -> Options:
        """Returns options to write these change tables, and to read them again (key and types, if the
        vendor's tables do not have them)."""
        return self.format.options()

    def rows_again(self, tables: Tables) -> list[str]:
        """Returns those of the vendor's tables whose rows may be repeated."""
        return list(tables)

    # -- the vendor's rows, read and written again

    def test_vendor_round_trip(self, spark: SparkSession) -> None:
        tables = self.vendor(spark)
        read = self.read(tables, self.vendor_options())
        assert not [why for ct in read.changes.values() for why in reasons(ct)]
        again = self.format.write(read.changes, self.vendor_options())
        assert sorted(again) == sorted(tables)
        for name, df in tables.items():
            assert _rows(again[name]) == _rows(df), name
            assert sorted(again[name].columns) == sorted(df.columns), name

    def test_order_of_rows_means_nothing(self, spark: SparkSession) -> None:
        from pyspark.sql import functions as F

        tables = self.vendor(spark)
        mixed = {n: df.repartition(3, F.rand(7)).sortWithinPartitions(F.rand(11)) for n, df in tables.items()}
        plain, other = (self.read(t, self.vendor_options()) for t in (tables, mixed))
        assert sorted(plain.changes) == sorted(other.changes)
        for name, ct in plain.changes.items():
            assert comparable_rows(other.changes[name]) == comparable_rows(ct)

    def test_reads_what_the_contract_says(self, spark: SparkSession) -> None:
        from ..model.change import HEADERS, PREFIX

        for ct in self.read(self.vendor(spark), self.vendor_options()).changes.values():
            names = ct.df.columns
            assert names[: len(HEADERS)] == [PREFIX + h for h in HEADERS]
            data = [c for c in names if not c.startswith(PREFIX) and c not in ADDED_COLUMNS]
            assert data == ct.columns
            assert names.index(data[0]) == len(ct.headers)
            assert set(ct.key) <= set(data)

    # -- canonical rows, written and read again

    @pytest.mark.parametrize("histories", [["nothing"], list(HISTORIES)], ids=["nothing", "everything"])
    def test_canonical_round_trip(self, spark: SparkSession, histories: list[str]) -> None:
        self.there_and_back(change_table(spark, one_after_the_other(histories)))

    def test_tables_without_a_key(self, spark: SparkSession) -> None:
        """All values identify a row, and the before image identifies an updated row; without it, no image is
        invented."""
        self.there_and_back(change_table(spark, one_after_the_other(list(HISTORIES)), key=[]))

    def test_gaps_count_what_they_take(self, spark: SparkSession) -> None:
        """Checks each history; histories in which the same gaps lose rows are checked together."""
        from pyspark.sql import functions as F

        ct = change_table(spark, one_after_the_other(list(HISTORIES)))
        history = F.substring(ct.header("change_seq"), -19, 17).cast("int")
        lost: dict[int, list[bool]] = {}
        for number, *row in ct.df.select(history, *(g.lost(ct) for g in self.format.gaps(ct))).collect():
            lost[number] = [bool(a or b) for a, b in zip(row, lost.get(number, row), strict=True)]
        for gaps in {tuple(row) for row in lost.values()}:
            mine = [number for number, row in lost.items() if tuple(row) == gaps]
            self.left(ct.with_df(ct.df.filter(history.isin(mine))))

    def test_any_history(self, spark: SparkSession) -> None:
        seed = random.randrange(1 << 30)
        self.there_and_back(change_table(spark, random_history(seed)), f"seed {seed}")

    def test_extreme_values(self, spark: SparkSession) -> None:
        kept = {kind: EXTREMES[kind] for kind in EXTREMES if kind not in self.cannot_types}
        columns = {"id": "int"} | {kind: type_ for kind, (type_, _) in kept.items()}
        rows = itertools.zip_longest(*(values for _, values in kept.values()))
        images = [
            Image(n, "I", {"id": n} | dict(zip(kept, row, strict=True))) for n, row in enumerate(rows, 1)
        ]
        self.there_and_back(change_table(spark, images, columns=columns))

    def test_odd_names(self, spark: SparkSession) -> None:
        columns = {
            "id": "int",
            "a b": "string",
            'q"u': "string",
            "a=b": "string",
            "é.x": "string",
            "Mixed": "string",
        }
        values = {"id": 1, "a b": "1", 'q"u': "2", "a=b": None, "é.x": "", "Mixed": "5"}
        self.there_and_back(
            change_table(spark, [Image(1, "I", values), Image(2, "D", values)], columns=columns)
        )

    def test_wide_masks(self, spark: SparkSession) -> None:
        columns = {"id": "int"} | {f"c{n}": "string" for n in range(150)}
        values = {"id": 1} | {f"c{n}": str(n) for n in range(150)}
        old = values | {"c0": "x", "c63": None, "c64": "y", "c149": "z"}
        images = [Image(1, "B", old), Image(1, "U", values), Image(2, "D", values)]
        self.there_and_back(change_table(spark, images, columns=columns))

    def test_several_tables(self, spark: SparkSession) -> None:
        tables = {
            "shop.item": change_table(spark, HISTORIES["pairs"]),
            "shop.other": change_table(spark, HISTORIES["deletes"], name="shop.other"),
        }
        self.compare(tables)

    def there_and_back(self, ct: ChangeTable, hint: str = "") -> None:
        """Asserts that writing and reading loses exactly the declared information."""
        self.compare({TABLE: ct}, hint)

    def compare(self, tables: dict[str, ChangeTable], hint: str = "") -> None:
        """Applies `there_and_back` to several tables at once."""
        options = self.options(tables)
        written = self.format.write(tables, options)
        back = self.read(written, options).changes
        for name, ct in tables.items():
            expected = self.left(ct, options)
            if not expected and name not in back:
                continue
            assert back[name].columns == ct.columns, hint
            why, found = _reasons_and_rows(self.format, back[name], like=ct)
            missing, odd = [r for r in expected if r not in found], [r for r in found if r not in expected]
            assert (why, odd, missing, len(found)) == ([], [], [], len(expected)), hint

    def left(self, ct: ChangeTable, options: Options | None = None) -> list[tuple[Any, ...]]:
        """Returns the rows of a change table that remain after writing. Gaps that count no lost row must
        change none."""
        from pyspark.sql import functions as F

        gaps = self.format.gaps(ct, options)
        counted = ct.df.select(F.lit(1), *(g.lost(ct) for g in gaps)).collect()
        every = losing = ct
        for place, gap in enumerate(gaps, 1):
            every = gap.erase(every)
            losing = gap.erase(losing) if any(row[place] for row in counted) else losing
        left = _comparable(self.format, every)
        assert _comparable(self.format, losing) == left, "a gap changes rows but does not count them as lost"
        return left

    # -- input that breaks the vendor's rules

    def test_bad_rows_get_their_reason(self, spark: SparkSession) -> None:
        for what, tables, words in self.hostile(spark):
            read = self.read(tables, self.vendor_options())
            found = [why for ct in read.changes.values() for why in reasons(checks.together(ct))]
            assert found, what
            for one in [words] if isinstance(words, str) else words:
                assert any(one in why for why in found), (what, one, found)

    def test_rows_that_come_again_are_read_once(self, spark: SparkSession) -> None:
        """Rows are repeated when files are delivered twice."""
        tables = self.vendor(spark)
        again = {n: df.union(df) if n in self.rows_again(tables) else df for n, df in tables.items()}
        once, twice = (self.read(t, self.vendor_options()).changes for t in (tables, again))
        every = []
        for name, ct in once.items():
            read = checks.together(twice[name])
            said = reasons(read)
            assert set(said) <= {AGAIN}, (name, said)
            every += said
            good = read.with_df(read.df.filter(f"{WHY} is null"))
            assert _comparable(self.format, good) == _comparable(self.format, ct), name
        assert every

    # -- files

    def test_files(self, spark: SparkSession, tmp_path: Path) -> None:
        self.in_files(change_table(spark, HISTORIES["pairs"] + HISTORIES["hostile text"][5:]), tmp_path)

    def test_names_like_those_that_are_added(self, spark: SparkSession, tmp_path: Path) -> None:
        """Columns have the names that tailrace adds while it reads, checks and writes, without their prefix.
        Files have them if the vendor's tables do."""
        columns = {"id": "int", **dict.fromkeys((f"_{name}" for name in ADDED.split()), "string")}
        old: dict[str, Any] = {"id": 1, **{name: f"old {name}" for name in columns if name != "id"}}
        new = old | {name: f"new {name}" for name in columns if name != "id"}
        images = [Image(1, "I", old), Image(2, "B", old), Image(2, "U", new), Image(3, "D", new)]
        ct = change_table(spark, images, columns=columns)
        self.there_and_back(ct)
        options = self.options({TABLE: ct})
        written = self.format.write({TABLE: ct}, options)
        back = self.read(written, options).changes[TABLE]
        checked = checks.in_order(checks.together(back))
        assert _reasons_and_rows(self.format, checked) == ([], _comparable(self.format, back))
        if any(set(columns) <= set(df.columns) for df in written.values()):
            self.in_files(ct, tmp_path)

    def in_files(self, ct: ChangeTable, tmp_path: Path) -> None:
        """Asserts that rows are the same in every kind of file."""
        tables = {TABLE: ct}
        options, spark = self.options(tables), ct.df.sparkSession
        # Created once: every kind of file gets the same rows.
        written = {n: df.localCheckpoint() for n, df in self.format.write(tables, options).items()}
        want = {
            name: _comparable(self.format, ct) for name, ct in self.read(written, options).changes.items()
        }
        for kind in self.format.files:
            place = str(tmp_path / kind)
            save(self.format, written, place, kind, options)
            back = self.read(load(self.format, spark, place, options), options).changes
            assert sorted(back) == sorted(want)
            for name, rows in want.items():
                assert _reasons_and_rows(self.format, back[name]) == ([], rows), kind

    # -- the declaration

    def test_declaration(self, spark: SparkSession) -> None:
        form = self.format
        assert form.title
        assert form.source
        assert form.tables
        assert len({g.kind for g in form.cannot}) == len(form.cannot)
        assert sorted([*self.extremes, *self.cannot_types]) == sorted(EXTREMES)
        for field in form.options.model_fields.values():
            assert field.description
        for name, df in self.vendor(spark).items():
            mine = form.knows(df.columns)
            others = [formats.get(n).knows(df.columns) for n in formats.names() if n != form.name]
            assert 0 <= mine <= 1, name
            assert mine >= max(others), name

    def read(self, tables: Tables, options: Options) -> Read:
        """Reads the vendor's tables."""
        return self.format.read(tables, options)


def load(form: Format, spark: SparkSession, path: str, options: Options) -> dict[str, DataFrame]:
    """Returns the vendor's tables under a path, by the format's own loader if it has one."""
    return form.load(spark, path, options) if form.load else file_reader.load(spark, path)


def save(form: Format, tables: Tables, path: str, kind: str, options: Options) -> None:
    """Writes the vendor's tables, by the format's own function if it has one."""
    form.save(tables, path, kind, options) if form.save else file_writer.save(tables, path, kind)


def _comparable(form: Format, ct: ChangeTable) -> list[tuple[Any, ...]]:
    return _reasons_and_rows(form, ct)[1]


def _reasons_and_rows(
    form: Format, ct: ChangeTable, *, like: ChangeTable | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Returns the reasons of rejected rows, and a change table's rows with the headers that the format holds
    and `like` has.

    A format may add more headers than it was given. The order always counts.
    """
    known = (like or ct).headers
    wanted = {"operation", *(h for h in known if h in form.holds)} - {"change_mask", "column_mask"}
    return reasons_and_rows(ct, headers=sorted(wanted))


def _rows(df: DataFrame) -> list[str]:
    names = sorted(c for c in df.columns if c not in ADDED_COLUMNS)
    return sorted(
        repr([bytes(r[n]) if isinstance(r[n], bytearray) else r[n] for n in names]) for r in df.collect()
    )


__all__ = ["COLUMNS", "EXTREMES", "HISTORIES", "FormatConformance", "full", "load", "random_history", "save"]
