"""The key log's text codec: literal texts, and any text against a plain-Python reading of the same rules."""

from __future__ import annotations

import re
from datetime import date, datetime, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.wire.keylog_render import value_text
from tailrace.wire.keylog_text import KeyLogField, names, parse
from tailrace.wire.keylog_values import escape_name, unescape, unescape_name

from ..examples import examples

pytestmark = pytest.mark.unit

NILS = ('{}=&xsi:nil="true"', '{}="&xsi:nil="true""', '{}="&xsi:nil=&quot;true&quot;"')
ABSENT = "(absent)"


def rows(texts, *fields, row=False):
    """Each text as (values, what is wrong); absent items are ABSENT."""
    found = parse(
        pa.array(texts, pa.string()),
        [KeyLogField(*f) if isinstance(f, tuple) else f for f in fields],
        row=row,
    )
    columns = [
        [v if p is None or p[i] else ABSENT for i, v in enumerate(values.to_pylist())]
        for values, p in zip(found.values, found.present, strict=True)
    ]
    why = found.why.to_pylist()
    assert len(why) == len(texts)
    return [(tuple(c[i] for c in columns), why[i]) for i in range(len(texts))]


def one(text, *fields, row=False):
    return rows([text], *fields, row=row)[0]


# -- literal texts


def test_values_of_each_type():
    text = (
        'I="-7" D="12.50" F="1.5E-3" B="1" S="a b" X="&#x00FF" T="2026-01-02T03:04:05.120000000" '
        'Y="2026-01-02" C="12:30:00.5"'
    )
    fields = [("I", "int"), ("D", "decimal(9,2)"), ("F", "double"), ("B", "boolean"), ("S",), ("X", "binary"),
              ("T", "timestamp"), ("Y", "date"), ("C",)]  # fmt: skip
    at = datetime(2026, 1, 2, 3, 4, 5, 120_000, timezone.utc)
    want = (-7, Decimal("12.50"), 0.0015, True, "a b", b"\x00\xff", at, date(2026, 1, 2), "12:30:00.5")
    assert one(text, *fields) == (want, None)


def test_what_is_finer_than_microseconds_is_cut_and_told():
    texts = [
        f'T="2026-01-02T03:04:05.{digits}"' for digits in ("000001", "000001000", "000001001", "0000019")
    ]
    found = parse(pa.array(texts), [KeyLogField("T", "timestamp_ntz")])
    assert found.values[0].to_pylist() == [datetime(2026, 1, 2, 3, 4, 5, 1)] * 4
    assert found.why.null_count == 4
    assert found.finer.tolist() == [False, False, True, True]


def test_what_is_no_time_stays_bad_however_long():
    assert one('T="12026-01-02T03:04:05.000001"', ("T", "timestamp")) == (
        (None,),
        "T is not valid as timestamp",
    )
    assert one('T="2026-01-02T03:04:05.000001x"', ("T", "timestamp")) == (
        (None,),
        "T is not valid as timestamp",
    )


@pytest.mark.parametrize("nil", NILS)
@pytest.mark.parametrize("kind", ["string", "int", "binary"])
def test_null_in_every_accepted_spelling(nil, kind):
    text = f'A="1" {nil.format("B")} C="3"'
    assert one(text, ("A",), ("B", kind), ("C",)) == (("1", None, "3"), None)
    assert one(nil.format("B"), ("B", kind)) == ((None,), None)
    assert one(f"<row>{nil.format('B')}</row>", ("B", kind), row=True) == ((None,), None)


def test_null_absent_and_empty_differ():
    assert rows(['A=""', 'A=&xsi:nil="true"', "", None], ("A",)) == [
        (("",), None),
        ((None,), None),
        ((ABSENT,), None),
        ((ABSENT,), None),
    ]


def test_the_columns_type_decides_a_numeric_escape():
    text = 'A="&#x0A1B"'
    assert one(text, ("A", "string"))[0] == ("\u0a1b",)
    assert one(text, KeyLogField("A", "string", octet=True))[0] == ("\n1B",)
    assert one(text, ("A", "binary"))[0] == (b"\x0a\x1b",)
    assert one('A="&#x0d&#xE9"', KeyLogField("A", octet=True))[0] == ("\ré",)


def test_escapes_are_read_once():
    assert one('A="&amp;lt;&amp;#x0041&#x0026amp;"', ("A",)) == (("&lt;&#x0041&amp;",), None)


@pytest.mark.parametrize(
    "name", ["a b", " ", 'q"u', "a=b", 'a="b', "&", "<x>", "é.x", "\n", "xsi:nil", "&xsi:nil=", "`", "a'"]
)
def test_odd_names(name):
    escaped = escape_name(name)
    assert unescape_name(escaped) == name
    assert one(f'ID="1" {escaped}="v" N="2"', ("ID",), (name,), ("N",)) == (("1", "v", "2"), None)
    assert one(f'{escaped}=&xsi:nil="true"', (name,)) == ((None,), None)


