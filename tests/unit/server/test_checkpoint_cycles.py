"""Checkpoint and restore over and over: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import ptx

from outlast.checkpoint_providers import StoredEpoch
from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.server.checkpointer import Checkpointer, Identity
from outlast.server.drivers.emulated import EmulatedDriver
from outlast.server.executor import Executor
from outlast.session import wire
from outlast.session.host import HostSession
from outlast.session.ids import primary_context
from outlast.session.schema import HANDLE_FIRST, HANDLE_STEP, Op

IDENTITY = Identity("train", bytes(16), 1)
CONTEXT = primary_context(0)
BIND = wire.pack_record(Op.BIND, 1, CONTEXT)
MODULE, KERNEL, STREAM, EVENT = (HANDLE_FIRST + n * HANDLE_STEP for n in range(4))
FIRST_SPARE = HANDLE_FIRST + 4 * HANDLE_STEP
BULK = 2 << 20  # bytes
#: Cycles until Python, LLVM and the allocator have what they keep.
WARM = 10
#: How much the process may grow behind that: far less than one copy of the memory a cycle.
SLACK = 24 << 20  # bytes


@dataclass(frozen=True)
class Footprint:
    """What this process holds."""

    resident: int  # bytes
    descriptors: int
    threads: int

    @classmethod
    def take(cls) -> Footprint:
        """Look at it now."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
        return cls(pages * os.sysconf("SC_PAGESIZE"), descriptors, threading.active_count())


class Life:
    """One worker's life of a session, on a device of its own."""

    def __init__(self, provider: MemoryProvider) -> None:
        self.driver = EmulatedDriver(memory=256 << 20)
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
        """Take an epoch."""
        snapshot = self.checkpointer.snapshot(IDENTITY, 1, self.host.cut(), copy=True)
        return self.checkpointer.save(snapshot)

    def restore(self, stored: StoredEpoch) -> None:
        """Go on from an epoch."""
        epoch = self.checkpointer.restore(stored.location, stored.digest)
        self.host.restored(epoch.seq, [])

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the device."""
        (region,) = (r for r in self.driver.regions() if r.address == address)
        return bytes(self.driver.view(region)[:size])

    def check(self, number: int, fill: int) -> None:
        """Check what a life must have found or made."""
        assert int.from_bytes(self.read(self.tape, 8), "little") == number
        assert self.read(self.bulk, BULK) == bytes([fill]) * BULK
        handles = {handle.id for handle in self.executor.handles.ordered()}
        assert len(handles) == 6
        assert {CONTEXT, MODULE, KERNEL, STREAM, EVENT} < handles
        assert len(self.executor.allocations) == 3


@pytest.mark.parametrize(
    "cycles",
    [
        pytest.param(40, id="forty"),
        pytest.param(1000, id="thousand", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_a_session_that_is_saved_and_restored_again_and_again_leaves_nothing_behind(
    cycles: int, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = MemoryProvider()
    life = Life(provider)
    number, before = 0, None
    try:
        life.begin()
        for turn in range(WARM + cycles):
            if turn == WARM:
                before = Footprint.take()
            life.work(turn)
            number = (number * 10 + turn % 10) % (1 << 64)
            life.check(number, turn % 251)
            stored = life.save()
            for older in provider.list(IDENTITY.session_id)[:-1]:
                provider.delete(older.location)
            life.driver.close()
            life = Life(provider)
            life.restore(stored)
            life.check(number, turn % 251)
    finally:
        life.driver.close()
    after = Footprint.take()
    assert before is not None
    if cycles >= 1000:
        with capsys.disabled():
            print(f"\n{cycles} cycles: {before} before, {after} behind them")
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    assert after.resident - before.resident < SLACK, (before, after)
