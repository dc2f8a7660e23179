"""How a worker ends when the server drains: save what is there, say what became of it."""

from __future__ import annotations

import logging
import time

from outlast.errors import CheckpointError, KeeperError, OutlastError
from outlast.server import handover
from outlast.server.channel import Channel, Json
from outlast.server.deposits import Deposit
from outlast.server.epochs import EpochKeeper
from outlast.server.executor import Executor
from outlast.session.host import HostSession

log = logging.getLogger(__name__)

#: How long a keeper that was started just now is waited for.
KEEPER_PATIENCE = 5.0  # seconds


class Farewell:
    """The last epoch of a worker, within the time the gateway allows."""

    def __init__(
        self,
        host: HostSession,
        executor: Executor,
        epochs: EpochKeeper,
        channel: Channel,
        deposit: Deposit,
    ) -> None:
        self._deposit = deposit
        self._host = host
        self._executor = executor
        self._epochs = epochs
        self._channel = channel
        self._order: Json | None = None
        #: Its memory is with the keeper for the next worker.
        self._left = False
        #: The client was attached when the drain began, so it can replay what is not saved.
        self._client = False

    @property
    def waiting(self) -> bool:
        """Whether the save has not begun yet."""
        return self._order is not None

    def begin(self, order: Json, replaying: bool, client: bool) -> None:
        """Start; calls are taken no more."""
        self._client = client
        if replaying:
            # Half-replayed state must not become the newest epoch: the stored one stands.
            self._tell(True, "its stored epoch stands")
            return
        self._order = order
        self.step()

    def hasten(self, order: Json) -> None:
        """Do not wait any longer."""
        if self._order is not None:
            self._order = order
            self.step()

    def step(self) -> None:
        """Go on: an earlier epoch may still be under way."""
        order = self._order
        if order is None:
            return
        if order["hand_over"]:
            self._order = None
            self._hand_over(order)
            return
        if self._epochs.busy:
            if order["hasten"] or time.monotonic() > order["deadline"]:
                self._order = None
                self._tell(False, "an earlier checkpoint was still under way")
            return
        self._order = None
        self._save(order)

    def _hand_over(self, order: Json) -> None:
        """Leave device memory to the next worker; where that fails, save it like any other."""
        if not self._executor.poisoned and self._executor.idle(_left(order)):
            try:
                self._deposit.keeper.connect(min(KEEPER_PATIENCE, _left(order) / 2))
                snapshot = self._epochs.without_memory(copy=False)
                handover.leave(self._deposit, snapshot, self._executor.driver)
                self._left = True
            except (KeeperError, CheckpointError) as error:
                log.warning("not handed over: %s", error, extra={"action": "not_handed_over"})
            else:
                if self._client or self._host.applied == self._epochs.last_seq:
                    self._tell(True, "its memory is with the keeper", kept=True)
                    return
                # If the keeper lost it, there would be no log to replay: it is stored as well.
        self._order = {**order, "hand_over": False}
        self.step()

    def _save(self, order: Json) -> None:
        if self._host.applied == self._epochs.last_seq:
            self._tell(True, "nothing new since its last epoch")
        elif self._executor.poisoned:
            self._tell(False, f"its context is poisoned (error {self._executor.poisoned})")
        elif not self._executor.idle(_left(order)):
            self._tell(False, "busy")
        else:
            # Nothing runs any more: memory is read in place.
            self._epochs.save(self._saved, copy=False)

    def _saved(self, error: OutlastError | None) -> None:
        self._tell(error is None, str(error or ""))

    def _tell(self, saved: bool, reason: str, kept: bool = False) -> None:
        if saved and not self._left:
            # The device is free for others now. What is not saved may be with the keeper still.
            self._deposit.end()
        self._channel.send(
            {
                "kind": "drained",
                "saved": saved,
                "kept": kept,
                "reason": reason,
                "epoch": self._epochs.last_seq,
                "applied": self._host.applied,
                "client": self._client,
            }
        )


def _left(order: Json) -> float:
    """Return the seconds until the order's deadline."""
    left: float = max(0.0, order["deadline"] - time.monotonic())
    return left
