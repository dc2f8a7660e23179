"""What the client API needs of the link to a session server.

The link numbers, logs, batches and resends calls; the API above it decides what to send
and what it can answer by itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from outlast.session.operations import Op

#: Bytes of a copy between host and device that count as another operation: they lie in the
#: server's memory until the stream gets there.
COPY_UNIT = 64 << 10  # bytes


class Reply(NamedTuple):
    """Outcome of an answered call or a query."""

    #: ``CUresult`` value.
    result: int
    #: Address of an allocation.
    value: int = 0
    #: The op's reply fields, packed.
    data: bytes | memoryview = b""


class Lane(Protocol):
    """A stream, as the link counts its calls."""

    handle: int
    #: Seq of its newest call.
    last: int
    #: Its calls up to this seq are known to be done.
    done: int
    #: Operations so far, and how many of them are known to be done.
    taken: int
    finished: int


class Landing(Protocol):
    """An answer that nobody waits for yet: a copy to the host, or the end of some work."""

    @property
    def done(self) -> bool:
        """Whether it has landed, or never will."""
        ...

    @property
    def result(self) -> int:
        """Its ``CUresult`` value, once it is done."""
        ...

    def wait(self) -> None:
        """Wait until it is done; raise what ended the link."""
        ...


class Link(Protocol):
    """One client process's way to its session.

    Every method may raise an `outlast.errors.OutlastError`; its ``cu_result`` is what the
    API call then returns. All methods may be called from any thread.
    """

    #: Device table of the server: ordinal, name, uuid, total_memory, arena_base, arena_size
    #: and attributes (decimal ``CUdevice_attribute`` value -> number).
    devices: list[dict[str, Any]]
    session_id: str
    #: What an adopted session already holds; empty otherwise.
    inventory: dict[str, Any]
    #: Unfinished operations that a stream may have.
    stream_credits: int

    @property
    def next_seq(self) -> int:
        """Seq of the next state-changing call."""
        ...

    def send(self, op: Op, *args: int, data: bytes | None = None, lane: Lane | None = None) -> int:
        """Append a one-way call to the log and return its seq; never wait for the server."""
        ...

    def send_record(self, head: bytes, lane: Lane | None = None) -> int:
        """Append a one-way call whose record is complete already and return its seq.

        It is counted in ``lane``, the stream it goes to.
        """
        ...

    def call(
        self, op: Op, *args: int, data: bytes | None = None, lane: Lane | None = None
    ) -> Reply:
        """Send an answered call and wait for its outcome."""
        ...

    def query(self, op: Op, *args: int) -> Reply:
        """Ask a query and wait for its answer; the link adds the query's number."""
        ...

    def watch(self, op: Op, *args: int) -> Landing:
        """Ask a query, flush it, and go on; its answer comes ahead of those of later waits."""
        ...

    def look(self) -> None:
        """Take in what has come, without waiting for more."""
        ...

    def read_into(self, address: int, size: int, lane: Lane, flags: int, out: memoryview) -> int:
        """Copy device bytes into ``out`` and wait until they are there. Returns CUresult."""
        ...

    def read_later(
        self, address: int, size: int, lane: Lane, flags: int, out: memoryview
    ) -> Landing:
        """Copy device bytes into ``out``, ahead of every answer that tells that it is done."""
        ...

    def write_from(self, address: int, lane: Lane, flags: int, data: memoryview) -> int:
        """Take the bytes of ``data`` and copy them to the device. Returns CUresult."""
        ...

    def new_handle(self) -> int:
        """Return a virtual handle that was never used in this session."""
        ...

    def bind(self, context: int) -> None:
        """Note the calling thread's current context (0: none) for its next calls."""
        ...

    def take_deferred(self, context: int) -> int:
        """Return, once, the CUresult of a one-way call of ``context`` that failed, else 0."""
        ...

    def sticky(self) -> int:
        """Return the CUresult that poisoned the process's contexts, else 0."""
        ...

    def statistics(self) -> dict[str, Any]:
        """Return counts of what the link went through."""
        ...

    def close(self, end: bool = False) -> None:
        """Give the link up; ``end`` also ends the session."""
        ...