def test_names_with_plain_spaces_and_equal_signs_are_read():
    assert one('a b="1" c=d="2"', ("a b",), ("c=d",)) == (("1", "2"), None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('A="1', "quotes do not pair"),
        ("A=1", "'A=1' is not an item"),
        ('A="1" ', "the text ends early"),
        ('A="1" B', "'B' is not an item"),
        ('A="1"  B="2"', "'B=' is not a name between a space and ="),
        ('A="1"B="2"', "'B=' is not a name between a space and ="),
        ('="1"', "'=' is not a name between a space and ="),
        ('Z="1"', "there is no column Z"),
        ('A="1" A="2"', "A occurs twice"),
        ('A="&"', "A is not valid as Unicode text"),
        ('A="&#x00"', "A is not valid as Unicode text"),
        ('A="&#xD800"', "A is not valid as Unicode text"),
        ('A="&xsi:nil="', "A is not valid as Unicode text"),
        ('A=&xsi:nil="false"', "xsi:nil is not true"),
        ('A="1"true""', '"true" where no NULL begins'),
        ('B="x"', "B is not valid as int"),
        ('B="99999999999"', "B is not valid as int"),
        ('C="0A"', "C is not valid as hex octets"),
        ('C="&#x0"', "C is not valid as hex octets"),
        ('B="x" C="&#xGG"', "B is not valid as int; C is not valid as hex octets"),
    ],
)  # fmt: skip
def test_bad_texts_name_their_fault_and_spoil_no_other_row(text, why):
    good = 'A="&lt;" B="2" C="&#x01"'
    fields = [("A",), ("B", "int"), ("C", "binary")]
    found = rows([good, text, "", good], *fields)
    assert why in found[1][1]
    assert found[0] == found[3] == (("<", 2, b"\x01"), None)
    assert found[2][1] is None


@pytest.mark.parametrize(
    "text", ['A="1"', '<row>A="1"', 'A="1"</row>', '<row> A="1"</row>', "<row>", '<row>A="1"</row>x']
)
def test_an_image_stands_in_row(text):
    assert one(text, ("A",), row=True)[1] is not None


def test_an_image_without_columns():
    assert rows(["<row></row>", None, '<row>A="1"</row>'], ("A",), row=True) == [
        ((ABSENT,), None),
        ((ABSENT,), None),
        (("1",), None),
    ]


def test_slices_and_no_rows():
    text = pa.array(['A="0"', None, 'A="1"', 'A="2"', 'A="3"']).slice(2, 2)
    assert parse(text, [KeyLogField("A", "int")]).values[0].to_pylist() == [1, 2]
    assert parse(pa.array([], pa.string()), [KeyLogField("A")]).why.to_pylist() == []
    assert names(pa.array([], pa.string())) == []


def test_names_with_their_places():
    text = pa.array(['<row>A="1" B=&xsi:nil="true"</row>', "", '<row>B="&xsi:nil="true"" C&#x0020="1"</row>'])
    assert names(text, row=True) == [(0, 0, "A"), (0, 1, "B"), (2, 0, "B"), (2, 1, "C ")]


# -- any text, against the model


CONTROL = {chr(n): n for n in range(32)}
NAMED = {"&": "&amp;", "'": "&apos;", '"': "&quot;", "<": "&lt;", ">": "&gt;"}


def written(value, kind, nil):
    """An item's value as the vendor writes it; `{}` stands for the name."""
    if value is None:
        return nil
    if kind == "binary":
        return '{}="&#x' + value.hex().upper() + '"'
    digits = 2 if kind == "octet" else 4
    text = "".join(NAMED.get(c) or (f"&#x{CONTROL[c]:0{digits}X}" if c in CONTROL else c) for c in str(value))
    return '{}="' + text.replace("{", "{{").replace("}", "}}") + '"'


TEXTS = st.text(
    st.one_of(st.sampled_from("&'\"<>=# xA0;\n\x00\x1f"), st.characters(exclude_categories=["Cs"])),
    max_size=8,
)
KINDS = {
    "string": TEXTS,
    "octet": TEXTS,
    "binary": st.binary(max_size=5),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
}


@st.composite
def logs(draw):
    """Columns with their kinds, and rows of some of the columns."""
    made = draw(st.lists(TEXTS.filter(bool), min_size=1, max_size=4, unique=True))
    kinds = {name: draw(st.sampled_from(list(KINDS))) for name in made}
    row = st.fixed_dictionaries({}, optional={n: st.none() | KINDS[k] for n, k in kinds.items()})
    return kinds, draw(st.lists(st.none() | row, max_size=6))


