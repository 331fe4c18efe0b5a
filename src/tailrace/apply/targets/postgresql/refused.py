"""Changes that a database refuses because of what others gave to its table: constraints, narrower types,
triggers.

Only then, the changes of a batch are staged as they came. Where each image can be tried by itself, one
statement does, and most times finds nothing. Else, or when it is refused, one block of PL/pgSQL applies them
one statement at a time, as the rules say, each in a subtransaction of its own. In the end all of it is
undone, but for the list of those that failed, with the database's own words. So what a later change meets is
what good changes left.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from ....engine.columns import OPER, SEQ, WHY
from ....engine.rules import Rules
from ....model.change import TRUNCATE, ChangeTable, Column, Relation
from ....model.mask import is_set
from ....sources.postgresql.connect import Session, literal, quoted
from ...images import col, images
from ...plan import TableBatch
from .block import BAG, BLOCK, CHANGE, COPY, TRY
from .place import Place, holds
from .progress import Progress
from .stage import CARRIED, Staged
from .types import as_text, column_type, sql_type
from .write import GIVEN

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

ANSWER = tuple(Column(n, -1, "text", "text", "string") for n in (SEQ, OPER, WHY))
"""The columns of what was refused."""

_OTHERS = """
WITH RECURSIVE parts(id) AS (
    SELECT %s::regclass::oid UNION SELECT inhrelid FROM pg_inherits JOIN parts ON inhparent = id)
SELECT bool_or(EXISTS (SELECT FROM pg_constraint c WHERE conrelid = t.id AND contype NOT IN ('p', 'n')
        AND conname <> ALL (t.checks))
    OR EXISTS (SELECT FROM pg_index WHERE indrelid = t.id AND indisunique AND NOT indisprimary)
    OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = t.id AND NOT tgisinternal)
    OR EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = t.id AND a.attnum > 0 AND NOT a.attisdropped AND (
            a.attnotnull AND a.attname <> ALL (t.filled) AND NOT EXISTS (SELECT FROM pg_index
                WHERE indrelid = t.id AND indisprimary AND a.attnum = ANY ((indkey::int2[])[:indnkeyatts-1]))
            OR a.attname <> ALL (t.enums)
                AND NOT coalesce(t.kinds -> a.attname ? format_type(a.atttypid, a.atttypmod), false)))
    OR EXISTS (SELECT FROM pg_constraint c WHERE confrelid = t.id)
    OR EXISTS (SELECT FROM pg_partitioned_table WHERE partrelid = t.id AND partdefid = 0 AND (
        partstrat <> 'h' OR (
            SELECT coalesce(sum(most / modulus) <> max(most), true) FROM (
                SELECT modulus, max(modulus) OVER () AS most
                FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid,
                    CAST(substring(pg_get_expr(relpartbound, c.oid) FROM 'modulus ([0-9]+)') AS int) modulus
                WHERE inhparent = t.id) m))))
    OR (SELECT relispartition FROM pg_class WHERE oid = %s::regclass)
FROM (SELECT id, %s::jsonb AS kinds, %s::text[] AS filled, %s::text[] AS checks, %s::text[] AS enums
    FROM parts) t
"""
"""Of a table and all its partitions. Ranges and lists without a default partition need not have one for each
row, nor hashes whose remainders do not add up."""
_MORE = """
SELECT EXISTS (SELECT FROM pg_constraint c WHERE conrelid = t.id AND contype NOT IN ('p', 'n', 'c'))
    OR EXISTS (SELECT FROM pg_index WHERE indrelid = t.id AND indisunique AND NOT indisprimary)
    OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = t.id)
    OR (SELECT relkind = 'p' OR relispartition OR relhassubclass FROM pg_class WHERE oid = t.id)
