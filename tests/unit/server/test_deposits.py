"""What a worker leaves with the keeper, and what makes it worth nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.keeper import HolderProcess, end_keeper

from outlast.errors import KeeperError
from outlast.server.deposits import Deposit
from outlast.server.drivers.base import Piece
from outlast.server.keeper.client import Claim, Keeper
from outlast.server.rest import Rest

CHUNK = Piece(0, 0x1000_0000_0000, 32 << 20)
OTHER = Piece(0, 0x1000_1000_0000, 2 << 20)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    found = Keeper(tmp_path)
    found.start(ttl=60.0)
    yield found
    found.close()
    end_keeper(tmp_path)


@pytest.fixture
def executor() -> Any:
    return SimpleNamespace(driver=SimpleNamespace(on_give_up=None), rest=Rest())


@pytest.fixture
def deposit(keeper: Keeper, executor: Any, tmp_path: Path) -> Iterator[Deposit]:
    made = Deposit(Keeper(tmp_path), "train", 1, executor)
    yield made
    made.forget()
    made.keeper.close()


def with_file(use: Callable[[int], None]) -> None:
    descriptor = os.memfd_create("test")
    try:
        use(descriptor)
    finally:
        os.close(descriptor)


def leave(deposit: Deposit, *pieces: Piece) -> None:
    """Leave memory and a seal."""
    deposit.claim()
    for piece in deposit.keep_only(pieces):
        with_file(lambda descriptor, piece=piece: deposit.add(piece, descriptor))  # type: ignore[misc]
    with_file(lambda descriptor: deposit.seal(7, descriptor))


def state_of(keeper: Keeper) -> tuple[int, bool]:
    """Return the chunks that are held, and whether they are worth anything."""
    (entry,) = keeper.holdings()
    return entry["chunks"], entry["sealed"]


def test_the_seal_holds_until_the_executor_says_that_something_changes(
    deposit: Deposit, executor: Any, keeper: Keeper
) -> None:
    leave(deposit, CHUNK, OTHER)
    assert (deposit.at_rest, state_of(keeper)) == (True, (2, True))
    executor.rest.end()
    assert (deposit.at_rest, state_of(keeper)) == (False, (2, False))
    assert executor.rest.at_end is None  # it costs nothing any more
    leave(deposit, CHUNK)
    assert (deposit.at_rest, state_of(keeper)) == (True, (1, True))


def test_memory_that_the_driver_gives_up_goes_from_the_keeper_too(
    deposit: Deposit, executor: Any, keeper: Keeper
) -> None:
    leave(deposit, CHUNK, OTHER)
    executor.driver.on_give_up(0, CHUNK.address)
    assert (deposit.at_rest, state_of(keeper)) == (False, (1, False))
    executor.driver.on_give_up(0, CHUNK.address)  # what is not there costs no message
    # Other memory may lie there by now.
    assert deposit.keep_only([CHUNK, OTHER]) == [CHUNK]


def test_memory_of_another_size_is_other_memory(deposit: Deposit, keeper: Keeper) -> None:
    leave(deposit, CHUNK)
    larger = CHUNK._replace(size=64 << 20)
    assert deposit.keep_only([larger]) == [larger]
    assert keeper.holdings()[0]["chunks"] == 0


def test_a_new_keeper_is_told_everything_anew(
    deposit: Deposit, executor: Any, keeper: Keeper, tmp_path: Path
) -> None:
    leave(deposit, CHUNK)
    assert not deposit.lost
    end_keeper(tmp_path)
    assert deposit.lost
    with pytest.raises(KeeperError, match="no keeper runs"):
        deposit.claim()
    assert (deposit.at_rest, executor.rest.at_end) == (False, None)
    executor.driver.on_give_up(0, CHUNK.address)  # nothing can go wrong with that
    keeper.close()
    keeper.start(ttl=60.0)
    leave(deposit, CHUNK)
    assert state_of(keeper) == (1, True)


def test_a_conversation_that_broke_off_is_begun_anew(deposit: Deposit, keeper: Keeper) -> None:
    """What was asked for last may have been done or not."""
    leave(deposit, CHUNK, OTHER)
    deposit.keeper.close()
    assert deposit.lost
    deposit.claim()
    assert state_of(keeper) == (0, False)
    assert deposit.keep_only([CHUNK]) == [CHUNK]


def test_a_worker_that_is_about_to_die_is_waited_for(
    keeper: Keeper, executor: Any, tmp_path: Path
) -> None:
    holder = HolderProcess(tmp_path)
    holder.ask("claim", "train", 1)
    holder.ask("seal", "train", 1, "manifest")
    deposit = Deposit(Keeper(tmp_path), "train", 2, executor)
    asked = threading.Event()
    claim = deposit.keeper.claim

    def claim_and_tell(session: str, token: int) -> Claim:
        asked.set()
        return claim(session, token)

    deposit.keeper.claim = claim_and_tell  # type: ignore[method-assign]
    killer = threading.Thread(target=lambda: asked.wait(10) and holder.kill())
    killer.start()
    deposit.take_over(lambda claim: None)
    killer.join()
    assert deposit.at_rest
    deposit.end()
    deposit.keeper.close()


def test_nothing_is_left_with_a_keeper_that_does_not_look_at_marks(
    keeper: Keeper, executor: Any, tmp_path: Path
) -> None:
    """One of an older version would give memory to others that has changed since."""
    deposit = Deposit(Keeper(tmp_path), "train", 1, executor)
    leave(deposit, CHUNK)
    claim = deposit.keeper.claim
    deposit.keeper.claim = lambda *who: replace(claim(*who), marks=False)  # type: ignore[method-assign]
    deposit.take_over(lambda claim: None)
    assert (deposit.at_rest, keeper.holdings()) == (False, [])
    deposit.claim()
    assert not deposit.marks
    deposit.end()
    deposit.keeper.close()


def test_what_was_taken_over_is_at_rest_and_what_is_not_sealed_is_not_taken(
    keeper: Keeper, executor: Any, tmp_path: Path
) -> None:
    deposit = Deposit(Keeper(tmp_path), "train", 1, executor)
    taken: list[Claim] = []
    with pytest.raises(KeeperError, match="nothing is sealed"):
        deposit.take_over(taken.append)
    leave(deposit, CHUNK)
    deposit.take_over(taken.append)
    assert [len(claim.chunks) for claim in taken] == [1]
    assert deposit.at_rest
    assert deposit.keep_only([CHUNK]) == []
    executor.rest.end()
    with pytest.raises(KeeperError, match="nothing is sealed"):
        deposit.take_over(taken.append)
    deposit.end()
    assert keeper.holdings() == []
    deposit.end()
    deposit.keeper.close()
