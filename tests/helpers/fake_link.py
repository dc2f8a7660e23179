"""A link without a server: interprets the ops on a small model of a device.

Records are packed and parsed with the real codec, so that a call the wire cannot carry
fails here too. A module's image is the JSON of its description; kernels are Python
functions registered by name that get the model and the parameter bytes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from outlast.cuda_types import CUdevice_attribute
from outlast.session import link_inputs
from outlast.session.ids import HandleAllocator
from outlast.session.operations import OPS, Op, OpClass
from outlast.session.wire import CallStream, pack_fields, pack_record
from outlast.shim.linkage import COPY_UNIT, Lane, Reply

ARENA = 0x1000_0000_0000
ARENA_SIZE = 1 << 40  # bytes
MEMORY = 1 << 30  # bytes
ATTRIBUTES = {
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: 1024,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: 1024,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: 1024,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: 64,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: (1 << 31) - 1,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: 65535,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: 65535,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: 49152,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE: 32,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: 0x3B,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 4,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: 1,
}

Call = tuple[Op, tuple[int, ...], bytes | None]


def device_row(ordinal: int) -> dict[str, Any]:
    """Return one row of a device table."""
    return {
        "ordinal": ordinal,
        "name": f"Fake Device {ordinal}",
        "uuid": f"GPU-00000000-0000-0000-0000-{ordinal:012d}",
        "total_memory": MEMORY,
        "arena_base": ARENA + ordinal * ARENA_SIZE,
        "arena_size": ARENA_SIZE,
        "attributes": {str(int(key)): value for key, value in ATTRIBUTES.items()},
        # The first two can use each other's memory.
        "peers": {str(1 - ordinal): {"1": 0, "2": 1, "3": 1, "4": 0}} if ordinal < 2 else {},
    }


def image(
    *functions: tuple[str, list[list[int]]], variables: dict[str, int] | None = None
) -> bytes:
    """Return an image with kernels (name, [[offset, size], ...]) and variables (name -> size)."""
    attributes = {"0": 1024, "1": 0, "8": 49152}
    rows = [{"name": n, "parameters": p, "attributes": attributes} for n, p in functions]
    return json.dumps({"functions": rows, "globals": variables or {}}).encode()


class FakeLanding:
    """A copy to the host whose bytes come when somebody waits, or when the link says so."""

    def __init__(self, reply: Reply, out: memoryview) -> None:
        self.done = False
        self.result = 0
        self._reply, self._out = reply, out

    def wait(self) -> None:
        if not self.done:
            self.result = self._reply.result
            if not self.result:
                self._out[:] = self._reply.data
            self.done = True


class FakeWatch:
    """A query whose answer comes when the link says that the work is done."""

    def __init__(self, ask: Callable[[], Reply]) -> None:
        self.done = False
        self.result = 0
        self._ask = ask

    def wait(self) -> None:
        if not self.done:
            self.result = self._ask().result
            self.done = True


class FakeLink:
    """A `Link` with everything in this process."""

    def __init__(self, devices: int = 1) -> None:
        self.devices = [device_row(ordinal) for ordinal in range(devices)]
        self.session_id = "fake"
        self.stream_credits = 512
        self.inventory: dict[str, Any] = {}
        #: Every call that travelled, in order.
        self.calls: list[Call] = []
        #: Result of the next call of an op, once.
        self.fail_next: dict[Op, int] = {}
        #: Raised by the next call, once.
        self.error: BaseException | None = None
        #: Late errors by context.
        self.deferred: dict[int, list[int]] = {}
        self.poison = 0
        self.kernels: dict[str, Callable[[FakeLink, bytes], None]] = {}
        self.memory: dict[int, bytearray] = {}
        self.closed = False
        #: Copies that nobody waited for; what is done is there before any answer of a query.
        self.landings: list[FakeLanding] = []
        #: Queries that nobody waited for. They are answered when somebody looks, unless work is
        #: under way.
        self.watches: list[FakeWatch] = []
        self.busy = False
        self._functions: dict[int, str] = {}
        self._libraries: dict[int, bytes] = {}
        self._linked: dict[int, bytes] = {}
        self._limits: dict[tuple[int, int], int] = {}
        self._events: dict[int, int] = {}
        self._handles = HandleAllocator()
        self._freed: dict[int, list[int]] = {}
        self._next_address = ARENA
        self._bound = threading.local()
        self._lock = threading.RLock()

    # -- what the tests look at --------------------------------------------------------

    @property
    def bound(self) -> int:
        """Context that the calling thread is bound to."""
        return int(getattr(self._bound, "context", 0))

    def ops(self) -> list[Op]:
        """Return the ops of all calls that travelled."""
        return [op for op, _, _ in self.calls]

    def of(self, op: Op) -> list[Call]:
        """Return the calls of one op."""
        return [call for call in self.calls if call[0] is op]

    # -- Link --------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        return len(self.calls) + 1

    def send(self, op: Op, *args: int, data: bytes | None = None, lane: Lane | None = None) -> int:
        assert OPS[op].cls is OpClass.ONE_WAY, f"{op.name} needs an answer"
        return self.send_record(pack_record(op, *args, data=data), lane)

    def send_record(self, head: bytes, lane: Lane | None = None) -> int:
        with self._lock:
            self._run(head)
            return self._count(lane)

    def call(
        self, op: Op, *args: int, data: bytes | None = None, lane: Lane | None = None
    ) -> Reply:
        assert OPS[op].cls is OpClass.ANSWERED, f"{op.name} has no answer"
        with self._lock:
            reply = self._run(pack_record(op, *args, data=data))
            self._count(lane)
            return reply

    def _count(self, lane: Lane | None, size: int = 0) -> int:
        if lane is not None:
            lane.last = len(self.calls)
            lane.taken += 1 + size // COPY_UNIT
        return len(self.calls)

    def query(self, op: Op, *args: int) -> Reply:
        assert OPS[op].cls is OpClass.QUERY, f"{op.name} is no query"
        with self._lock:
            for landing in self.landings:
                landing.wait()
            return self._run(pack_record(op, 1, *args))

    def watch(self, op: Op, *args: int) -> FakeWatch:
        self.watches.append(FakeWatch(lambda: self.query(op, *args)))
        return self.watches[-1]

    def look(self) -> None:
        while self.watches and not self.busy:
            self.watches.pop(0).wait()

    def read_into(self, address: int, size: int, lane: Lane, flags: int, out: memoryview) -> int:
        assert out.nbytes == size
        reply = self.call(Op.COPY_DTOH, address, lane.handle, size, flags)
        self._count(lane, size)
        out[:] = bytes(reply.data) or bytes(size)
        lane.done, lane.finished = lane.last, lane.taken
        return reply.result

    def read_later(
        self, address: int, size: int, lane: Lane, flags: int, out: memoryview
    ) -> FakeLanding:
        assert out.nbytes == size
        reply = self.call(Op.COPY_DTOH, address, lane.handle, size, flags)
        self._count(lane, size)
        self.landings.append(FakeLanding(reply, out))
        return self.landings[-1]

    def write_from(self, address: int, lane: Lane, flags: int, data: memoryview) -> int:
        self.send(Op.COPY_HTOD, address, lane.handle, flags, data=bytes(data))
        self._count(lane, len(data))
        return 0

    def new_handle(self) -> int:
        with self._lock:
            return self._handles.take()

    def bind(self, context: int) -> None:
        self._bound.context = context

    def take_deferred(self, context: int) -> int:
        late = self.deferred.get(context)
        return late.pop(0) if late else 0

    def sticky(self) -> int:
        return self.poison

    def close(self, end: bool = False) -> None:
        self.closed = True

    # -- the model ---------------------------------------------------------------------

    def _run(self, record: bytes) -> Reply:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        [(codec, args, tail)] = CallStream(record)
        data = None if tail is None else bytes(tail)
        self.calls.append((codec.op, args, data))
        result = self.fail_next.pop(codec.op, 0)
        if result:
            return Reply(result)
        handler = getattr(self, f"_on_{codec.op.name.lower()}", None)
        return (handler(*args, data) if handler else None) or Reply(0)

    def bytes_at(self, address: int, size: int) -> memoryview:
        """Return device memory."""
        for base, block in self.memory.items():
            if base <= address and address + size <= base + len(block):
                return memoryview(block)[address - base : address - base + size]
        raise AssertionError(f"{address:#x} + {size} is no device memory")

    def _allocate(self, size: int) -> int:
        reuse = self._freed.get(size)
        address = reuse.pop() if reuse else self._next_address
        if address == self._next_address:
            self._next_address += -(-size // 512) * 512
        self.memory[address] = bytearray(size)
        return address

    def _on_mem_alloc(self, size: int, _: None) -> Reply:
        if size > MEMORY:
            return Reply(2)
        return Reply(0, value=self._allocate(size))

    def _on_mem_free(self, address: int, _: None) -> None:
        self._freed.setdefault(len(self.memory.pop(address)), []).append(address)

    def _on_mem_alloc_async(self, size: int, stream: int, _: None) -> Reply:
        return self._on_mem_alloc(size, None)

    def _on_mem_free_async(self, address: int, stream: int, _: None) -> None:
        self._on_mem_free(address, None)

    def _on_mem_info(self, qid: int, _: None) -> Reply:
        used = sum(map(len, self.memory.values()))
        return Reply(0, data=pack_fields(Op.MEM_INFO, MEMORY - used, MEMORY))

    def _on_memset(
        self, address: int, stream: int, count: int, value: int, width: int, flags: int, _: None
    ) -> None:
        self.bytes_at(address, count * width)[:] = value.to_bytes(width, "little") * count

    def _on_copy_htod(self, address: int, stream: int, flags: int, data: bytes) -> None:
        self.bytes_at(address, len(data))[:] = data

    def _on_copy_dtoh(self, address: int, stream: int, size: int, flags: int, _: None) -> Reply:
        return Reply(0, data=bytes(self.bytes_at(address, size)))

    def _on_copy_dtod(
        self, destination: int, source: int, stream: int, size: int, flags: int, _: None
    ) -> None:
        self.bytes_at(destination, size)[:] = bytes(self.bytes_at(source, size))

    def _rows(self, address: int, pitch: int, width: int, count: int) -> list[memoryview]:
        whole = self.bytes_at(address, (count - 1) * pitch + width)
        return [whole[row * pitch : row * pitch + width] for row in range(count)]

    def _on_memset_2d(
        self, address: int, stream: int, pitch: int, columns: int, rows: int, value: int,
        width: int, flags: int, _: None,
    ) -> None:  # fmt: skip
        for row in self._rows(address, pitch, columns * width, rows):
            row[:] = value.to_bytes(width, "little") * columns

    def _on_copy_htod_2d(
        self, address: int, stream: int, pitch: int, width: int, flags: int, data: bytes
    ) -> None:
        for number, row in enumerate(self._rows(address, pitch, width, len(data) // width)):
            row[:] = data[number * width : (number + 1) * width]

    def _on_copy_dtoh_2d(
        self, address: int, stream: int, pitch: int, width: int, rows: int, flags: int, _: None
    ) -> Reply:
        return Reply(0, data=b"".join(self._rows(address, pitch, width, rows)))

    def _on_copy_dtod_2d(
        self, destination: int, source: int, stream: int, to_pitch: int, pitch: int, width: int,
        rows: int, flags: int, _: None,
    ) -> None:  # fmt: skip
        data = [bytes(row) for row in self._rows(source, pitch, width, rows)]
        for row, held in zip(self._rows(destination, to_pitch, width, rows), data, strict=True):
            row[:] = held

    def _on_ctx_set_limit(self, limit: int, value: int, _: None) -> Reply:
        self._limits[self.bound, limit] = value
        return Reply(0, value)

    def _on_ctx_get_limit(self, qid: int, limit: int, _: None) -> Reply:
        value = self._limits.get((self.bound, limit), 1024)
        return Reply(0, data=pack_fields(Op.CTX_GET_LIMIT, value))

    def _on_module_load(self, handle: int, data: bytes) -> Reply:
        try:
            info = json.loads(data)
        except ValueError:
            return Reply(218)
        info["globals"] = [
            {"name": name, "address": self._allocate(size), "size": size}
            for name, size in info["globals"].items()
        ]
        return Reply(0, data=json.dumps(info).encode())

    def _on_library_load(self, handle: int, module: int, data: bytes) -> Reply:
        self._libraries[handle] = data
        return self._on_module_load(module, data)

    def _on_library_module(self, handle: int, library: int, _: None) -> Reply:
        return self._on_module_load(handle, self._libraries[library])

    def _on_link(self, handle: int, data: bytes) -> Reply:
        inputs = link_inputs.unpack(data)
        assert inputs is not None
        self._linked[handle] = b"+".join(part.data for part in inputs)
        return Reply(0, handle, pack_fields(Op.LINK, len(self._linked[handle])))

    def _on_link_read(
        self, qid: int, handle: int, image: int, offset: int, size: int, _: None
    ) -> Reply:
        assert image == handle
        return Reply(0, data=self._linked[handle][offset : offset + size])

    def _on_link_destroy(self, handle: int, _: None) -> None:
        del self._linked[handle]

    def _on_occupancy(
        self, qid: int, function: int, block_size: int, flags: int, shared: int, _: None
    ) -> Reply:
        used = max(block_size * 2, shared // 32)
        return Reply(0, data=pack_fields(Op.OCCUPANCY, 2048 // used))

    def _on_occupancy_shared(
        self, qid: int, function: int, block_size: int, blocks: int, _: None
    ) -> Reply:
        return Reply(0, data=pack_fields(Op.OCCUPANCY_SHARED, 65536 // blocks))

    def _on_function_get(self, handle: int, module: int, data: bytes) -> None:
        self._functions[handle] = data.decode()

    def _on_launch(self, function: int, *rest: Any) -> None:
        name = self._functions[function]
        if name in self.kernels:
            self.kernels[name](self, rest[-1])

    def _on_event_record(self, event: int, stream: int, flags: int, _: None) -> None:
        self._events[event] = len(self._events)

    def _on_event_elapsed(self, qid: int, start: int, end: int, _: None) -> Reply:
        elapsed = float(self._events[end] - self._events[start])
        return Reply(0, data=pack_fields(Op.EVENT_ELAPSED, elapsed))