FROM (SELECT %s::regclass AS id) t
"""
"""Whether a table refuses rows for more than what is in them; foreign keys to it have triggers. What its
partitions refuse, a copy of its conditions does not."""
_OWN_REFERENCES = """
SELECT format('%%I.%%I', nspname, conname) FROM pg_constraint c JOIN pg_namespace n ON n.oid = connamespace
WHERE conrelid = %s::regclass AND confrelid = conrelid AND contype = 'f' AND condeferred
"""
"""Foreign keys of a table to itself that are checked at the end of a transaction: a change may be good only
with the next one."""
_LETTER = "header__letter"
_NAMES = {"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone"}


def refuses(session: Session, place: Place, target: str, layout: Relation) -> bool:
    """Whether a table may refuse rows: others changed what tailrace made. (What was copied to it from the
    source is relaxed for them.)"""
    kinds = {
        c.name: [_NAMES.get(kind, kind) for kind in (column_type(c), sql_type(c.type))]
        for c in layout.columns
    }
    given = (target, target, json.dumps(kinds), [], [], [])
    return holds(session, _OTHERS, given)


def tried(batch: TableBatch, letter: str | None = None) -> tuple[DataFrame, tuple[str, ...]]:
    """The change rows of a batch as they came, to be staged, and their extra columns; `letter`: the column
    that has a change's operation, when it is not `change_oper`."""
    changes, relation = batch.changes, batch.relation
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    rows = changes.with_df(changes.df.where(oper != TRUNCATE))
    extras = {_LETTER: col(letter) if letter else oper}
    # Without a key there is no row that an image could take something from: it is written as it is.
    if relation.key and batch.may("absent"):
        extras[CARRIED] = _carried(changes, relation)
    made = images(rows, relation, extras=extras)
    if batch.may("T"):
        truncates = changes.df.where(oper == TRUNCATE).select(seq.alias(SEQ), oper.alias(_LETTER))
        made = made.unionByName(truncates, allowMissingColumns=True)
    extra = [n for n in (SEQ, CARRIED) if n in made.columns]
    cells = [*map(col, extra), col(_LETTER).alias(OPER), *[col(c.name) for c in relation.columns]]
    return made.select(*cells), (*extra, OPER)


def _carried(changes: ChangeTable, relation: Relation) -> SparkColumn:
    from pyspark.sql import functions as F

    name, have = changes.header("column_mask"), set(changes.df.columns)
    if name not in have:
        return F.lit(None).cast("string")
    bits = [
        F.when(is_set(col(name), changes.ordinal(c.name)), "1").otherwise("0")
        if c.name in have
        else F.lit("0")
        for c in relation.columns
    ]
    return F.when(col(name).isNotNull(), F.concat(*bits))


