"""The outcome of a change, as data: mode x what the change meets x policy -> effect, action, row count.

A *situation* is a change and what it meets: a letter (I U D, K for an update that changes the key, T, `?` for
an operation nobody knows) and a digit for each key it names, 1 when a row was there just before it. `K10`:
the old key had a row and the new one none, as it should be. Source: spec/sqdr.md §3, §6; qlik.md §4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from ..config.table_settings import OnConflict, on_conflict
from ..errors import ConfigError
from ..wire.keylog_values import IGNORED
from .lazy import lazy

MODES: Final = {
    "strict": "every change must hit exactly the row it expects; anything else is flagged",
    "upsert": "an update of a missing row inserts it, an insert of an existing one updates it, a delete of a "
    "missing one is ignored",
    "archive": "every insert, update and delete is appended as a row of its own; truncates are ignored",
    "soft_delete": "as upsert, but a deleted row stays and is marked; an insert or update revives it",
}
CONFLICTS: Final = {
    "insert_exists": "the row to be inserted, or the new key of an update, is there already",
    "update_missing": "the row to be updated is not there",
    "delete_missing": "the row to be deleted is not there",
    "data_error": "the target cannot hold the values",
}
POLICIES: Final = {
    "apply": "the change is made to fit: written over the row that is there, or inserted",
    "ignore": "the change is skipped",
    "log": "the change is skipped, flagged, and kept in `attrep_apply_exceptions`",
    "suspend": "the batch ends before the change, and its table takes no more until it is resumed",
    "stop": "the batch ends before the change, and apply stops with an error that names it",
}
ENDING: Final = ("suspend", "stop")
_LENIENT = dict.fromkeys(CONFLICTS, "apply") | {"delete_missing": "ignore", "data_error": "stop"}
DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "strict": dict.fromkeys(CONFLICTS, "log") | {"data_error": "stop"},
    "upsert": _LENIENT,
    "archive": {"data_error": "stop"},
    "soft_delete": _LENIENT,
}
"""Mode -> conflict -> policy, where nothing else is said."""

SITUATIONS: Final = {
    "I0": "insert of a new row",
    "I1": "insert, the row exists",
    "U1": "update",
    "U0": "update, the row is missing",
    "D1": "delete",
    "D0": "delete, the row is missing",
    "K10": "update of the key",
    "K11": "update of the key, the new key exists",
    "K00": "update of the key, the old key is missing",
    "K01": "update of the key, the old key is missing and the new one exists",
    "I!": "insert of values that the target cannot hold",
    "U!": "update to values that the target cannot hold",
    "D!": "delete whose key is NULL, or that the target refuses",
    "T": "truncate",
    "?": "an operation that is not known",
}
PLAIN: Final = ("I0", "U1", "D1", "K10", "T")
"""Situations in which a change meets what it expects."""
SOFT_COLUMN: Final = "_deleted"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a change.

    Attributes:
        effect: on the target: `write` a row, `delete` it, `mark` it as deleted, `move` it to another key,
            append a `copy`, `truncate`, or `nothing`.
        action: `action_taken` of the key log.
        rows: `result_row_count`: rows of the target it touched; None: a truncate, which tells no number.
        flagged: whether it counts in `flagged_count`.
        conflict: a name in `CONFLICTS`: the one that decided; None when there was none.
    """

    effect: str
    action: str
    rows: int | None
    flagged: bool = False
    conflict: str | None = None

    @property
    def effective(self) -> bool:
        """Whether the change takes part in what is written to the target."""
        return self.effect != "nothing"