@examples(30)
@given(logs(), st.sampled_from(NILS), st.booleans())
def test_what_is_written_is_read(log, nil, row):
    kinds, images = log
    texts = []
    for image in images:
        items = [written(v, kinds[n], nil).format(escape_name(n)) for n, v in (image or {}).items()]
        texts.append(None if image is None else f"<row>{' '.join(items)}</row>" if row else " ".join(items))
    fields = [KeyLogField(n, "string" if k == "octet" else k, k == "octet") for n, k in kinds.items()]
    found = rows(texts, *fields, row=row)
    assert found == [(tuple((image or {}).get(n, ABSENT) for n in kinds), None) for image in images]
    assert {n for _, _, n in names(pa.array(texts, pa.string()), row=row)} == {
        n for i in images for n in i or {}
    }


NAME = r'[^\0- "<>](?:[^"<>]*[^\0- "<>])?'
ITEM = re.compile(rf'({NAME})=(?:&xsi:nil="(?P<nil>true)"|"(?P<long>&xsi:nil="true")"|"(?P<value>[^"]*)")')


def model(text, columns):
    """One text read item by item: values, or None when anything is wrong. Escapes of four digits."""
    at, values = 0, {}
    while at < len(text):
        if at:
            if text[at] != " ":
                return None
            at += 1
        item = ITEM.match(text, at)
        name = item and unescape_name(item[1])
        if not name or name not in columns or name in values:
            return None
        value = item["value"]
        if item["nil"] or item["long"] or value == "&xsi:nil=&quot;true&quot;":
            values[name] = None
        else:
            value = unescape_name(value)
            if value is None or re.search("[\ud800-\udfff]", value):
                return None
            values[name] = value
        at = item.end()
        if at == len(text) - 1 and text[at] == " ":
            return None
    return values


PIECES = st.sampled_from(
    [
        'A="',
        'B="',
        '"',
        " ",
        'A="1"',
        'B=""',
        '" B="',
        "&xsi:nil=",
        '"true"',
        '="',
        "=",
        "&lt;",
        "&#x",
        "0041",
        "&",
        "é",
        "x",
    ]
)


@examples(50)
@given(st.lists(st.lists(PIECES, max_size=9).map("".join), max_size=5))
def test_any_text_is_read_as_the_model_reads_it(texts):
    found = rows(texts, ("A",), ("B",))
    for text, (values, why) in zip(texts, found, strict=True):
        want = model(text, ["A", "B"])
        assert (why is None) == (want is not None), (text, why)
        if want is not None:
            assert values == tuple(want.get(n, ABSENT) for n in "AB")


@examples(40)
@given(
    st.lists(
        st.lists(
            st.sampled_from(
                ["&", "&amp;", "&quot;", "&gt;", "&lt", ";", "#x", "&#x", "00", "D8", "4", "1é", "fF"]
            ),
            max_size=8,
        ).map("".join),
        max_size=4,
    ),
    st.sampled_from([2, 4]),
)
def test_unescape_as_the_model(texts, digits):
    escape = re.compile(rf"&(?:amp;|apos;|quot;|lt;|gt;|#x[0-9A-Fa-f]{{{digits}}})")

    def plain(text):
        if "&" in escape.sub("", text):
            return None
        found = escape.sub(
            lambda e: {v: k for k, v in NAMED.items()}.get(e[0]) or chr(int(e[0][3:], 16)), text
        )
        return None if re.search("[\ud800-\udfff]", found) else found

    assert unescape(pa.array(texts, pa.string()), digits).to_pylist() == [plain(t) for t in texts]


@examples(30)
@given(
    st.sets(st.sampled_from("&'\"<>\x00\n\x1f"), max_size=8).flatmap(
        lambda kinds: st.lists(st.none() | st.text(["a", "é", ";", "#", *kinds], max_size=8), max_size=4)
    ),
    st.booleans(),
    st.integers(0, 2),
)
def test_any_text_is_escaped_character_by_character(texts, octet, offset):
    def escaped(text):
        digits = 2 if octet else 4
        return "".join(NAMED.get(c) or (f"&#x{ord(c):0{digits}X}" if c < " " else c) for c in text)

    found = value_text(pa.array(texts, pa.string()).slice(offset), KeyLogField("c", octet=octet)).to_pylist()
    assert found == [None if t is None else escaped(t) for t in texts[offset:]]


def test_a_million_items_take_no_python_per_row():
    """Distinct heads are looked at, not rows: a batch of many rows costs what its bytes cost."""
    n = np.arange(200_000).astype(str)
    text = pa.array(np.char.add(np.char.add('ID="', n), '" N="some text" A="1" B=&xsi:nil="true" C="2"'))
    found = parse(
        text,
        [
            KeyLogField("ID", "int"),
            KeyLogField("N"),
            KeyLogField("A", "int"),
            KeyLogField("B"),
            KeyLogField("C", "int"),
        ],
    )
    assert found.values[0].to_pylist()[-1] == 199_999
    assert found.why.null_count == len(text)