@dataclass(frozen=True)
class Trial:
    """Applies staged changes one after the other, and undoes it.

    Attributes:
        staged: the change rows, with `SEQ`, `OPER` and, when some lack columns, `CARRIED`.
        relation: the target's columns, with those that the mode adds.
        name: what the names of the tables that are made here begin with.
    """

    session: Session
    place: Place
    progress: Progress
    staged: Staged
    relation: Relation
    rules: Rules
    name: str

    @property
    def target(self) -> str:
        """The target, as quoted SQL."""
        return self.progress.target(self.relation.table)

    @property
    def into(self) -> str:
        """A table for the changes that were refused (seq, oper, why), as quoted SQL."""
        return self.place.own(f"{self.name}_bad")

    @property
    def probe(self) -> str:
        """A table of the target's columns and conditions, but without keys, as quoted SQL. A change that is
        skipped for what it meets is tried there by its own image; one that lacks columns by its types."""
        return self.place.own(f"{self.name}_probe")

    def run(self) -> int:
        """Fills `into`; gives how many there are."""
        made = f"CREATE UNLOGGED TABLE {self.into} (seq text, oper text, why text)"
        parts = "INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING DEFAULTS INCLUDING IDENTITY"
        like = f"CREATE UNLOGGED TABLE {self.probe} (LIKE {self.target} {parts})"
        for statement in (f"DROP TABLE IF EXISTS {self.into}, {self.probe}", made, like):
            self.session.execute(statement.encode())
        row = self.session.execute(_MORE, (self.target,)).fetchone()
        alone = not (row is None or row[0])
        if alone and self._each_fits():
            return 0
        with self.session.transaction():
            self.session.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for (name,) in self.session.execute(_OWN_REFERENCES, (self.target,)).fetchall():
                self.session.execute(f"SET CONSTRAINTS {name} DEFERRED".encode())
            self.session.execute(f"DO {literal(self._block(alone=alone))}".encode())
        row = self.session.execute(f"SELECT count(*) FROM {self.into}".encode()).fetchone()
        return int(row[0]) if row else 0

    def _each_fits(self) -> bool:
        """Whether each image may be a row, where that alone matters: all of them are tried by one
        statement."""
        if CARRIED in self.staged.extra or self.rules.mode == "soft_delete":
            return False
        names = ", ".join(quoted(c.name) for c in self.relation.columns)
        cells = ", ".join(f"s.c{i}" for i in range(len(self.relation.columns)))
        which = "true" if self.rules.mode == "archive" else f"s.{quoted(OPER)} IN ('I', 'U')"
        images = f"SELECT {cells} FROM {self.staged.source} WHERE {which}"
        try:
            with self.session.transaction(force_rollback=True):
                self.session.execute(f"INSERT INTO {self.probe} ({names}) {GIVEN} {images}".encode())
        except (psycopg.DataError, psycopg.IntegrityError):
            return False
        return True

    def _block(self, *, alone: bool) -> str:
        """`alone`: nothing but an image itself says whether it may be a row."""
        words = {"stage": self.staged.table, "target": self.target, "seq": quoted(SEQ), "oper": quoted(OPER)}
        change = self._template(alone=alone).format(**words, **self._words())
        named = {"its": f"{self.name}_probe", "our": self.progress.split(self.relation.table)[1]}
        words |= {k: literal(v) for k, v in named.items()}
        return BLOCK.format(**words, which=self.staged.which, into=self.into, change=change)

    def _template(self, *, alone: bool) -> str:
        if self.rules.mode == "archive":
            return COPY
        if self.relation.key:
            return CHANGE
        return TRY if alone else BAG

    def _words(self) -> dict[str, str]:
        """The parts of a change's statements."""
        rules, soft = self.rules, self.rules.mode == "soft_delete"
        mark = quoted(rules.soft_column)
        data = [
            (i, c) for i, c in enumerate(self.relation.columns) if not soft or c.name != rules.soft_column
        ]
        key = [(f"t.{quoted(c.name)}", f"c{i}{self.staged.cast(i)}") for i, c in data if c.key]
        if not key:
            return self._bag_words(data)
        partial = CARRIED in self.staged.extra
        rest = [quoted(c.name) for _, c in data if not c.key] or [quoted(c.name) for _, c in data][:1]
        before = " AND ".join(f"{name} = was.{cell}" for name, cell in key)
        here = " AND ".join(f"{name} = r.{cell}" for name, cell in key)
        taken = (
            f"UPDATE {self.target} t SET {mark} = r.{quoted(SEQ)}" if soft else f"DELETE FROM {self.target} t"
        )
        return self._plain_words(data) | {
            "types": "\n    ".join(f"o.{quoted(c.name)} := {self._cell(i)};" for i, c in data),
            "merged": ", ".join(
                _merged(i, c.name, self.staged.cast(i), partial=partial and not c.key) for i, c in data
            ),
            "key": ", ".join(quoted(c.name) for _, c in data if c.key),
            "sets": ", ".join([f"{n} = EXCLUDED.{n}" for n in rest] + ([f"{mark} = NULL"] if soft else [])),
            "before": before,
            "here": here,
            "other": f"({', '.join(f'was.{c}' for _, c in key)}) IS DISTINCT FROM"
            f" ({', '.join(f'r.{c}' for _, c in key)})",
            "lives": f"(o).{mark} IS NULL" if soft else "true",
            "gone": f"{taken} WHERE {here}",
            "left": f"{taken} WHERE {before}",
            "writes": str(rules.on.get("insert_exists") == "apply").lower(),
            "whole": f"r.{quoted(OPER)} = 'I' OR r.{quoted(CARRIED)} IS NULL" if partial else "true",
        }

    def _cell(self, place: int) -> str:
        return f"r.c{place}{self.staged.cast(place)}"

    def _plain_words(self, data: Sequence[tuple[int, Column]]) -> dict[str, str]:
        """Those that every kind of table has; `data`: columns that images have, with their places."""
        table, words = self.relation.table, f"TRUNCATE {self.target}"
        if self.progress.own(table):
            words = f"DELETE FROM {self.target} WHERE {self.progress.own_rows(table)}"
        return {
            "empty": words,
            "probe": self.probe,
            "names": ", ".join(quoted(c.name) for _, c in data),
            "cells": ", ".join(self._cell(i) for i, _ in data),
            "inserts": str(self.rules.on.get("update_missing") == "apply").lower(),
        }

    def _bag_words(self, data: Sequence[tuple[int, Column]]) -> dict[str, str]:
        """Those of a table without key, and of an archive."""

        def one(of: str) -> str:
            same = " AND ".join(
                f"{as_text(f't.{quoted(c.name)}', c.type, self.staged.casts.get(i))}"
                f" IS NOT DISTINCT FROM {of}.c{i}"
                for i, c in data
            )
            place = f"SELECT t.tableoid AS part, t.ctid AS place FROM {self.target} t WHERE {same} LIMIT 1"
            return (
                f"DELETE FROM {self.target} t USING ({place}) o"
                " WHERE t.ctid = o.place AND t.tableoid = o.part"
            )

        return self._plain_words(data) | {"gone": one("r"), "left": one("was")}


def _merged(place: int, name: str, cast: str, *, partial: bool) -> str:
    """A column of the row to be written, by the rule of `engine.carry`: the change's value, that of the row
    it meets, or where there is none, that of the image before."""
    if not partial:
        return f"r.c{place}{cast}"

    def lacks(of: str) -> str:
        return f"coalesce(substr({of}.{quoted(CARRIED)}, {place + 1}, 1) = '0', false)"

    before = f"was.{quoted(SEQ)} = r.{quoted(SEQ)} AND NOT {lacks('was')}"
    other = f"CASE WHEN there THEN (o).{quoted(name)} WHEN {before} THEN was.c{place}{cast} END"
    return f"CASE WHEN {lacks('r')} THEN {other} ELSE r.c{place}{cast} END"
