"""Rows of a key log: each change with its keys and image as text, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model import sequence
from ..model.change import BEFORE, DELETE, INSERT, UPDATE
from ..wire.keylog_render import Item, image, items
from ..wire.keylog_values import KeyLogField
from .batch import Batch
from .columns import AT, DETAIL, NATIVE_OF, OPER, SEQ, carried, letters, one, words
from .decide import NAMES
from .keys import Keys
from .rules import Rules, reason

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyLogHeader:
    """Values that all rows of a range of a key log share.

    Attributes:
        run_id, group_id, subscription: the values of these columns.
        after: the change number before the first.
        flagged, sort: the log's `flagged_count` and `keylog_sort` up to there.
        fields: the data columns.
        ordinals: their bits in the column mask.
        key: names of the key's columns.
        dest: the `<Dest>` of images.
    """

    run_id: str
    group_id: str
    subscription: str
    after: int
    flagged: int
    sort: int
    fields: tuple[KeyLogField, ...]
    ordinals: tuple[int, ...]
    key: tuple[str, ...]
    dest: str


@dataclass(frozen=True)
class ChangeTexts:
    """Keys and images of changes as text.

    Attributes:
        keys: the keys.
        images: the images; None if not requested. NULL for a delete that has only a key.
    """

    keys: pa.StringArray
    images: pa.StringArray | None

    @staticmethod
    def of(rows: pa.Table, oper: npt.NDArray[np.str_], header: KeyLogHeader, *, images: bool) -> ChangeTexts:
        """Renders changes."""
        # Every image has the key's columns. If the key is the whole row, an archive's image may not have all.
        there = carried(rows, header.ordinals) if _is_row(header) else None
        keys = items([_item(rows, header, i, None if there is None else there[:, i]) for i in _key(header)])
        return ChangeTexts(keys, _images(rows, header, oper) if images else None)

    @staticmethod
    def of_changes(rows: pa.Table, header: KeyLogHeader, *, images: bool) -> ChangeTexts:
        """Renders the changes among the rows of a batch (all except B rows), as `logged` expects them."""
        oper = letters(one(rows[OPER]))
        changes = oper != BEFORE
        if not changes.all():
            rows, oper = rows.filter(pa.array(changes)), oper[changes]
        return ChangeTexts.of(rows, oper, header, images=images)

    @staticmethod
    def joined(parts: Sequence[ChangeTexts]) -> ChangeTexts:
        """Concatenates the texts of several parts."""
        keys, images = [p.keys for p in parts], [p.images for p in parts if p.images is not None]
        return ChangeTexts(pa.concat_arrays(keys), pa.concat_arrays(images) if images else None)

    def take(self, places: Places) -> ChangeTexts:
        """Returns some of them by index; indexes must be ascending."""
        if len(places) == len(self.keys):
            return self
        at = pa.array(places)
        return ChangeTexts(self.keys.take(at), None if self.images is None else self.images.take(at))


@dataclass(frozen=True)
class LoggedChanges:
    """Changes to be written to a key log.

    Attributes:
        rows: `SEQ`, the columns of the header's fields, and optionally `MASK`, `AT`, `DETAIL`.
        oper: the operation, one letter.
        situation: the index in `decide.NAMES`.
        running: the number of flagged changes up to each.
        moved: which changes changed their key.
        old: the old keys of these.
        why: as in `Batch`.
        texts: keys and images; None if not rendered yet.
    """

    rows: pa.Table
    oper: npt.NDArray[np.str_]
    situation: Places
    running: Places
    moved: npt.NDArray[np.bool_]
    old: pa.Table
    why: pa.StringArray | None = None
    texts: ChangeTexts | None = None

    def slice(self, begin: int, end: int) -> LoggedChanges:
        """Returns consecutive changes."""
        some = slice(begin, end)
        before, upto = (int(np.count_nonzero(self.moved[:n])) for n in (begin, end))
        return LoggedChanges(
            self.rows[some],
            self.oper[some],
            self.situation[some],
            self.running[some],
            self.moved[some],
            self.old[before:upto],
            None if self.why is None else self.why[some],
        )


def logged(
    batch: Batch,
    header: KeyLogHeader,
    schema: pa.Schema,
    rows: Places,
    now: datetime,
    *,
    images: bool = True,
    texts: ChangeTexts | None = None,
) -> pa.Table:
    """Returns changes of a batch as rows of a key log written at `now`.

    `flagged_count` counts all changes before them. `texts` are the rendered texts of the whole batch
    (`ChangeTexts.of_changes`).
    """
    lines = _lines(batch, header, rows)
    if texts is not None:
        lines = replace(lines, texts=texts.take(_numbers(batch, rows)))
    return written(lines, batch.rules, header, schema, now, images=images)


def logged_in_parts(
    pool: Executor,
    batch: Batch,
    header: KeyLogHeader,
    schema: pa.Schema,
    rows: Places,
    now: datetime,
    texts: Sequence[Future[ChangeTexts]],
) -> list[Future[pa.Table]]:
    """Returns changes of a batch as rows of a key log, one future per part of the texts of the whole batch.

    Tasks in the pool only wait for tasks that were submitted before them.
    """
    lines, numbers = pool.submit(_lines, batch, header, rows), pool.submit(_numbers, batch, rows)

    def part(place: int) -> pa.Table:
        begin, mine = sum(len(one.result().keys) for one in texts[:place]), texts[place].result()
        first, last = np.searchsorted(numbers.result(), [begin, begin + len(mine.keys)]).tolist()
        if first == last:
            return schema.empty_table()
        wanted = mine.take(numbers.result()[first:last] - begin)
        some = replace(lines.result().slice(first, last), texts=wanted)
        return written(some, batch.rules, header, schema, now, images=mine.images is not None)

    return [pool.submit(part, place) for place in range(len(texts))]


def _numbers(batch: Batch, rows: Places) -> Places:
    """Returns the index among all changes of rows that are changes."""
    places: Places = (np.cumsum(batch.events.oper != BEFORE) - 1)[rows]
    return places


def _lines(batch: Batch, header: KeyLogHeader, rows: Places) -> LoggedChanges:
    """Returns changes with their outcomes, without texts."""
    whole = len(rows) == batch.rows.num_rows
    oper = batch.events.oper[rows]
    old = np.where(oper == UPDATE, _old(batch, header)[rows], -1)
    changes = batch.changes
    running = np.zeros(len(batch.events), np.int64)
    running[changes] = np.cumsum(batch.flagged(changes))
    return LoggedChanges(
        batch.rows if whole else batch.rows.take(pa.array(rows)),
        oper,
        batch.decided.situation[rows],
        running[rows],
        old >= 0,
        batch.rows.take(pa.array(old[old >= 0])),
        None if batch.why is None else batch.why.take(pa.array(rows)),
    )


def _old(batch: Batch, header: KeyLogHeader) -> Places:
    """Returns the row with the old key of each update; -1 if the key is unchanged.

    The keys of an archive's changes were not compared before.
    """
    events = batch.events
    if batch.rules.mode != "archive":
        return events.former
    old = np.full(len(events), -1)
    updates = np.flatnonzero((events.oper == UPDATE) & (events.before >= 0))
    before = events.before[updates]
    both = pa.array(np.concatenate([updates, before]))
    columns = [one(batch.rows[header.fields[i].name]).take(both) for i in _key(header)]
    if len(updates) and columns:
        new, former = np.split(Keys(columns).place, 2)
        old[updates[new != former]] = before[new != former]
    return old


def written(
    lines: LoggedChanges,
    rules: Rules,
    header: KeyLogHeader,
    schema: pa.Schema,
    now: datetime,
    *,
    images: bool = True,
) -> pa.Table:
    """Returns changes as rows of a key log."""
    taken, oper = lines.rows, lines.oper
    texts = lines.texts or ChangeTexts.of(taken, oper, header, images=images)
    seq = taken[SEQ].combine_chunks()
    digits = sequence.matrix(seq)
    number = pa.array(sequence.numbers_of(digits))
    at = pa.scalar(now, pa.timestamp("us", "UTC"))
    result: dict[str, pa.Array | pa.Scalar] = {
        "run_id": pa.scalar(header.run_id),
        "group_id": pa.scalar(header.group_id),
        "subscription_id": pa.scalar(header.subscription),
        "resync_state": pa.array(sequence.times_of(digits)),
        "change_row_counter": number,
        **_time(taken),
        "change_row_type": words(oper),
        **_outcome(lines, rules),
        "flagged_count": pa.array(lines.running + header.flagged),
        **_keys(lines, texts.keys, header, rules),
        "keylog_sort": pc.add(number, header.sort - header.after),
        "keylog_ts": at,
        "insert_ts": at,
    }
    if DETAIL in taken.schema.names:
        result["change_row_log_detail"] = taken[DETAIL]
    if texts.images is not None:
        result["after_image"] = texts.images
    result |= _native(taken, result)
    return pa.table([_column(result.get(f.name), f.type, len(oper)) for f in schema], schema=schema)


def _native(rows: pa.Table, result: Mapping[str, pa.Array | pa.Scalar]) -> dict[str, pa.Array]:
    """Returns the values of the key log that the changes came from, for columns without a new value."""
    prefix = NATIVE_OF.format("")
    found = {n.removeprefix(prefix): one(rows[n]) for n in rows.schema.names if n.startswith(prefix)}
    if (finer := found.get("change_row_type")) is not None:
        found["change_row_type"] = pc.coalesce(finer, result["change_row_type"])
    return found


def _column(value: pa.Array | pa.Scalar | None, kind: pa.DataType, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, kind)
    return pa.repeat(value.cast(kind), rows) if isinstance(value, pa.Scalar) else value.cast(kind)


def _time(rows: pa.Table) -> dict[str, pa.Array]:
    """Returns timestamps as whole seconds, and the rest in nanoseconds."""
    if AT not in rows.schema.names:
        return {}
    at = rows[AT].combine_chunks()
    micros = at.view(pa.int64())
    valid = pa.array(at.is_valid())
    rest = np.mod(micros.fill_null(0).to_numpy(), 1_000_000)
    nanos = pc.if_else(valid, pa.array(rest * 1000), pa.scalar(None, pa.int64()))
    return {
        "change_row_timestamp": pc.subtract(micros, pa.array(rest)).view(at.type),
        "change_row_nanosecond": nanos,
    }


def _outcome(lines: LoggedChanges, rules: Rules) -> dict[str, pa.Array]:
    outcomes = [rules.outcome(n) for n in NAMES]
    at = pa.array(lines.situation)
    errors = pa.array([reason(o.conflict) if o.flagged else None for o in outcomes], pa.string()).take(at)
    if lines.why is not None:
        why = pc.binary_join_element_wise("data_error", lines.why, ": ")
        errors = pc.if_else(pc.and_(errors.is_valid(), why.is_valid()), why, errors)
    return {
        "action_taken": pa.array([o.action for o in outcomes]).take(at),
        "result_row_count": pa.array([o.rows for o in outcomes], pa.int64()).take(at),
        "result_error": errors,
    }


def _keys(
    lines: LoggedChanges, own: pa.StringArray, header: KeyLogHeader, rules: Rules
) -> dict[str, pa.Array]:
    """Returns `before_key` and `after_key`: the key (`own`), or the old and the new key of a key change.

    If the key is the whole row, an archive's update without a before image has no `before_key`.
    """
    none = pa.scalar(None, pa.string())
    known = [DELETE] if rules.mode == "archive" and _is_row(header) else [UPDATE, DELETE]
    result = {"before_key": pc.if_else(pa.array(np.isin(lines.oper, known)), own, none)}
    if lines.moved.any():
        texts = items([_item(lines.old, header, i, None) for i in _key(header)])
        moved = pa.array(lines.moved)
        result["before_key"] = pc.replace_with_mask(result["before_key"], moved, texts)
        result["after_key"] = pc.if_else(moved, own, none)
    return result


def _key(header: KeyLogHeader) -> list[int]:
    return [i for i, f in enumerate(header.fields) if f.name in header.key]


def _is_row(header: KeyLogHeader) -> bool:
    """Returns whether the key is the whole row, as in keyless tables."""
    return len(_key(header)) == len(header.fields)


def _item(rows: pa.Table, header: KeyLogHeader, place: int, there: npt.NDArray[np.bool_] | None) -> Item:
    field = header.fields[place]
    return Item(field, rows[field.name].combine_chunks(), there)


def _images(rows: pa.Table, header: KeyLogHeader, oper: npt.NDArray[np.str_]) -> pa.StringArray:
    """Returns images of inserts, updates, and deletes with more columns than the key."""
    there = carried(rows, header.ordinals)
    rest = [i for i in range(len(header.fields)) if i not in _key(header)]
    more = np.full(len(oper), bool(rest)) if there is None else there[:, rest].any(axis=1)
    imaged = np.isin(oper, [INSERT, UPDATE]) | ((oper == DELETE) & more)
    if not imaged.all():
        rows, there = rows.filter(pa.array(imaged)), None if there is None else there[imaged]
    if there is not None and there.all():
        there = None
    result = [
        _item(rows, header, i, None if there is None else there[:, i]) for i in range(len(header.fields))
    ]
    texts = image(header.dest, result)
    if imaged.all():
        return texts
    return pc.replace_with_mask(pa.nulls(len(oper), pa.string()), pa.array(imaged), texts)
