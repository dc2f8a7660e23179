"""Lives of one session, each restored from the epoch that the one before left.

They need a device, but no worker: an executor does the calls, a checkpointer saves and restores.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path

from helpers import ptx

from outlast.checkpoint_providers import CheckpointProvider, StoredEpoch
from outlast.server.checkpointer import Checkpointer, Identity
from outlast.server.drivers.base import Driver
from outlast.server.executor import Executor
from outlast.session import wire
from outlast.session.host import HostSession
from outlast.session.ids import primary_context
from outlast.session.operations import Op
from outlast.session.schema import HANDLE_FIRST, HANDLE_STEP

IDENTITY = Identity("train", bytes(16), 1)
CONTEXT = primary_context(0)
BIND = wire.pack_record(Op.BIND, 1, CONTEXT)
MODULE, KERNEL, STREAM, EVENT = (HANDLE_FIRST + n * HANDLE_STEP for n in range(4))
FIRST_SPARE = HANDLE_FIRST + 4 * HANDLE_STEP
BULK = 2 << 20  # bytes


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    resident: int  # bytes
    descriptors: int
    threads: int

    @classmethod
    def take(cls, pid: int | str = "self") -> Footprint:
        """Look at it now."""
        gc.collect()
        folder = Path("/proc") / str(pid)
        pages = int((folder / "statm").read_text().split()[1])
        descriptors, threads = (len(os.listdir(folder / name)) for name in ("fd", "task"))
        return cls(pages * os.sysconf("SC_PAGESIZE"), descriptors, threads)

    def assert_no_more_than(self, before: Footprint, slack: int, few: int = 0) -> None:
        """Fail if it holds more than before.

        Memory may have grown by ``slack`` bytes, and there may be a ``few`` descriptors and
        threads that are made when they are first needed.
        """
        assert self.descriptors <= before.descriptors + few, (before, self)
        assert self.threads <= before.threads + few, (before, self)
        assert self.resident - before.resident < slack, (before, self)


class Life:
    """One life of a session."""

    def __init__(self, provider: CheckpointProvider, driver: Driver) -> None:
        self.provider = provider
        self.driver = driver
        self.host = HostSession()
        self.executor = Executor(self.driver, self.host)
        self.checkpointer = Checkpointer(provider, self.executor)

    def do(self, *records: bytes) -> None:
        """Apply calls behind those so far."""
        stream = BIND + b"".join(records)
        self.executor.run(self.host.applied + 1, len(records), 0, stream, [])

    def begin(self) -> None:
        """Make one object of each kind."""
        self.executor.run(1, 1, 0, wire.pack_record(Op.PRIMARY_RETAIN, 0) + BIND, [])
        self.do(
            wire.pack_record(Op.MODULE_LOAD, MODULE, data=ptx.TAPE.encode() + b"\0"),
            wire.pack_record(Op.FUNCTION_GET, KERNEL, MODULE, data=b"append"),
            wire.pack_record(Op.STREAM_CREATE, STREAM, 0, 0),
            wire.pack_record(Op.EVENT_CREATE, EVENT, 0),
            wire.pack_record(Op.MEM_ALLOC, 8),
            wire.pack_record(Op.MEM_ALLOC, BULK),
        )
        self.do(wire.pack_record(Op.MEMSET, self.tape, 0, 8, 0, 1, 0))

    @property
    def tape(self) -> int:
        """Address of the number that the kernel appends to."""
        return min(self.executor.allocations)

    @property
    def bulk(self) -> int:
        """Address of what is filled anew in each life."""
        return sorted(self.executor.allocations)[1]

    def work(self, turn: int) -> None:
        """Launch, fill, record; make what replaces what the life before made."""
        parameters = self.tape.to_bytes(8, "little") + (turn % 10).to_bytes(4, "little")
        spare = FIRST_SPARE + turn * HANDLE_STEP
        self.do(
            wire.pack_record(Op.LAUNCH, KERNEL, STREAM, 1, 1, 1, 1, 1, 1, 0, data=parameters),
            wire.pack_record(Op.EVENT_RECORD, EVENT, STREAM, 0),
            wire.pack_record(Op.MEMSET, self.bulk, 0, BULK, turn % 251, 1, 0),
            wire.pack_record(Op.STREAM_CREATE, spare, 0, 0),
            wire.pack_record(Op.MEM_ALLOC, 4096 * (1 + turn % 7)),
        )
        if turn:
            old = sorted(self.executor.allocations)[2]
            self.do(
                wire.pack_record(Op.STREAM_DESTROY, spare - HANDLE_STEP),
                wire.pack_record(Op.MEM_FREE, old),
            )
        assert self.executor.idle(30.0)
        self.host.acknowledge(self.host.applied)

    def save(self) -> StoredEpoch:
        """Take an epoch; it is the only one then."""
        snapshot = self.checkpointer.snapshot(IDENTITY, 1, self.host.cut(), copy=True)
        stored = self.checkpointer.save(snapshot)
        for older in self.provider.list(IDENTITY.session_id)[:-1]:
            self.provider.delete(older.location)
        return stored

    def restore(self, stored: StoredEpoch) -> None:
        """Go on from an epoch."""
        epoch = self.checkpointer.restore(stored.location, stored.digest)
        self.host.restored(epoch.seq, [])

    def end(self) -> None:
        """Leave a device that another life goes on with as empty as it was."""
        self.do(wire.pack_record(Op.PRIMARY_RELEASE, 0))
        assert not self.driver.regions()

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the device."""
        (region,) = (r for r in self.driver.regions() if r.address == address)
        data = bytearray(size)
        self.driver.read(region, 0, memoryview(data))
        return bytes(data)

    def check(self, number: int, fill: int) -> None:
        """Check what a life must have found or made."""
        assert int.from_bytes(self.read(self.tape, 8), "little") == number
        assert self.read(self.bulk, BULK) == bytes([fill]) * BULK
        handles = {handle.id for handle in self.executor.handles.ordered()}
        assert len(handles) == 6
        assert {CONTEXT, MODULE, KERNEL, STREAM, EVENT} < handles
        assert len(self.executor.allocations) == 3
