"""A client and a worker in one thread: their own code, joined by calls instead of sockets."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import outlast.shim.driver as remote
from outlast.server import worker as worker_module
from outlast.server.channel import channel_pair
from outlast.server.description import device_table
from outlast.server.drivers.cuda import CudaDriver
from outlast.session import ids, wire
from outlast.session.client import ClientSession
from outlast.shim.link import SessionLink
from outlast.shim.settings import LinkSettings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from helpers.fake_gpu import FakeGpu

PEER = b"client"
SECRET = bytes(32)


class WorkersEnd:
    """A worker's data link: what is sent is kept for the client."""

    endpoints = ("none",)
    heartbeat = 1.0
    more = False

    def __init__(self, *_: Any) -> None:
        self.messages: deque[tuple[bytes, list[bytes]]] = deque()
        self.sent: list[list[Any]] = []

    def receive(self, timeout: float, device: bool) -> None:
        """Return: what there is has been put into `messages`."""

    def has_more(self) -> bool:
        """Say that nothing comes by itself."""
        return False

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        """Keep a message for the client."""
        self.sent.append(frames)
        return True

    def silent(self, peer: bytes) -> bool:
        """Say that the client is there."""
        return False

    def heard(self, peer: bytes) -> None:
        """Take no notice."""

    def forget(self) -> None:
        """Take no notice."""


class ClientsEnd:
    """A client's transport: a message that somebody waits for is handled here and now."""

    has_unsent = False

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._link = worker._link
        self.last_heard = self.last_sent = time.monotonic()
        #: Seconds that the worker took.
        self.elsewhere = 0.0

    def send(self, frames: list[Any]) -> None:
        """Put a message before the worker."""
        self.last_sent = time.monotonic()
        self._link.messages.append((PEER, list(frames)))

    def poll(self, timeout: float) -> tuple[list[list[Any]], bool]:
        """Let the worker handle what is there, and return what it says."""
        began = time.perf_counter()
        self._worker._step()
        self.elsewhere += time.perf_counter() - began
        self.last_heard = time.monotonic()
        sent, self._link.sent = self._link.sent, []
        return sent, True

    def wake(self) -> None:
        """Nobody sleeps here."""

    def close(self, linger: float = 0.0) -> None:
        """There is nothing to close."""


class Wireless:
    """The two, attached to each other; `outlast.shim.driver` is the client.

    Parameters
    ----------
    folder : Path
        The worker's state folder.
    driver : CudaDriver
        Its device.
    """

    def __init__(self, folder: Path, driver: CudaDriver) -> None:
        channel, other = channel_pair()
        page = os.memfd_create("page")
        os.truncate(page, mmap.PAGESIZE)
        worker = self.worker = worker_module.Worker(
            channel, mmap.mmap(page, mmap.PAGESIZE), page, "cuda"
        )
        self.driver = worker._driver = driver
        worker._session_id, worker._lease_margin = "wireless", 0.0
        with mock.patch.object(worker_module, "DataLink", WorkersEnd):
            worker._prepare(_start_message(folder))
        self._other = other
        self.link = self._attach()
        remote.use_link(self.link)

    def _attach(self) -> SessionLink:
        session = ClientSession("wireless", ids.new_incarnation(), ids.new_token())
        # More credits than any benchmark takes before the worker has its turn.
        link = SessionLink(session, LinkSettings("tcp://127.0.0.1:1", stream_credits=1 << 20))
        self.worker._host.fence(1, ids.digest(SECRET))
        self.worker._on_frames(PEER, [session.attach(1, SECRET)])
        session.attached(wire.parse_message(self.worker._link.sent.pop()))
        link.devices = device_table(self.worker._driver)
        self.end = ClientsEnd(self.worker)
        link._pump.transport = self.end  # type: ignore[assignment]
        return link

    def close(self) -> None:
        """Let go of what has a name of its own."""
        remote.use_link(None)
        self.worker._door.close()
        self.driver.close()
        os.close(self._other)


def _start_message(folder: Path) -> dict[str, Any]:
    return {
        "lock": str(folder / "lock"),
        "provider": "directory",
        "state_dir": str(folder),
        "heartbeat": 1.0,
        "timeout": 5.0,
        "session": "wireless",
        "incarnation": bytes(16).hex(),
        "token": 1,
        "checkpoint_interval": 0.0,
        "epoch_deadline": 5.0,
        "grace": 5.0,
        "idle_seal": 0.0,
        "keep_for": 0.0,
        "linger": 0.0,
        "epoch": None,
    }


@contextlib.contextmanager
def wireless(gpu: bool = False) -> Iterator[Wireless]:
    """Join a client and a worker, on a GPU or on one whose calls do nothing."""
    with tempfile.TemporaryDirectory() as folder:
        both = Wireless(Path(folder), CudaDriver() if gpu else CudaDriver(cuda=FakeGpu()))
        try:
            yield both
        finally:
            both.close()