@dataclass(frozen=True)
class Rules:
    """How the changes of a table are applied; make it with `of`.

    Attributes:
        mode: a name in `MODES`.
        on: conflict -> policy, complete.
        soft_column: under `soft_delete` the column that marks rows: string, the `change_seq` of the delete;
            NULL while the row lives.
        limits: conflict -> how many `log` lets pass, and the policy from the next one on.
    """

    mode: str = "upsert"
    on: Mapping[str, str] = field(default_factory=lambda: _LENIENT)
    soft_column: str = SOFT_COLUMN
    limits: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @staticmethod
    def of(
        mode: str, on: Mapping[str, str | OnConflict] | None = None, soft_column: str = SOFT_COLUMN
    ) -> Rules:
        """Rules of a mode, with policies that differ from its defaults.

        Raises:
            ConfigError: a mode, conflict or policy that there is not.

        >>> rules = Rules.of("strict", {"update_missing": "log then stop after 9"})
        >>> rules.on["update_missing"], rules.limits
        ('log', {'update_missing': (9, 'stop')})
        """
        if mode not in MODES:
            raise ConfigError(f"no apply mode {mode!r}", hint=f"use one of {', '.join(MODES)}")
        said = {kind: _policy(kind, policy) for kind, policy in (on or {}).items()}
        if mode == "archive" and set(said) - {"data_error"}:
            raise ConfigError(
                "an archive has no conflicts", hint="leave the policies out, but that of data_error"
            )
        limits = {k: (one.after, str(one.then)) for k, one in said.items() if one.after is not None}
        policies = {k: str(one.policy) for k, one in said.items()}
        return Rules(mode, {**DEFAULTS[mode], **policies}, soft_column, limits)

    @property
    def update(self) -> str:
        """The code of an update: strict and tolerant ones have their own."""
        return "M" if self.mode == "strict" else "U"

    @property
    def overwrites(self) -> bool:
        """Whether a change of a key is made whatever it meets; else its outcome hangs on the other key's."""
        return self.on.get("insert_exists") == self.on.get("update_missing") == "apply"

    @property
    def keeps(self) -> bool:
        """Whether a change may be flagged and skipped."""
        return any((o := self.outcome(s)).flagged and not o.effective for s in SITUATIONS)

    @property
    def plain(self) -> bool:
        """Whether they are what a target does without any."""
        return self == Rules()

    @property
    def lenient(self) -> Rules:
        """Rules under which every change is made to fit, for the same columns of the target."""
        # What a change meets tells nothing where rows may have it already: an insert that finds its row, an
        # update that does not are no conflicts there, so the policies for them are replaced. Values that the
        # target refuses fit nowhere, here as elsewhere: what happens then is for the user to say.
        kept = "data_error"
        return Rules(
            "upsert" if self.mode == "strict" else self.mode,
            {**_LENIENT, kept: self.on[kept]},
            self.soft_column,
            {kind: limit for kind, limit in self.limits.items() if kind == kept},
        )

    def conflict(self, situation: str) -> str | None:
        """The conflict that decides a situation; None when there is none.

        >>> Rules.of("upsert").conflict("K01"), Rules.of("strict").conflict("K01")
        ('insert_exists', 'update_missing')
        """
        if situation.endswith("!"):
            return "data_error"
        if self.mode == "archive" or situation in PLAIN or situation == "?":
            return None
        if situation[0] == "D":
            return "delete_missing"
        missing = situation in ("U0", "K00", "K01")
        # An update without its row becomes an insert, if it may; that one may meet a row in its turn.
        if missing and (situation != "K01" or self.on["update_missing"] != "apply"):
            return "update_missing"
        return "insert_exists"

    def outcome(self, situation: str) -> Outcome:
        """The outcome of a change in that situation.

        >>> Rules.of("strict").outcome("U0")
        Outcome(effect='nothing', action='M', rows=0, flagged=True, conflict='update_missing')
        """
        if situation not in self._outcomes:
            self._outcomes[situation] = self._outcome(situation)
        return self._outcomes[situation]

    @lazy
    def _outcomes(self) -> dict[str, Outcome]:
        return {}

    def _outcome(self, situation: str) -> Outcome:
        if situation == "?":
            return Outcome("nothing", "?", 0, True)
        kind = self.conflict(situation)
        if self.mode == "archive" and kind is None:
            return Outcome("nothing", IGNORED, 0) if situation == "T" else Outcome("copy", "I", 1)
        if kind is None:
            return self._plain(situation)
        policy = self.on[kind]
        if policy == "apply":
            return self._fitted(situation, kind)
        if policy == "ignore":
            return Outcome("nothing", IGNORED, 0, False, kind)
        tried = situation[0] if situation[0] in "ID" else self.update
        return Outcome("nothing", tried, 0, True, kind)

    def _plain(self, situation: str) -> Outcome:
        gone = "mark" if self.mode == "soft_delete" else "delete"
        return {
            "I0": Outcome("write", "I", 1),
            "U1": Outcome("write", self.update, 1),
            "D1": Outcome(gone, "D", 1),
            "K10": Outcome("move", self.update, 1),
            "T": Outcome("truncate", "T", None),
        }[situation]

    def _fitted(self, situation: str, kind: str) -> Outcome:
        """The policy `apply`: the action is the operation that took effect in the end."""
        flagged = self.mode == "strict"
        if situation == "D0":  # nothing to make fit
            return Outcome("nothing", "D" if flagged else IGNORED, 0, flagged, kind)
        if situation in ("U0", "K00"):
            return Outcome("write", "I", 1, flagged, kind)
        if situation == "K11":  # two rows become one: that is never as expected
            return Outcome("move", self.update, 2, True, kind)
        return Outcome("write", self.update, 1, flagged, kind)


def _policy(kind: str, given: str | OnConflict) -> OnConflict:
    if kind not in CONFLICTS:
        raise ConfigError(f"no conflict {kind!r}", hint=f"there are {', '.join(CONFLICTS)}")
    try:
        made = OnConflict.model_validate(on_conflict(given))
    except ValidationError:
        raise ConfigError(
            f"no policy {given!r}",
            hint=f"use one of {', '.join(POLICIES)}, or `log then suspend after 100`",
        ) from None
    if kind == "data_error" and made.policy == "apply":
        raise ConfigError(
            "values that the target cannot hold cannot be applied",
            hint="use ignore, log, suspend or stop for data_error",
        )
    return made


def reason(kind: str | None) -> str | None:
    """`result_error` of a flagged change.

    >>> reason("update_missing")
    'update_missing: the row to be updated is not there'
    """
    return "the operation is not known" if kind is None else f"{kind}: {CONFLICTS[kind]}"
