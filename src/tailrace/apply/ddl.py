"""Kinds of DDL, which are the differences between two layouts of a table, and the policies for them.

PostgreSQL's stream has no DDL; a new layout precedes the first row that has it. Columns are identified by
`attnum`, so a renamed column is found, and a column that was dropped and created again is a new one.

| kind | difference | `apply` | `ignore` |
|---|---|---|---|
| `add` | a new column | the target gets it | the target never gets it |
| `drop` | a column was dropped | the target loses it | it stays; updates leave it, inserts are NULL |
| `rename` | a column has another name | renamed in the target | the target keeps the old name |
| `widen` | a type that has all values of the old one | the target's column is widened | it keeps its type |
| `retype` | another type | the target's column is converted, if no value is lost | it keeps its type |
| `rekey` | another row key | the target gets it | the target keeps its key |

`suspend` ends the table's batch before the first change of the new layout and suspends the table. To resume
the table is to accept the DDL, which is applied then. `stop` ends the task there with an error, until the
policy is changed. The decision for a DDL is recorded, and later policies do not change it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import ApplyError, BaselineNeededError
from ..model.change import Column, Relation
from ..model.types import arrow_type
from ..sources.base import OR_LEAVE_OUT
from ..sources.postgresql.layout import UNKNOWN_VALUE
from ..store.tables import widens
from ..targets.layout_changes import changed
from .mapping.prepare import MappedColumn, Prepared
from .mapping.table_map import TableMap

APPLY, IGNORE, SUSPEND, STOP = "apply", "ignore", "suspend", "stop"
DEFAULTS: Mapping[str, str] = {
    "add": APPLY,
    "drop": APPLY,
    "rename": APPLY,
    "widen": APPLY,
    "retype": APPLY,
    "rekey": APPLY,
    "drop_table": SUSPEND,
    "rename_table": IGNORE,
    "recreate_table": SUSPEND,
}
"""The default policy of each kind."""


@dataclass(frozen=True)
class Ddl:
    """One difference between two layouts of a table.

    Attributes:
        kind: the kind, as in the table above.
        attnum: the number of the column; 0 for the row key.
        before, after: the column in the two layouts; None where it does not exist.
    """

    kind: str
    attnum: int
    before: Column | None = None
    after: Column | None = None

    @property
    def unproved(self) -> bool:
        """Whether it is a new column whose value in older rows is not proved by the log."""
        return self.after is not None and self.kind == "add" and self.after.note == UNKNOWN_VALUE

    def __str__(self) -> str:
        if self.kind == "rekey":
            return "the key is another one"
        if self.before is None or self.after is None:
            one = self.after or self.before
            assert one is not None  # noqa: S101 - one of them exists
            text = f"column {one.name!r} was {'added' if self.kind == 'add' else 'dropped'}"
            return f"{text}: {UNKNOWN_VALUE}; `tailrace resync` reads them" if self.unproved else text
        if self.kind == "rename":
            return f"column {self.before.name!r} was renamed to {self.after.name!r}"
        return changed(self.before, self.after)


def between(before: Relation, after: Relation) -> list[Ddl]:
    """The differences between a layout of a table and the next one, in the order of the columns.

    >>> a = Column("a", 1, "integer", "int4", "int", key=True)
    >>> b = replace(a, name="b", source_type="bigint", kind="int8", type="bigint")
    >>> [str(d) for d in between(Relation(1, "s", "t", "d", (a,)), Relation(1, "s", "t", "d", (b,)))]
    ["column 'a' was renamed to 'b'", "column 'b' changed from integer to bigint"]
    """
    old = {c.attnum: c for c in before.columns}
    new = {c.attnum: c for c in after.columns}
    found = [Ddl("drop", n, c) for n, c in old.items() if n not in new]
    for n, c in new.items():
        if n not in old:
            found.append(Ddl("add", n, None, c))
            continue
        if old[n].name != c.name:
            found.append(Ddl("rename", n, old[n], c))
        if (old[n].type, old[n].kind, old[n].source_type) != (c.type, c.kind, c.source_type):
            found.append(Ddl(_retyped(old[n], c), n, old[n], c))
    if (
        [n for n, c in old.items() if c.key and n in new] != [n for n, c in new.items() if c.key and n in old]
        or [n for n, c in new.items() if c.key and n not in old]
        or (before.key and not after.key)
    ):
        found.append(Ddl("rekey", 0))
    return found


def _retyped(old: Column, new: Column) -> str:
    if old.type == new.type:
        return "widen" if old.kind == new.kind else "retype"
    return "widen" if widens(arrow_type(old.type), arrow_type(new.type)) else "retype"


def followed(target: Relation, after: Relation, decided: Sequence[tuple[Ddl, str]]) -> Relation:
    """The layout of the target once the source has the layout `after`.

    Args:
        target: the target's layout before.
        after: the new layout of the source.
        decided: the differences between the source's layouts, each with its policy.

    Raises:
        ApplyError: a kept column and a new one have the same name.
        BaselineNeededError: the row key has a column that the target does not have, because adding it was
            ignored; or the target has no columns, or would have none.
    """
    ignored = {(d.kind, d.attnum) for d, policy in decided if policy == IGNORE}
    applied = {(d.kind, d.attnum) for d, _ in decided} - ignored
    rekeyed = ("rekey", 0) in applied
    have = {c.attnum: c for c in target.columns}
    columns = []
    for c in after.columns:
        mine = have.get(c.attnum)
        if mine is None:
            if ("add", c.attnum) in applied:
                columns.append(c if ("rekey", 0) not in ignored else replace(c, key=False))
            continue
        if ("rename", c.attnum) in applied:
            mine = replace(mine, name=c.name)
        if {("widen", c.attnum), ("retype", c.attnum)} & applied:
            mine = replace(mine, type=c.type, kind=c.kind, source_type=c.source_type)
        columns.append(replace(mine, key=c.key if rekeyed else mine.key))
    staying = [c for n, c in have.items() if ("drop", n) in ignored or _stays(n, after, decided)]
    columns += [replace(c, key=c.key and not rekeyed) for c in staying]
    _refuse_no_columns(target, columns)
    if rekeyed:
        _refuse_lost_key(after, {c.attnum for c in columns})
    names = [c.name for c in columns]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ApplyError(
            f"the target would have two columns {twice[0]!r}: one kept when a DDL was ignored, and a new one",
            where=after.table,
            hint="run `tailrace resync`: the new baseline has the layout of the source",
        )
    return replace(target, relid=after.relid, identity=after.identity, columns=tuple(columns))


def _refuse_no_columns(target: Relation, columns: Sequence[Column]) -> None:
    if columns and target.columns:
        return
    lost = "has had no columns" if columns else "would have no columns: the source dropped the last one"
    raise BaselineNeededError(
        f"the target {lost}, and a table without columns keeps no rows",
        where=target.table,
        hint=f"once the source's table has a column, `tailrace resync` it, {OR_LEAVE_OUT % target.table}",
    )


def _refuse_lost_key(after: Relation, attnums: Collection[int]) -> None:
    if lost := [repr(c.name) for c in after.columns if c.key and c.attnum not in attnums]:
        raise BaselineNeededError(
            f"the row key now has {', '.join(lost)}, which the target does not have: adding it was ignored",
            where=after.table,
            hint="run `tailrace resync`: the new baseline has the layout of the source",
        )


def _stays(attnum: int, after: Relation, decided: Sequence[tuple[Ddl, str]]) -> bool:
    """Whether a column stays that the source dropped with an earlier DDL."""
    dropped = attnum not in {c.attnum for c in after.columns}
    return dropped and ("drop", attnum) not in {(d.kind, d.attnum) for d, _ in decided}


def projection(source: Relation, target: Relation) -> Prepared | None:
    """The mapping from the source's layout to the target's, by `attnum`; None if they are equal."""
    if [(c.attnum, c.name, c.type, c.key) for c in source.columns] == [
        (c.attnum, c.name, c.type, c.key) for c in target.columns
    ]:
        return None
    names = {c.attnum: c.name for c in source.columns}
    parts = [
        MappedColumn(c, source=names[c.attnum]) if c.attnum in names else MappedColumn(c, absent=True)
        for c in target.columns
    ]
    return Prepared(TableMap(source.table, target.table), source, target, tuple(parts))


def decide(
    found: Sequence[Ddl], policies: Mapping[str, str], stays: Container[int] = ()
) -> list[tuple[Ddl, str]]:
    """The policy of each difference. `stays`: the columns of the newest layout.

    A new column in `stays` whose value in older rows is not proved has the policy of `retype`: it is added
    with NULL in older rows if that is `ignore`, and suspends the table if that is `apply`.
    """
    decided = []
    for d in found:
        policy = policies.get(d.kind, DEFAULTS[d.kind])
        if policy == APPLY and d.unproved and d.attnum in stays:
            lossy = policies.get("retype", DEFAULTS["retype"])
            policy = {APPLY: SUSPEND, IGNORE: APPLY}.get(lossy, lossy)
        decided.append((d, policy))
    return decided
