"""`.cd` policy dumps: literal rows, the round trip of anything, and what the loader refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import FormatError
from tailrace.wire.cd_dump import MISC, Dump, FieldPolicy, TablePolicy, read, write

pytestmark = pytest.mark.unit

NONE = " ".join("?" * MISC)
TEXT = f"""\
"Table" "Customer_all" "all ""of"" it" 0 0 "Customer" "PUB" "Data Area" "Index Area" yes 3 "CDC_Customer" "PUB" yes {NONE} 2
"Field" "Customer_all" "CustNum" 1 {NONE}
"Field" "Customer_all" "Name" 0 {NONE}
"""
TRAILER = """\
.
PSC
filename=_Cdc-Table-Policy
records=0000000000003
ldbname=sports
timestamp=2026/01/02-03:04:05
numformat=44,46
dateformat=mdy-1950
cpstream=ISO8859-1
.
"""
POLICY = TablePolicy(
    "Customer_all", 'all "of" it', 0, 0, "Customer", "PUB", "Data Area", "Index Area", True, 3,
    "CDC_Customer", "PUB", True, fields=(FieldPolicy("CustNum", 1), FieldPolicy("Name", 0)),
)  # fmt: skip


def file(rows: str = TEXT) -> bytes:
    return (rows + TRAILER + f"{len(rows.encode('latin-1')) + 2:010d}\n").encode("latin-1")


def test_a_dump_is_read_and_written_as_it_was() -> None:
    found = read(file())
    assert found.policies == (POLICY,)
    assert (found.database, found.timestamp, found.codepage) == ("sports", "2026/01/02-03:04:05", "ISO8859-1")
    assert write(found) == file()


def test_line_ends_of_windows_are_read() -> None:
    windows = (TEXT + TRAILER).replace("\n", "\r\n").encode()
    assert read(windows).policies == (POLICY,)


def test_a_code_page_is_the_trailers() -> None:
    named = replace(POLICY, name="Straße", fields=())
    data = write(Dump((named,), codepage="ISO8859-1"))
    assert b"Stra\xdfe" in data
    assert read(data).policies == (named,)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8)
POLICIES = st.builds(
    TablePolicy, WORDS, st.none() | WORDS, st.integers(0, 1), st.integers(0, 2), WORDS, WORDS, st.none() | WORDS,
    st.none() | WORDS, st.booleans(), st.integers(0, 3), st.none() | WORDS, st.none() | WORDS,
    st.none() | st.booleans(), st.tuples(*[st.none() | WORDS] * MISC),
    st.lists(st.builds(FieldPolicy, WORDS, st.none() | st.integers(0, 15)), max_size=3).map(tuple),
)  # fmt: skip


@given(st.lists(POLICIES, max_size=3))
def test_any_policies_come_back(policies: list[TablePolicy]) -> None:
    assert read(write(Dump(tuple(policies)))).policies == tuple(policies)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (TEXT.replace('"Field" "Customer_all" "Name"', '"Column" "Customer_all" "Name"'), "row tag 'Column'"),
        (TEXT.replace('"Field" "Customer_all" "Name"', '"Field" "Other" "Name"'), "field of policy 'Other'"),
        (TEXT.replace('yes 3 "CDC', 'yes ? "CDC'), "level None"),
        (
            TEXT.replace('"Field" "Customer_all" "CustNum"', '"Field" "Customer_all" ?'),
            "a field without name",
        ),
        (TEXT + TEXT.splitlines()[2] + "\n", "4 rows, but the trailer has 3"),
        (TEXT.replace("? 2\n", "? 3\n"), "3 field policies expected, found 2"),
        (TEXT.replace('"Name"', '"Name'), "cannot be parsed"),
        (TEXT.replace('"Customer" "PUB" "Data', '"PUB" "Data'), "30 values in a Table row"),
    ],
)
def test_what_is_not_a_dump_is_refused(rows: str, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read(file(rows))


def test_a_file_cut_short_is_refused() -> None:
    with pytest.raises(FormatError, match="no trailer"):
        read(TEXT.encode())
    with pytest.raises(FormatError, match="not at the position in its last line"):
        read(file().replace(b"0000000421", b"").replace(f"{len(TEXT) + 2:010d}".encode(), b"0000000001"))
