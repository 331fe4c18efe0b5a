"""Delimited text (CSV and variants) as Arrow columns of text; invalid records have a reason.

The reader is strict where a guess would damage values. A quoted value must be closed, bytes must be valid in
the encoding, and a record must have one value per column. An invalid record is reported as a whole, and
reading continues after its line. An empty value is NULL, and `""` is the empty string. Memory is bounded by
`CHUNK` for short records, and by `quotes.MOST` for long ones.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import FormatError
from .quotes import MOST, Form, Places, structure

CHUNK = 4 << 20
PASS = 4096
"""The minimum number of values that are decoded in one pass, over several columns if necessary."""
SHOWN = 10_000
"""The maximum number of characters of a bad record in an error."""
_CR = 13
_MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_MARK = 4
"""The length of the longest byte order mark."""
# Bytes that never occur in UTF-8. They replace delimiters of several bytes while a block is split.
_FREE = (0xFD, 0xFE, 0xFF)
_NO_TEXT = bytes.maketrans(bytes(_FREE), b"\xfc" * len(_FREE))
_PLAIN = bytes.maketrans(bytes(_FREE), b"?" * len(_FREE))

Reads = Callable[[int], bytes]
"""Function that returns at most the given number of bytes of a file, and none at its end."""


@dataclass(frozen=True)
class Dialect:
    """Delimiters, quotes and encoding of a text.

    Attributes:
        delimiter: text between values, of one or more characters.
        quote: the character around values with delimiters; None if values are never quoted.
        escape: the character before a quote in a quoted value; the same as `quote` if quotes are doubled.
        ends: text after each record; `\\r\\n` also accepts a line feed alone.
        encoding: Python's name of the encoding.
    """

    delimiter: str = ","
    quote: str | None = '"'
    escape: str = '"'
    ends: str = "\n"
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Block:
    """Consecutive records of a file.

    Attributes:
        columns: the values by column; NULL in bad records.
        rows: the number of each record in the file, from 1 and without the header line.
        why: the error of each record; NULL if it is valid.
        raw: the text of bad records, cut to `SHOWN` characters.
    """

    columns: list[pa.Array]
    rows: npt.NDArray[np.int64]
    why: pa.Array
    raw: pa.Array


def read(
    source: Reads, dialect: Dialect, width: int, *, header: bool = True, named: Sequence[str] = ()
) -> Iterator[Block]:
    """Yields the records of a file with `width` columns, without the header line if there is one.

    Raises:
        FormatError: the text has another encoding (UTF-16 read as UTF-8), a record is too long, the dialect
            is invalid, or the header line does not have the columns `named` (case is ignored).

    >>> import io
    >>> made = list(read(io.BytesIO(b'id,name\\n1,"a,b"\\n2,\\n3,"\\n').read, Dialect(), 2))
    >>> [c.to_pylist() for c in made[0].columns], made[0].why.to_pylist()[2]
    ([['1', '2', None], ['a,b', None, None]], 'a quote that is never closed')
    """
    at, first = 1, header
    for found in _records(source, dialect, CHUNK):
        if first and named and (there := _named(found)) != [n.lower() for n in named]:
            raise FormatError(
                f"its first line has the columns {', '.join(there)}, not {', '.join(named)}",
                hint="is it of another table, or without header line? (Qlik's files: "
                "`--option csv_header=false`)",
            )
        records = found.part(slice(1, None)) if first else found
        first = False
        if len(records.starts):
            yield records.block(width, at)
            at += len(records.starts)


def names(source: Reads, dialect: Dialect) -> list[str | None]:
    """Returns the values of the first record; empty for an empty file.

    Raises:
        FormatError: the first line is not a valid record.
    """
    for records in _records(source, dialect, 1 << 16):
        return _first(records)
    return []


def _first(records: _Records) -> list[str | None]:
    one = records.part(slice(0, 1))
    made = one.block(int(one.widths()[0]), 1)
    if (why := made.why[0].as_py()) is not None:
        raise FormatError(f"the first line cannot be read: {why}")
    return [c[0].as_py() for c in made.columns]


def _named(records: _Records) -> list[str]:
    return [f"_c{i}" if n is None else n.lower() for i, n in enumerate(_first(records))]


@dataclass(frozen=True)
class _Codec:
    """A dialect as UTF-8 bytes, the bytes that replace longer delimiters, and whether the text is unchanged
    UTF-8."""

    form: Form
    free: tuple[tuple[bytes, bytes], ...]
    as_came: bool

    @classmethod
    def of(cls, dialect: Dialect) -> _Codec:
        left, free = list(_FREE), []

        def single(text: str, what: str) -> int:
            octets = text.encode()
            if not octets:
                raise FormatError(f"the {what} is empty")
            if len(octets) == 1:
                return octets[0]
            free.append((bytes([left[0]]), octets))
            return left.pop(0)

        drop = dialect.ends == "\r\n"
        end = single("\n" if drop else dialect.ends, "record delimiter")
        quote = single(dialect.quote, "quote") if dialect.quote else None
        delimiter = single(dialect.delimiter, "delimiter")
        escape = quote if dialect.escape in ("", dialect.quote) else dialect.escape.encode()[0]
        if len({delimiter, quote, end}) < 3:
            raise FormatError("delimiter, quote and record delimiter must differ")
        as_came = not free and dialect.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
        return cls(Form(delimiter, quote, escape, end, drop), tuple(free), as_came)

    def singled(self, data: bytes) -> bytes:
        """Replaces each delimiter by one byte. Bytes that would look like it are replaced by other invalid
        bytes."""
        if self.free:
            data = data.translate(_NO_TEXT)
        for one, octets in self.free:
            data = data.replace(octets, one)
        return data


def _records(source: Reads, dialect: Dialect, chunk: int) -> Iterator[_Records]:
    """Yields whole records of a file, some MiB at a time; never an empty piece."""
    codec = _Codec.of(dialect)
    text = _utf8(source, dialect.encoding, chunk)
    rest, wanted, ahead = b"", 0, next(text, None)
    while ahead is not None:
        rest, ahead = rest + ahead, next(text, None)
        if ahead is not None and len(rest) < wanted:
            continue
        data = codec.singled(rest)
        found = _Records.of(data, codec, last=ahead is None)
        if len(found.starts):
            yield found
        rest = data[found.upto :]
        for one, octets in codec.free:
            rest = rest.replace(one, octets)
        if len(rest) > 2 * MOST:
            raise FormatError(
                f"no record ends within {2 * MOST >> 20} MiB", hint="the file may not be delimited text"
            )
        # A record is longer than the data read so far: double the size, to avoid repeated scans.
        wanted = 2 * len(rest)


def _utf8(source: Reads, encoding: str, chunk: int) -> Iterator[bytes]:
    """Yields the text in UTF-8 without a byte order mark; bytes invalid in the encoding become
    invalid UTF-8."""
    piece = source(chunk)
    while 0 < len(piece) < _MARK and (more := source(chunk)):  # a mark may be split over pieces
        piece += more
    try:
        "".encode(encoding)
        codec = codecs.lookup(encoding)
    except LookupError:
        raise FormatError(f"there is no encoding {encoding!r}", hint="e.g. latin-1, cp1252, utf-16") from None
    mark = next((name for octets, name in _MARKS.items() if piece.startswith(octets)), None)
    if mark and not codec.name.startswith(mark):
        raise FormatError(f"the text is {mark.upper()}, not {encoding}", hint=f"read it with encoding={mark}")
    if codec.name == "utf-8":
        piece = piece.removeprefix(codecs.BOM_UTF8) or source(chunk)
        while piece:
            yield piece
            piece = source(chunk)
        return
    decoder, first = codec.incrementaldecoder("surrogateescape"), True
    while piece or first or decoder is not None:
        try:
            text = decoder.decode(piece, not piece)
        except UnicodeError as error:
            hint = "set the option encoding"
            raise FormatError(f"the text is not {encoding}: {error}", hint=hint) from None
        yield _no_surrogates(text.removeprefix("\ufeff") if first else text)
        if not piece:
            return
        piece, first = source(chunk), False


def _no_surrogates(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\udcfc", text).encode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class _Records:
    """Records of a block by byte offset.

    Attributes:
        upto: the start of the incomplete rest.
        delimiters: offsets of delimiters outside quotes.
        bad: the error of invalid records, by index.
    """

    data: bytes
    octets: npt.NDArray[np.uint8]
    codec: _Codec
    upto: int
    starts: Places
    ends: Places
    delimiters: Places
    bad: dict[int, str]

    @classmethod
    def of(cls, data: bytes, codec: _Codec, *, last: bool) -> _Records:
        """Finds the records of a block; empty lines are skipped."""
        octets = np.frombuffer(data, np.uint8)
        found = structure(data, codec.form, last=last)
        ends = found.ends
        if last and len(data) and (not len(ends) or ends[-1] != len(data) - 1):
            ends = np.append(ends, len(data))
        upto = min(int(ends[-1]) + 1, len(data)) if len(ends) else 0
        starts = np.concatenate([np.zeros(1, np.int64), ends + 1])[:-1]
        stops = ends.copy()
        if codec.form.drop:
            stops -= (ends > starts) & (octets[np.maximum(ends - 1, 0)] == _CR)
        kept = stops > starts
        place = np.cumsum(kept) - 1
        at = np.searchsorted(ends, [p for p, _ in found.bad])
        bad = {int(place[i]): why for i, (_, why) in zip(at, found.bad, strict=True) if i < len(ends)}
        return cls(data, octets, codec, upto, starts[kept], stops[kept], found.delimiters, bad)

    def part(self, which: slice) -> _Records:
        """Returns some of the records."""
        skipped = which.start or 0
        bad = {i - skipped: why for i, why in self.bad.items() if i >= skipped}
        return replace(self, starts=self.starts[which], ends=self.ends[which], bad=bad)

    def widths(self) -> Places:
        """Returns the number of values of each record."""
        until, since = (np.searchsorted(self.delimiters, p) for p in (self.ends, self.starts))
        return np.asarray(until - since + 1)

    def block(self, width: int, at: int) -> Block:
        """Returns the records as columns; `at` is the number of the first one."""
        n, widths = len(self.starts), self.widths()
        why: dict[int, str] = {i: f"the line has {widths[i]} values, not {width}"
                               for i in np.flatnonzero(widths != width).tolist()}  # fmt: skip
        why |= self._not_text() | {i: w for i, w in self.bad.items() if i < n}
        good = np.ones(n, bool)
        good[list(why)] = False
        columns = self._columns(np.flatnonzero(good), width)
        if why:
            place = pa.array(np.where(good, np.cumsum(good) - 1, 0), mask=~good)
            columns = [c.take(place) for c in columns]
        reasons, raw = np.full(n, None, object), np.full(n, None, object)
        for i, words in why.items():
            reasons[i], raw[i] = words, self._text(i)
        rows = np.arange(at, at + n, dtype=np.int64)
        return Block(columns, rows, pa.array(reasons, pa.string()), pa.array(raw, pa.string()))

    def _not_text(self) -> dict[int, str]:
        """Returns the records with bytes that are invalid in the encoding, with a reason."""
        data = self.data.translate(_PLAIN) if self.codec.free else self.data
        try:
            pa.array([data], pa.large_binary()).cast(pa.large_string())
            return {}
        except pa.ArrowInvalid:
            pass
        found = {}
        for i, (start, end) in enumerate(zip(self.starts.tolist(), self.ends.tolist(), strict=True)):
            try:
                data[start:end].decode()
            except UnicodeDecodeError as error:
                byte = f"byte 0x{data[start + error.start]:02X} is not UTF-8: set the option encoding"
                found[i] = byte if self.codec.as_came else "bytes that are not valid in the encoding"
        return found

    def _text(self, i: int) -> str:
        octets = self.data[self.starts[i] : min(self.ends[i], self.starts[i] + 4 * SHOWN)]
        for one, meant in self.codec.free:
            octets = octets.replace(one, meant)
        return octets.decode("utf-8", "backslashreplace")[:SHOWN]

    def _columns(self, good: Places, width: int) -> list[pa.Array]:
        """Returns the values of valid records, in few passes even for thousands of columns."""
        starts, ends = self.starts[good], self.ends[good]
        first, many = np.searchsorted(self.delimiters, starts), len(starts)
        since = (starts if j == 0 else self.delimiters[first + j - 1] + 1 for j in range(width))
        until = (ends if j == width - 1 else self.delimiters[first + j] for j in range(width))
        together, made = max(1, PASS // max(many, 1)), list[pa.Array]()
        while len(made) < width:
            some = [np.concatenate(list(islice(places, together))) for places in (since, until)]
            cells = self._cells(*some)
            made += [cells.slice(at, many) for at in range(0, len(cells), many)] if many else [cells] * width
        return made

    def _cells(self, since: Places, until: Places) -> pa.Array:
        """Returns the values between byte offsets."""
        form = self.codec.form
        null = since == until
        quoted = np.zeros(len(since), bool)
        if form.quote is not None:
            quoted = ~null & (self.octets[np.minimum(since, len(self.octets) - 1)] == form.quote)
        since, until = since + quoted, until - quoted
        sizes = until - since
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        places = np.repeat(since - offsets[:-1], sizes) + np.arange(offsets[-1])
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.octets[places])]
        value = pa.Array.from_buffers(pa.binary(), len(since), buffers)
        if quoted.any():
            value = pc.if_else(pa.array(quoted), self._unescaped(value), value)
        for one, meant in self.codec.free:
            value = pc.replace_substring(value, one, meant)
        if null.any():
            value = pc.if_else(pa.array(null), pa.scalar(None, pa.binary()), value)
        return value.cast(pa.string())

    def _unescaped(self, value: pa.Array) -> pa.Array:
        quote, escape = (bytes([b or 0]) for b in (self.codec.form.quote, self.codec.form.escape))
        value = pc.replace_substring(value, escape + quote, quote)
        return value if escape == quote else pc.replace_substring(value, escape + escape, escape)


__all__ = ["CHUNK", "SHOWN", "Block", "Dialect", "names", "read"]
