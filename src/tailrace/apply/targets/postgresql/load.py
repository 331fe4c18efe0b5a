"""Baselines that come as a DataFrame (those of mapped tables): staged as a batch is, then made the table's
rows in one transaction, together with its row of progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psycopg

from ....errors import BaselineNeededError
from ....lake.failpoints import reach
from ....model.change import Relation
from ....sources.postgresql.connect import Session
from ...images import col
from ...tasks import Parts
from . import layout
from . import stage as staging
from .adopted import adopts, key_of, with_rule_columns
from .place import WORK_MEM, Place
from .progress import Progress, one_at_a_time
from .shared import delete_own, refuse
from .types import casts
from .write import StagedWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DATA = ("22", "23")
"""Classes of SQLSTATE: data exceptions, and violations of integrity."""


@dataclass
class Load:
    """One load: the connection that has the table, where to, the name of its staging table; `rule_columns`:
    columns (name -> type) that rules add to the target."""

    session: Session
    place: Place
    progress: Progress
    stage: str
    rule_columns: Mapping[str, str] = field(default_factory=dict)
    adopted: bool = field(default=False, init=False)

    def run(self, relation: Relation, rows: DataFrame | Parts, after: int) -> int:
        """Makes rows all that the target has of a table, and `after` its change number; gives the
        transaction's number.

        Raises:
            BaselineNeededError: the database refuses rows, or others that feed the target make other columns.
        """
        on, table = self.session, relation.table
        if not isinstance(rows, Parts):
            rows = rows.select(*[col(c.name) for c in relation.columns])
        with on.transaction():
            self.progress.prepare(on)
        target = self.progress.target(table)
        staged = staging.stage(on, self.place, self.stage, rows, relation, (), target)
        try:
            with on.transaction():
                one_at_a_time(on)
                on.execute(f"SET LOCAL work_mem = '{WORK_MEM}'".encode())
                anew = self._emptied(relation)
                now = replace(staged, casts=casts(on, target, relation.columns))
                to = StagedWriter(on, target, relation, now)
                to.append()
                if anew and relation.key:
                    on.execute(f"ALTER TABLE {to.target} ADD {layout.primary_key(relation)}".encode())
                version = self.progress.begin(on, table, self._layout(relation), after)
                if self.adopted:
                    self.progress.adopt(on, table)
                reach("postgresql.load")
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in _DATA:
                raise
            raise BaselineNeededError(
                f"the target refuses rows of the baseline: {str(error).strip()}",
                where=table,
                hint="correct `tables` (may the key be NULL, or come twice?) or the rows, then resync it",
            ) from error
        on.execute(f"ANALYZE {to.target}".encode())
        return version

    def _layout(self, relation: Relation) -> Relation:
        """The layout that the target has from now on."""
        if not self.adopted:
            return relation
        return with_rule_columns(
            self.session, self.progress.target(relation.table), relation, self.rule_columns
        )

    def _emptied(self, relation: Relation) -> bool:
        """Takes away what the table had there; whether the target is made anew, its key still to come."""
        on, progress, table = self.session, self.progress, relation.table
        if others := progress.others(on, table):
            refuse(progress, relation, others, self.rule_columns)
            delete_own(on, progress, table)
            return False
        known = progress.read(on, table)
        if (
            progress.adopted(on, table)
            if known
            else adopts(on, self.place, progress, relation, self.rule_columns)
        ):
            self.adopted = True
            on.execute(f"DELETE FROM {progress.target(table)}".encode())
            if known is not None:
                layout.follow(on, progress, known.layout, self._layout(relation))
            if statement := key_of(on, progress.target(table), relation):
                on.execute(statement.encode())
            return False
        if known is not None:
            on.execute(f"DROP TABLE {progress.target(table)}".encode())
        layout.make(on, progress, relation, key=False)
        return True
