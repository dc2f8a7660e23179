"""Launches that have been made before: told by the head of their records, and made at once.

A program launches the same few kernels again and again, and all but the parameters of such a
record are the same bytes. What they mean is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence

from outlast.server.drivers.base import Driver
from outlast.session.host import HostSession
from outlast.session.operations import Op
from outlast.session.schema import RecordFlag
from outlast.session.wire import LAUNCH_HEAD, RECORD, CallStream

#: Most that are known of a context; a program that varies its grids endlessly starts anew.
MOST = 4096
#: How a launch's record begins whose parameters are in it.
INLINE = RECORD.pack(Op.LAUNCH, RecordFlag.NONE, 0)[:4]
#: Its first byte, which few other records have.
LAUNCH = INLINE[0]

#: Length of the parameters, and what launches with them and returns a ``CUresult`` value.
Known = tuple[int, Callable[[bytes], int]]


class Launches:
    """What heads of launch records mean, by bound context.

    Parameters
    ----------
    driver : Driver
        The device.
    host : HostSession
        Is told how far the calls are.
    issued : mutable sequence of int
        The executor's page.
    """

    def __init__(
        self, driver: Driver, host: HostSession, issued: MutableSequence[int] | memoryview[int]
    ) -> None:
        self._driver = driver
        self._host = host
        self._issued = issued
        self._contexts: dict[int, dict[bytes, Known]] = {}
        self.bind(0)

    def bind(self, context: int) -> None:
        """Note the context of the launches to come; the special streams are its own."""
        self._known = self._contexts.setdefault(context, {})

    def forget(self) -> None:
        """Forget everything: a kernel or a stream is gone."""
        for known in self._contexts.values():
            known.clear()

    def learn(self, stream: CallStream, length: int, launch: Callable[[bytes], int]) -> None:
        """Note what the record in hand means in the bound context."""
        head = stream.stream[stream.begin : stream.begin + LAUNCH_HEAD]
        if not head.startswith(INLINE):
            return  # its parameters are elsewhere
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[head] = length, launch

    def follow(self, stream: CallStream, seq: int, last: int) -> tuple[int, int]:
        """Make the launches that come next, as far as they are known and do not fail.

        Parameters
        ----------
        stream : CallStream
            Its offset is moved behind them.
        seq : int
            Of the call before them.
        last : int
            Seq of the batch's last call.

        Returns
        -------
        tuple[int, int]
            Seq of the last launch, and its ``CUresult`` value.
        """
        records, offset, end, head = stream.stream, stream.offset, len(stream.stream), LAUNCH_HEAD
        known, issued, driver, result = self._known, self._issued, self._driver, 0
        issued[0], issued[1] = seq + 1, Op.LAUNCH
        try:
            while seq < last and not result:
                start = offset + head
                found = known.get(records[offset:start])
                if found is None:
                    break
                length, launch = found
                stop = start + length
                if stop > end:
                    break  # whoever reads it as a record says what is wrong
                issued[0] = driver.tag = seq + 1
                result = launch(records[start:stop])
                seq += 1
                offset = stop
        finally:
            stream.offset = offset
            self._host.advance(seq)
        return seq, result
