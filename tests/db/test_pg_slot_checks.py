"""What is found of a task's slot: where it stands, whose it is, who reads it."""

from __future__ import annotations

import time

import psycopg
import pytest

from tailrace.errors import PositionError
from tailrace.sources.postgresql.connect import lsn, position_at

from .reading import Make
from .test_pg_checks import A, a, one, run

__all__ = ["a"]
pytestmark = pytest.mark.db


def test_the_slot_is_ahead_of_the_log(a: psycopg.Connection, make: Make) -> None:
    source = make()
    source.prepare(A)
    source.start(None, [])
    source.close()
    confirmed = a.execute(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'tailrace_test'"
    )
    at = lsn(confirmed.fetchone()[0])
    assert source.check(A, position_at(at)) == []
    finding = one(source.check(A, position_at(at - 1)), "changes in between are lost")
    assert finding.level == "error" and "--new-stream" in finding.cure
    source.renew()
    assert source.check(A, None) == []


def test_the_slot_is_gone_or_not_ours_or_in_use(a: psycopg.Connection, make: Make, database: str) -> None:
    source = make()
    assert "slot is gone" in source.check(A, position_at(1))[0].what
    with pytest.raises(PositionError, match="slot is gone"):
        source.prepare(A, begin=False)
    a.execute("select pg_create_logical_replication_slot('tailrace_test', 'test_decoding')")
    found = one(source.check(A, source.end_position()), "did not create: plugin test_decoding")
    assert found.cure.startswith("give this task another slot, `source: {slot: tailrace_test_2}`")
    run(a, found.cure.partition("no longer needed: ")[2])
    a.execute("select pg_create_logical_replication_slot('tailrace_test', 'pgoutput')")
    run(
        a,
        one(source.check(A, None), "did not create: plugin pgoutput").cure.partition("no longer needed: ")[2],
    )
    assert source.check(A, None) == []
    source.prepare(A)
    at = source.end_position()
    source.start(None, [])
    other = make()
    taken = one(other.check(A, None), "did not create")
    assert "pg_drop" not in taken.cure and "a process reads it" in taken.what
    finding = one(other.check(A, at), "is already reading the slot")
    a.execute(finding.cure.split(", or ")[1])
    deadline = time.monotonic() + 10
    while other.check(A, at) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert other.check(A, at) == []


@pytest.mark.since(18)
def test_a_timeout_of_idle_slots_is_warned_of_and_named_when_it_has_ended_one(
    a: psycopg.Connection, make: Make
) -> None:
    source = make()
    source.prepare(A)
    at = source.end_position()
    set_timeout = "alter system set idle_replication_slot_timeout = {}"
    try:
        a.execute(set_timeout.format("'1s'"))
        a.execute("select pg_reload_conf()")
        time.sleep(2)
        warned = one(source.check(A, at), "idle_replication_slot_timeout is 1s")
        assert warned.level == "warning"
        a.execute("checkpoint")  # which invalidates
        lost = one(source.check(A, at), "invalidated the slot (idle_timeout)")
        assert lost.level == "error" and "then set idle_replication_slot_timeout to 0" in lost.cure
        for statement in warned.cure.split("; "):
            a.execute(statement)
        time.sleep(0.5)
        assert not [f for f in source.check(A, at) if "timeout is" in f.what]
        with pytest.raises(PositionError) as ended:
            source.start(at, [])
        assert "idle_replication_slot_timeout" in str(ended.value.hint)
    finally:
        a.execute("alter system reset idle_replication_slot_timeout")
        a.execute("select pg_reload_conf()")
