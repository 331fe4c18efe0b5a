"""What a source's DDL means to a target: the kinds of change between two layouts, and policies for them.

PostgreSQL's stream carries no DDL; a layout comes with the first row after it. Columns are known by
`attnum`, so a rename is a rename, and a column dropped and made again is a new one.

| kind | what it is | `apply` | `ignore` |
|---|---|---|---|
| `add` | a new column | the target gets it | the target never gets it |
| `drop` | a column is gone | the target loses it | it stays; updates leave it, inserts are NULL |
| `rename` | a column has another name | renamed in the target | the target keeps the old name |
| `widen` | a type that holds all the old one did | the target's column is widened | it keeps its type |
| `retype` | another type | the target's column is turned into it, if faithful | it keeps its type |
| `rekey` | another row key | the target gets it | the target keeps its key |

`suspend` ends the table's batch before the first change of the new layout and suspends the table; whoever
resumes it accepts the DDL, which is applied then. `stop` ends the task there with an error, until the policy
is another. What was decided for a DDL is kept and holds, whatever the policy becomes.
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
"""Kind -> policy, where nothing else is said."""


@dataclass(frozen=True)
class Ddl:
    """One change of a layout: its kind, the column (0: the table's key), and how it was and is."""

    kind: str
    attnum: int
    before: Column | None = None
    after: Column | None = None

    @property
    def unproved(self) -> bool:
        """Whether it is a new column of which the log does not prove what older rows have in it."""
        return self.after is not None and self.kind == "add" and self.after.note == UNKNOWN_VALUE

    def __str__(self) -> str:
        if self.kind == "rekey":
            return "the key is another one"
        if self.before is None or self.after is None:
            one = self.after or self.before
            assert one is not None  # noqa: S101 - one of them is there
            said = f"column {one.name!r} was {'added' if self.kind == 'add' else 'dropped'}"
            return f"{said}: {UNKNOWN_VALUE}; `tailrace resync` reads them" if self.unproved else said
        if self.kind == "rename":
            return f"column {self.before.name!r} was renamed to {self.after.name!r}"
        return changed(self.before, self.after)


def between(before: Relation, after: Relation) -> list[Ddl]:
    """The changes from one layout of a table to the next, in the order of the columns.

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
    """The layout of the target once the source has the layout `after`, as was decided for each change.

    Args:
        target: its layout before.
        after: the source's new one.
        decided: the changes between the source's layouts, each with its policy.

    Raises:
        ApplyError: two columns would have one name: one that was kept, and a new one.
        BaselineNeededError: the row key has a column that the target lacks, because adding it was ignored;
            or the target would lose its last column, or had none.
    """
    ignored = {(d.kind, d.attnum) for d, policy in decided if policy == IGNORE}
    applied = {(d.kind, d.attnum) for d, _ in decided} - ignored
    rekeyed = ("rekey", 0) in applied
    have = {c.attnum: c for c in target.columns}
    made = []
    for c in after.columns:
        mine = have.get(c.attnum)
        if mine is None:
            if ("add", c.attnum) in applied:
                made.append(c if ("rekey", 0) not in ignored else replace(c, key=False))
            continue
        if ("rename", c.attnum) in applied:
            mine = replace(mine, name=c.name)
        if {("widen", c.attnum), ("retype", c.attnum)} & applied:
            mine = replace(mine, type=c.type, kind=c.kind, source_type=c.source_type)
        made.append(replace(mine, key=c.key if rekeyed else mine.key))
    kept = [c for n, c in have.items() if ("drop", n) in ignored or _kept(n, after, decided)]
    made += [replace(c, key=c.key and not rekeyed) for c in kept]
    _refuse_no_columns(target, made)
    if rekeyed:
        _refuse_lost_key(after, {c.attnum for c in made})
    names = [c.name for c in made]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ApplyError(
            f"the target would have two columns {twice[0]!r}: one kept when a DDL was ignored, and a new one",
            where=after.table,
            hint="take a new baseline of the table: it begins with the source's layout",
        )
    return replace(target, relid=after.relid, identity=after.identity, columns=tuple(made))


def _refuse_no_columns(target: Relation, made: Sequence[Column]) -> None:
    if made and target.columns:
        return
    lost = "has had no columns" if made else "would have no columns: the source dropped the last one"
    raise BaselineNeededError(
        f"the target {lost}, and a table without columns keeps no rows",
        where=target.table,
        hint=f"once the source's table has a column, `tailrace resync` it, {OR_LEAVE_OUT % target.table}",
    )


def _refuse_lost_key(after: Relation, there: Collection[int]) -> None:
    if lost := [repr(c.name) for c in after.columns if c.key and c.attnum not in there]:
        raise BaselineNeededError(
            f"the row key has {', '.join(lost)} now, which the target lacks: adding it was ignored",
            where=after.table,
            hint="take a new baseline of the table: it begins with the source's layout",
        )


def _kept(number: int, after: Relation, decided: Sequence[tuple[Ddl, str]]) -> bool:
    """Whether a column that the source lost earlier is still to stay."""
    gone = number not in {c.attnum for c in after.columns}
    return gone and ("drop", number) not in {(d.kind, d.attnum) for d, _ in decided}


def projection(source: Relation, target: Relation) -> Prepared | None:
    """What brings changes of the source's layout into the target's, by `attnum`; None: they are the same."""
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
    """The policy of each change; `stays`: the columns of the newest layout.

    A column that stays, and whose value in older rows is not proved, has the policy of a type whose values
    cannot be converted: applied with NULL in older rows if that is `ignore`, suspended if it is `apply`.
    """
    decided = []
    for d in found:
        policy = policies.get(d.kind, DEFAULTS[d.kind])
        if policy == APPLY and d.unproved and d.attnum in stays:
            lossy = policies.get("retype", DEFAULTS["retype"])
            policy = {APPLY: SUSPEND, IGNORE: APPLY}.get(lossy, lossy)
        decided.append((d, policy))
    return decided
