"""What the keeper has of the sessions of a state folder, as the gateway sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from outlast.errors import KeeperError
from outlast.server.channel import Json
from outlast.server.departures import Process
from outlast.server.keeper.client import Keeper

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class KeptMemory:
    """The gateway's view of the keeper.

    Parameters
    ----------
    state : Path
        The state folder.
    """

    def __init__(self, state: Path) -> None:
        self._keeper = Keeper(state)

    def start(self, ttl: float) -> None:
        """Have a keeper run, and be connected to it.

        Raises
        ------
        KeeperError
            None can be started.
        """
        self._keeper.start(ttl)

    def launch(self, ttl: float) -> Process | None:
        """Have a keeper run soon; return the process that starts it, if none runs yet.

        Raises
        ------
        KeeperError
            None can be started.
        """
        return self._keeper.launch(ttl)

    def hold(self) -> bool:
        """Be connected, so that a keeper waits for what is to come; return whether one is there."""
        try:
            self._keeper.connect()
        except KeeperError:
            return False
        return True

    def count(self) -> int:
        """Return of how many sessions something is held."""
        try:
            self._keeper.connect()
            return len(self._keeper.holdings())
        except KeeperError as error:
            _report(error)
            return 0

    def find(self, session: str) -> Json | None:
        """Return what is held of a session, sealed or not; None if nothing is."""
        for held in self._ask(self._keeper.holdings) or ():
            if held["session"] == session:
                return held
        return None

    def forget(self, session: str, token: int) -> None:
        """Give back what is kept of a session that ended or went on without it.

        Nothing is done under a token that is over, or is none (0).
        """
        if token:
            self._ask(lambda: self._keeper.end(session, token))

    def _ask(self, ask: Callable[[], Answer]) -> Answer | None:
        """Return the keeper's answer; None if none runs, or it refuses."""
        try:
            # One that we were connected to may have ended, and another may run now.
            if not self._keeper.connected:
                self._keeper.close()
                self._keeper.connect()
            return ask()
        except KeeperError as error:
            _report(error)
            return None

    def close(self) -> None:
        """Close the connection."""
        self._keeper.close()


def _report(error: KeeperError) -> None:
    # Mostly there is none, and nothing is kept. Under a higher token it is somebody else's.
    if error.reason not in ("unreachable", "fenced"):
        log.warning("the keeper: %s", error, extra={"action": "keeper"})
