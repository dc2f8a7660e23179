"""Leases of servers: renewed as one, ended by time, release or a proven death."""

from __future__ import annotations

import random
import time
from datetime import timedelta

import pytest
from helpers.journal import TTL, create, journal_process, register

from outlast.errors import SessionBusy
from outlast.session import leases
from outlast.session.leases import HostClock
from outlast.session.rows import ServerState
from outlast.session.store import Store


def test_a_renewed_lease_keeps_its_sessions(store, clock):
    create(store)
    for _ in range(3):
        clock.time += TTL * 0.9
        assert store.renew_lease("a", TTL)
    register(store, "b")
    with pytest.raises(SessionBusy):
        store.claim("train", "b")


def test_a_lease_that_has_ended_is_not_renewed(store, clock):
    register(store, "a")
    clock.time += TTL
    assert not store.renew_lease("a", TTL)
    assert not store.renew_lease("never seen", TTL)
    register(store, "a")
    assert store.renew_lease("a", TTL)


def test_a_released_servers_sessions_can_be_claimed_at_once(store):
    token = create(store)
    store.release_server("a")
    register(store, "b")
    assert store.claim("train", "b").token == token + 1
    assert not store.renew_lease("a", TTL)


def test_a_restarted_server_registers_under_its_id_and_claims_its_own(store):
    token = create(store)
    row = store.register_server("a", "gpu-host", "tcp://a:2", TTL)
    assert (row.endpoint, row.state, row.lease_left) == ("tcp://a:2", ServerState.ACTIVE, TTL)
    assert store.claim("train", "a").token == token + 1


def test_servers_are_listed_with_what_is_left_of_their_leases(store, clock):
    register(store, "b", "a")
    store.release_server("b")
    clock.time += TTL / 2
    left = [(row.id, row.state, row.lease_left) for row in store.servers()]
    assert left == [("a", ServerState.ACTIVE, TTL / 2), ("b", ServerState.RELEASED, 0.0)]


def test_a_lease_measured_on_another_clock_has_ended(store, clock):
    create(store)
    clock.name = "boot after a restart of the host"
    register(store, "b")
    assert store.claim("train", "b").owner == "b"


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)])
def test_moving_the_time_of_day_neither_ends_nor_extends_a_lease(upgraded_url, monkeypatch, jump):
    store = Store.open(upgraded_url)
    create(store)
    register(store, "b", ttl=0.5)
    moved = time.time() + jump.total_seconds()
    monkeypatch.setattr(leases.time, "time", lambda: moved)
    with pytest.raises(SessionBusy) as caught:
        store.claim("train", "b")
    assert TTL - 5 < caught.value.retry_after <= TTL
    store.close()


def test_the_default_clock_runs_at_the_speed_of_seconds(upgraded_url):
    store = Store.open(upgraded_url)
    register(store, "a", ttl=5.0)
    begun = time.monotonic()
    first = store.servers()[0].lease_left
    while time.monotonic() < begun + 0.2:
        second = store.servers()[0].lease_left
    passed = time.monotonic() - begun
    assert 0.1 < first - second <= passed + 0.05
    store.close()


def test_a_host_without_a_boot_id_measures_on_the_time_of_day(monkeypatch, tmp_path):
    monkeypatch.setattr(leases, "BOOT_ID", tmp_path / "missing")
    clock = HostClock()
    assert clock.name == "unix"
    assert abs(clock.now(None) - time.time()) < 5


def kill_a_server_and_claim(url: str, store: Store, rounds: int, ttl: float) -> None:
    """Kill a server while it takes, renews and gives back, then take over by time alone."""
    chance = random.Random(42)
    for turn in range(rounds):
        with journal_process("serve", url, f"victim-{turn}", ttl) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.01, 0.15))
        killed = time.monotonic()
        successor = f"successor-{turn}"
        for session in store.sessions():
            while True:
                try:
                    store.register_server(successor, "gpu-host", "tcp://s", ttl)
                    token = store.claim(session.id, successor).token
                    break
                except SessionBusy:
                    assert time.monotonic() < killed + ttl + 2
        assert token > session.token
        store.release_server(successor)


def assert_killed_servers_leave_nothing_locked(url: str, rounds: int) -> None:
    store = Store.open(url)
    for name in ("one", "two", "three"):
        create(store, name)
    store.release_server("a")
    kill_a_server_and_claim(url, store, rounds, ttl=0.3)
    assert {row.owner for row in store.sessions()} == {f"successor-{rounds - 1}"}
    store.close()


def test_a_killed_server_leaves_its_sessions_to_the_next_within_its_lease(upgraded_url):
    assert_killed_servers_leave_nothing_locked(upgraded_url, rounds=3)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_hundred_killed_servers_leave_their_sessions_to_the_next(upgraded_url):
    assert_killed_servers_leave_nothing_locked(upgraded_url, rounds=200)
