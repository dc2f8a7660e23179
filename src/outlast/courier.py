"""A thread that sends what the system does not take at once.

Large copies are bound by memory: while their bytes go to the system, the program's thread
already copies the next ones. Short messages never come this way; waking a thread costs more
than sending them does.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque

from outlast.zmtp import Frame

#: Pieces handed to the system at once.
VECTOR = 16
#: How often it looks whether the connection was closed while nothing can be sent.
LOOK = 0.1  # seconds
_JOIN = 2.0  # seconds


class Courier:
    """Sends the pieces of one connection in their order, from when it is first needed.

    Parameters
    ----------
    connection : socket.socket
        It does not block.
    """

    def __init__(self, connection: socket.socket) -> None:
        #: Why it gave up; None while all is well.
        self.error: OSError | None = None
        #: Whether there is nothing to send. The lock guards it, and the pieces.
        self.idle = True
        self._connection = connection
        self._pieces: deque[Frame] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def hand_over(self, pieces: list[Frame]) -> None:
        """Have pieces sent behind those that it has."""
        with self._changed:
            self._pieces.extend(pieces)
            self.idle = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
                self._thread.start()
            self._changed.notify()

    def take(self, pieces: list[Frame]) -> bool:
        """Hand pieces over if there are others before them; return whether."""
        with self._changed:
            if self.idle:
                return False
            self._pieces.extend(pieces)
            return True

    def close(self) -> None:
        """End the thread; what is not sent is dropped. The connection can be closed then."""
        with self._changed:
            self._closed = True
            self._pieces.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_JOIN)

    def _run(self) -> None:
        writable = select.poll()
        writable.register(self._connection, select.POLLOUT)
        while True:
            with self._changed:
                while not (self._pieces or self._closed):
                    self.idle = True
                    self._changed.wait()
                if self._closed:
                    return
                batch = [self._pieces[i] for i in range(min(VECTOR, len(self._pieces)))]
            try:
                sent = self._connection.sendmsg(batch)
            except BlockingIOError:
                writable.poll(LOOK * 1000)
                continue
            except OSError as error:
                with self._changed:
                    self.error = error
                    self._pieces.clear()
                    self.idle = True
                return
            with self._changed:
                self._forget(sent)

    def _forget(self, sent: int) -> None:
        pieces = self._pieces
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces.popleft())
        if sent and pieces:
            pieces[0] = memoryview(pieces[0])[sent:]
