"""What a worker knows of the calls that it does again, and the order that the program gave them."""

from __future__ import annotations

from outlast.server.drivers.base import Driver
from outlast.session.handles import HandleKind, HandleTable
from outlast.session.operations import Op


class Replay:
    """The calls that are, or were, replayed.

    Parameters
    ----------
    driver, handles
        The device, and its objects by the client's handles.
    """

    def __init__(self, driver: Driver, handles: HandleTable) -> None:
        #: The batch in hand is replayed.
        self.under_way = False
        #: Nothing that was replayed is under way any more.
        self.over = True
        self._driver = driver
        self._real = handles.real
        #: Names all that was replayed so far.
        self._ticket = 0
        #: By their numbers: what the program has asked the end of.
        self._marked: dict[int, int] = {}

    def begin_batch(self, replayed: bool) -> None:
        """Note whether the batch that comes now is replayed."""
        self.under_way = replayed
        self.over = self.over and not replayed

    def end_batch(self) -> None:
        """Note that the batch in hand is done."""
        if self.under_way:
            self.under_way = False
            self._ticket = self._driver.ticket()

    def covers(self, ticket: int) -> bool:
        """Return whether this work was replayed, or follows what is."""
        return self.under_way or ticket <= self._ticket

    def keep_order(self, op: Op, number: int, what: int, handle: int) -> None:
        """Let what follows run behind work that the program knew to be done by now.

        Only a replay has such work under way: the program was told so by an earlier worker.

        Parameters
        ----------
        op, number, what, handle
            Of the record, MARKED or WAITED, whose context is bound.
        """
        driver = self._driver
        if not self.under_way and driver.done(self._ticket):
            self._marked.clear()
            self.over = True
            return
        if op is Op.MARKED:
            self._marked[number] = self._name(what, handle)
            return
        ticket = self._marked.pop(number, 0) if number else self._name(what, handle)
        if not driver.done(ticket):
            driver.order_after(ticket)

    def _name(self, what: int, handle: int) -> int:
        """Name the work of a stream or event; of all if another thread has destroyed that."""
        streams, events = self._real[HandleKind.STREAM], self._real[HandleKind.EVENT]
        if what == Op.STREAM_SYNC and handle in streams:
            return self._driver.ticket(streams[handle])
        if what == Op.EVENT_SYNC and handle in events:
            return self._driver.event_ticket(events[handle])
        return self._driver.ticket()
