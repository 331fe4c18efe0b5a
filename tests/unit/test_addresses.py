"""Addresses that cannot be one are refused where they are typed, and their password is in no message."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tailrace import sources
from tailrace.cli.main import app
from tailrace.config import addresses
from tailrace.config.task import load
from tailrace.errors import ConfigError, TailraceError
from tailrace.runtime.setup import draft
from tailrace.sources.postgresql import connect

pytestmark = pytest.mark.unit

BAD = [
    "postgresql://me:s3cret@localhost:notaport/db",
    "postgresql://me:s3cret@[::1/db",
    "postgresql://me:s3cret@host:99999/db",
    "postgresql://me:s3cret@host:0/db",
    "postgresql://me:s3cret@%zz/db",
    "postgresql://me:s3%2gcret@localhost:1/db",
    "postgresql:/me:s3cret@localhost/db",
    "postgresql://me:s3cret /@localhost:1/db",
    "postgresql://me:s3cret/1@localhost:1/db",
    "postgres://me:s3cret@localhost:1:2/db",
    "soliddb://me:s3cret@localhost:notaport/db",
    "me:s3cret@localhost/db",
    "s3cret",
]


@pytest.mark.parametrize("url", BAD)
def test_an_address_that_cannot_be_one_is_refused_by_every_command(url: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f'name: t\nsource:\n  url: "{url}"\n  tables: [public.a]\n')
    with pytest.raises(ConfigError, match=r"line 3: source.url: ") as refused:
        load(file)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        draft(url, output=tmp_path / "made.yaml")
    assert "s3cret" not in str(refused.value) and not (tmp_path / "made.yaml").exists()
    shown = CliRunner().invoke(app, ["check", str(file)])
    assert isinstance(shown.exception, ConfigError)


@pytest.mark.parametrize("url", BAD[:10])
def test_an_address_of_a_target_too(url: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    target = f'target:\n  database: "{url}"\n'
    file.write_text(f"name: t\nsource:\n  url: postgresql://db/s\n  tables: [public.a]\n{target}")
    with pytest.raises(ConfigError, match=r"line 6: target.database: ") as refused:
        load(file)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://", "postgresql:///shop", "postgresql://me@/shop?host=/tmp/pg", "postgresql://[::1]:5432/shop",
        "postgres://me:p%40ss@db.example:5432,other:5433/shop?target_session_attrs=any", "soliddb://me:x@db:2315",
        "postgresql://%2Ftmp%2Fpg/shop",
    ],
)  # fmt: skip
def test_addresses_that_the_server_would_take_are_taken(url: str) -> None:
    addresses.check(url)


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret@host?s3cret=1", "postgresql://me:s3cret@h/d?sslmode"]
)
def test_what_the_driver_cannot_read_has_no_password_in_its_error(url: str) -> None:
    for ask in (connect.address, connect.connect):
        with pytest.raises(ConfigError) as refused:
            ask(url)
        assert "s3cret" not in str(refused.value) and refused.value.__cause__ is None


@given(st.text(max_size=60) | st.text("pgostresql:/@[]%?#,&= 19azAZ\x00\n", max_size=60))
@example("%80")
def test_any_text_is_an_address_or_an_error_of_ours(text: str) -> None:
    for url in (text, f"postgresql://{text}", f"postgresql://me:{text}@db/shop"):
        try:
            addresses.check(url)
            sources.opener(url)
            connect.address(url)
        except TailraceError:
            pass
