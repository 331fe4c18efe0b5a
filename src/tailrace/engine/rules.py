"""The outcome of a change, as data: mode, situation and policy determine effect, action and row count.

A *situation* is a change and the state of its keys. It has a letter (I U D, K for an update that changes the
key, T, `?` for an unknown operation) and a digit per key: 1 if the key had a row just before. `K10`: the old
key had a row and the new one none, as expected. Source: spec/sqdr.md §3, §6; qlik.md §4.
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
    "strict": "every change must find exactly the row that it expects; other changes are flagged",
    "upsert": "an update of a missing row inserts it, an insert of an existing one updates it, a delete of a "
    "missing one is ignored",
    "archive": "every insert, update and delete is appended as a new row; truncates are ignored",
    "soft_delete": "as upsert, but a deleted row stays and is marked; an insert or update restores it",
}
CONFLICTS: Final = {
    "insert_exists": "the row to be inserted, or the new key of an update, already exists",
    "update_missing": "the row to be updated does not exist",
    "delete_missing": "the row to be deleted does not exist",
    "data_error": "the target cannot hold the values",
}
POLICIES: Final = {
    "apply": "the change is applied anyway: it overwrites the existing row, or is inserted",
    "ignore": "the change is skipped",
    "log": "the change is skipped, flagged, and recorded in `attrep_apply_exceptions`",
    "suspend": "the batch ends before the change, and its table is suspended until it is resumed",
    "stop": "the batch ends before the change, and apply stops with an error about it",
}
ENDING: Final = ("suspend", "stop")
_LENIENT = dict.fromkeys(CONFLICTS, "apply") | {"delete_missing": "ignore", "data_error": "stop"}
DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "strict": dict.fromkeys(CONFLICTS, "log") | {"data_error": "stop"},
    "upsert": _LENIENT,
    "archive": {"data_error": "stop"},
    "soft_delete": _LENIENT,
}
"""The default policy per mode and conflict."""

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
    "?": "an unknown operation",
}
PLAIN: Final = ("I0", "U1", "D1", "K10", "T")
"""Situations without conflict."""
SOFT_COLUMN: Final = "_deleted"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a change.

    Attributes:
        effect: effect on the target: `write` a row, `delete` it, `mark` it as deleted, `move` it to another
            key, append a `copy`, `truncate`, or `nothing`.
        action: `action_taken` of the key log.
        rows: `result_row_count`, the number of affected target rows; None for a truncate.
        flagged: whether it counts in `flagged_count`.
        conflict: the deciding conflict, a name in `CONFLICTS`, or None.
    """

    effect: str
    action: str
    rows: int | None
    flagged: bool = False
    conflict: str | None = None

    @property
    def effective(self) -> bool:
        """Whether the change takes part in the write to the target."""
        return self.effect != "nothing"


@dataclass(frozen=True)
class Rules:
    """Rules for applying a table's changes; create them with `of`.

    Attributes:
        mode: a name in `MODES`.
        on: the policy of every conflict.
        soft_column: under `soft_delete` the column that marks deleted rows: string, the `change_seq` of the
            delete, else NULL.
        limits: per conflict the number that `log` allows, and the policy after that.
    """

    mode: str = "upsert"
    on: Mapping[str, str] = field(default_factory=lambda: _LENIENT)
    soft_column: str = SOFT_COLUMN
    limits: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @staticmethod
    def of(
        mode: str, on: Mapping[str, str | OnConflict] | None = None, soft_column: str = SOFT_COLUMN
    ) -> Rules:
        """Returns the rules of a mode, with policies that differ from its defaults.

        Raises:
            ConfigError: a mode, conflict or policy does not exist.

        >>> rules = Rules.of("strict", {"update_missing": "log then stop after 9"})
        >>> rules.on["update_missing"], rules.limits
        ('log', {'update_missing': (9, 'stop')})
        """
        if mode not in MODES:
            raise ConfigError(f"no apply mode {mode!r}", hint=f"use one of {', '.join(MODES)}")
        said = {kind: _policy(kind, policy) for kind, policy in (on or {}).items()}
        if mode == "archive" and set(said) - {"data_error"}:
            raise ConfigError(
                "an archive has no conflicts", hint="leave out all policies except that of data_error"
            )
        limits = {k: (one.after, str(one.then)) for k, one in said.items() if one.after is not None}
        policies = {k: str(one.policy) for k, one in said.items()}
        return Rules(mode, {**DEFAULTS[mode], **policies}, soft_column, limits)

    @property
    def update(self) -> str:
        """The action code of an update: `M` under strict rules, else `U`."""
        return "M" if self.mode == "strict" else "U"

    @property
    def overwrites(self) -> bool:
        """Whether a key change is applied in every situation; else its outcome depends on the other key."""
        return self.on.get("insert_exists") == self.on.get("update_missing") == "apply"

    @property
    def keeps(self) -> bool:
        """Whether a change may be flagged and skipped."""
        return any((o := self.outcome(s)).flagged and not o.effective for s in SITUATIONS)

    @property
    def plain(self) -> bool:
        """Whether these are the default rules."""
        return self == Rules()

    @property
    def lenient(self) -> Rules:
        """Rules that apply every change, for the same columns of the target."""
        # Rows may have the changes already. Then an insert that finds its row, or an update that does not, is
        # no conflict, so their policies are replaced. Values that the target refuses remain a conflict, whose
        # policy the user has chosen.
        kept = "data_error"
        return Rules(
            "upsert" if self.mode == "strict" else self.mode,
            {**_LENIENT, kept: self.on[kept]},
            self.soft_column,
            {kind: limit for kind, limit in self.limits.items() if kind == kept},
        )

    def conflict(self, situation: str) -> str | None:
        """Returns the conflict that decides a situation, or None.

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
        # An update without its row becomes an insert if allowed, and that insert may find a row.
        if missing and (situation != "K01" or self.on["update_missing"] != "apply"):
            return "update_missing"
        return "insert_exists"

    def outcome(self, situation: str) -> Outcome:
        """Returns the outcome of a change in a situation.

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
        """Returns the outcome under the policy `apply`; the action is the operation that took effect."""
        flagged = self.mode == "strict"
        if situation == "D0":  # nothing to delete
            return Outcome("nothing", "D" if flagged else IGNORED, 0, flagged, kind)
        if situation in ("U0", "K00"):
            return Outcome("write", "I", 1, flagged, kind)
        if situation == "K11":  # two rows become one, which is always flagged
            return Outcome("move", self.update, 2, True, kind)
        return Outcome("write", self.update, 1, flagged, kind)


def _policy(kind: str, given: str | OnConflict) -> OnConflict:
    if kind not in CONFLICTS:
        raise ConfigError(f"no conflict {kind!r}", hint=f"use one of {', '.join(CONFLICTS)}")
    try:
        result = OnConflict.model_validate(on_conflict(given))
    except ValidationError:
        raise ConfigError(
            f"no policy {given!r}",
            hint=f"use one of {', '.join(POLICIES)}, or `log then suspend after 100`",
        ) from None
    if kind == "data_error" and result.policy == "apply":
        raise ConfigError(
            "values that the target cannot hold cannot be applied",
            hint="use ignore, log, suspend or stop for data_error",
        )
    return result


def reason(kind: str | None) -> str | None:
    """Returns the `result_error` of a flagged change.

    >>> reason("update_missing")
    'update_missing: the row to be updated does not exist'
    """
    return "unknown operation" if kind is None else f"{kind}: {CONFLICTS[kind]}"
