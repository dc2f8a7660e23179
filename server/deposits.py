"""What a worker has left with the keeper of its session's memory, and whether it still holds.

The keeper has descriptors of the memory itself: nothing is copied, and it is there when the worker
has died. Whether it is worth anything a seal tells: an epoch without memory, and with it a
*mark*, a number at the start of a page that both processes map. The mark stands there while the
session is as the epoch has it. It is taken away before the first call that could change
anything, by one store into memory; so whatever ends the worker, the page tells the truth.
"""

from __future__ import annotations

import logging
import mmap
import secrets
import time
from collections.abc import Callable, Collection

from outlast.errors import KeeperError
from outlast.server.drivers.base import Piece
from outlast.server.executor import Executor
from outlast.server.keeper.client import Claim, Keeper
from outlast.server.keeper.holdings import MARK_SIZE, PAGE_SIZE

log = logging.getLogger(__name__)

#: How long the process before may take to end; that its lock was free says that it is dying.
DYING = 2.0  # seconds
RETRY = 0.005  # seconds
#: The start of the page while the session may be changing.
_UNMARKED = bytes(MARK_SIZE)


class Deposit:
    """The memory of one session, as far as the keeper has it.

    Parameters
    ----------
    keeper : Keeper
        Only used by this.
    session, token
        Whose memory, and the token under which this process has it.
    executor : Executor
        Tells before it changes anything; its driver tells before it gives memory up.
    """

    def __init__(self, keeper: Keeper, session: str, token: int, executor: Executor) -> None:
        self.keeper = keeper
        #: The session is as its last seal says.
        self.at_rest = False
        self._session, self._token = session, token
        self._rest = executor.rest
        self._page: mmap.mmap | None = None
        #: The keeper looks at the page's mark; one of an older version does not.
        self.marks = False
        #: Sizes by device and address.
        self._held: dict[tuple[int, int], int] = {}
        executor.driver.on_give_up = self._give_up

    @property
    def claimed(self) -> bool:
        """Whether this process is the holder, for all that it knows."""
        return self._page is not None

    @property
    def lost(self) -> bool:
        """Whether the keeper that had this has ended, or answers no more."""
        return self._page is not None and not self.keeper.connected

    # -- holding ---------------------------------------------------------------------------------

    def claim(self) -> None:
        """Be the holder at the keeper that runs now.

        Raises
        ------
        KeeperError
            None runs, or it refuses.
        """
        if self._page is not None and not self.lost:
            return
        self.forget()
        self.keeper.close()
        # Whatever another process or a broken conversation has left there is nothing of ours.
        self.keeper.end(self._session, self._token)
        claim = self.keeper.claim(self._session, self._token)
        try:
            self._hold(claim)
        finally:
            claim.close()

    def take_over(self, restore: Callable[[Claim], None]) -> None:
        """Go on with what the worker before has left.

        Parameters
        ----------
        restore : callable
            Makes this process hold it.

        Raises
        ------
        KeeperError
            There is nothing that holds, or its holder lives.
        """
        claim = self._follow()
        try:
            if claim.manifest < 0:
                text = f"nothing is sealed of session {self._session!r}"
                raise KeeperError(text, reason="unknown")
            restore(claim)
            self._hold(claim)
        finally:
            claim.close()
        self._begin_rest()
        if not self.marks:
            self.end()  # it would take that for a seal whatever is done from now on

    def _follow(self) -> Claim:
        """Claim what another process has had, which may be about to end."""
        deadline = time.monotonic() + DYING
        while True:
            try:
                return self.keeper.claim(self._session, self._token)
            except KeeperError as error:
                if error.reason != "held" or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY)

    def forget(self) -> None:
        """Hold nothing any more, whatever the keeper has."""
        if self._page is not None:
            self.disturb()
            self._page.close()
            self._page = None
        self._held.clear()

    def end(self) -> None:
        """Give back what the keeper has."""
        if self._page is None:
            return
        self.forget()
        try:
            self.keeper.end(self._session, self._token)
        except KeeperError as error:
            self._report(error)

    # -- sealing ---------------------------------------------------------------------------------

    def keep_only(self, pieces: Collection[Piece]) -> list[Piece]:
        """Have all else given back; return those of the pieces that the keeper lacks.

        Raises
        ------
        KeeperError
            It refuses, or is gone.
        """
        wanted = {(piece.device, piece.address): piece.size for piece in pieces}
        for (device, address), size in list(self._held.items()):
            if wanted.get((device, address)) != size:
                self.keeper.drop(self._session, self._token, device, address)
                del self._held[device, address]
        return [piece for piece in pieces if (piece.device, piece.address) not in self._held]

    def add(self, piece: Piece, descriptor: int) -> None:
        """Have the keeper hold a piece of memory; the descriptor stays the caller's.

        Raises
        ------
        KeeperError
            It refuses, or is gone.
        """
        self.keeper.add(self._session, self._token, piece, descriptor)
        self._held[piece.device, piece.address] = piece.size

    def seal(self, seq: int, epoch: int) -> None:
        """Say that the session is at rest behind call ``seq``, until `disturb` is called.

        Raises
        ------
        KeeperError
            The keeper refuses, or is gone.
        """
        mark = secrets.randbits(63) | 1
        self.keeper.rest(self._session, self._token, seq, mark, epoch)
        # Last: whoever finds the mark finds everything.
        assert self._page is not None
        self._page[:MARK_SIZE] = mark.to_bytes(MARK_SIZE, "little")
        self._begin_rest()

    def seal_for_good(self, seq: int, epoch: int) -> None:
        """Say that the session is at rest behind call ``seq`` and no call is taken any more.

        Raises
        ------
        KeeperError
            The keeper refuses, or is gone.
        """
        self.keeper.seal(self._session, self._token, seq, epoch)

    def disturb(self) -> None:
        """Say that the session changes."""
        if self._page is not None:
            self._page[:MARK_SIZE] = _UNMARKED
        self.at_rest = False
        self._rest.at_end = None

    def _hold(self, claim: Claim) -> None:
        self._page, self.marks = mmap.mmap(claim.page, PAGE_SIZE), claim.marks
        self._held = {chunk.key: chunk.size for chunk in claim.chunks}

    def _begin_rest(self) -> None:
        self.at_rest = True
        self._rest.at_end = self.disturb

    def _give_up(self, device: int, address: int) -> None:
        """Have a piece given back before the driver gives it up, or it would not be free."""
        if self._held.pop((device, address), None) is None:
            return
        if self.at_rest:
            self.disturb()
        try:
            self.keeper.drop(self._session, self._token, device, address)
        except KeeperError as error:
            self._report(error)

    def _report(self, error: KeeperError) -> None:
        if error.reason != "unknown":  # then somebody has had all of it given back
            log.warning(
                "device memory may stay with the keeper until that process ends: %s",
                error,
                extra={"action": "keeper", "session": self._session},
            )
