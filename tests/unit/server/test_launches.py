"""Launches that the executor knows already are made as it made the first of their kind."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import pytest
from helpers.fake_gpu import CONTEXT, FUNCTION, FakeGpu

from outlast.errors import ProtocolError
from outlast.server.drivers.cuda import CudaDriver
from outlast.server.executor import Executor
from outlast.session import wire
from outlast.session.host import HostSession
from outlast.session.ids import primary_context
from outlast.session.operations import Op
from outlast.session.schema import HANDLE_FIRST, HANDLE_STEP, ReplyKind
from outlast.session.wire import Reply, pack_record

MODULE, KERNEL, STREAM, OTHER, CONTEXT_2, MORE = range(
    HANDLE_FIRST, HANDLE_FIRST + 6 * HANDLE_STEP, HANDLE_STEP
)
BIND = pack_record(Op.BIND, 1, primary_context(0))
INSIDE = pack_record(Op.BIND, 1, CONTEXT_2)
INVALID_VALUE, INVALID_HANDLE, LAUNCH_FAILED = 1, 400, 719


def launch(parameter: int, stream: int = STREAM, kernel: int = KERNEL, grid: int = 1) -> bytes:
    data = parameter.to_bytes(8, "little")
    return pack_record(Op.LAUNCH, kernel, stream, grid, 2, 3, 4, 5, 6, 7, data=data)


class Gpu(FakeGpu):
    """Notes what is launched, and what the executor says of it meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[Any] = []
        #: Seq and operation that the shared page names.
        self.issued: list[tuple[int, int]] = []
        self.page = [0, 0]
        #: Results of the launches to come; then all go well.
        self.results: list[int] = []
        self.current = 0
        self.order: list[str] = []

    def cuCtxSetCurrent(self, context: int) -> tuple[int]:
        self.current = context
        return (0,)

    def cuEventRecord(self, event: int, stream: int) -> tuple[int]:
        self.order.append("record")
        return (0,)

    def cuLaunchKernel(self, function: int, *rest: Any) -> tuple[int]:
        *shape, stream, pointers, _ = rest
        address = ctypes.c_void_p.from_address(pointers).value or 0
        parameter = ctypes.c_uint64.from_address(address).value
        self.launched.append((function, tuple(shape), stream, self.current, parameter))
        self.order.append("launch")
        self.issued.append((self.page[0], self.page[1]))
        return (self.results.pop(0) if self.results else 0,)

    @property
    def parameters(self) -> list[int]:
        return [parameter for *_, parameter in self.launched]


class Bench:
    """A worker's executor with a kernel and two streams, on a GPU that takes notes."""

    def __init__(self) -> None:
        self.gpu = Gpu()
        self.driver = CudaDriver(cuda=self.gpu)
        self.executor = Executor(self.driver, HostSession(), self.gpu.page)
        self.host = self.executor.host
        self.host.peer = b"client"
        self.run(
            pack_record(Op.PRIMARY_RETAIN, 0),
            BIND,
            pack_record(Op.MODULE_LOAD, MODULE, data=b"image"),
            pack_record(Op.FUNCTION_GET, KERNEL, MODULE, data=b"empty"),
            pack_record(Op.STREAM_CREATE, STREAM, 1, 0),
            pack_record(Op.STREAM_CREATE, OTHER, 1, 0),
        )
        self.replies()

    def run(self, *records: bytes, count: int | None = None, skip: int = 0, **more: Any) -> None:
        """Run a batch behind what is applied; BINDs are no calls."""
        calls = sum(record[0] != Op.BIND for record in records) if count is None else count
        first = self.host.applied + 1 - skip
        self.executor.run(first, calls, skip, b"".join(records), more.get("payloads", []))

    def replies(self) -> list[Reply]:
        """Return what the client is told."""
        self.executor.settle()
        frames = self.host.take_replies(idle=False)
        return list(wire.iter_replies(wire.parse_message(frames).frames[0])) if frames else []

    def failures(self) -> list[tuple[int, int]]:
        """Return seq and result of each late failure."""
        return [(r.number, r.result) for r in self.replies() if r.kind == ReplyKind.DEFERRED]


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.driver.close()


def test_each_launch_has_its_own_parameters_and_is_named_while_it_is_made(bench: Bench) -> None:
    first = bench.host.applied + 1
    bench.run(BIND, *(launch(n) for n in range(5)))
    bench.run(BIND, *(launch(n) for n in range(5, 9)))
    assert bench.gpu.parameters == list(range(9))
    assert len({call[:-1] for call in bench.gpu.launched}) == 1
    assert bench.gpu.launched[0][:2] == (FUNCTION, (1, 2, 3, 4, 5, 6, 7))
    assert bench.gpu.issued == [(first + n, Op.LAUNCH) for n in range(9)]
    assert bench.host.applied == bench.executor.seq == first + 8
    assert bench.gpu.page[1] == 0
    assert bench.replies() == []


def test_launches_that_differ_in_any_way_are_told_apart(bench: Bench) -> None:
    several = [launch(1), launch(2, stream=OTHER), launch(3, grid=9), launch(4, stream=0)]
    bench.run(BIND, *several, *several)
    calls = bench.gpu.launched
    assert calls[:4] == calls[4:]
    assert len(set(calls)) == 4


def test_other_calls_keep_their_place_between_launches(bench: Bench) -> None:
    order = bench.gpu.order
    record = pack_record(Op.EVENT_RECORD, MORE, STREAM, 0)
    bench.run(BIND, pack_record(Op.EVENT_CREATE, MORE, 0), launch(0))
    order.clear()
    bench.run(BIND, launch(1), record, launch(2), launch(3), record, launch(4))
    assert order == ["launch", "record", "launch", "launch", "record", "launch"]


@pytest.mark.parametrize(
    "gone",
    [
        pack_record(Op.STREAM_DESTROY, STREAM),
        pack_record(Op.MODULE_UNLOAD, MODULE),
        pack_record(Op.PRIMARY_RELEASE, 0),
        pack_record(Op.PRIMARY_RESET, 0),
    ],
    ids=["stream", "module", "context", "state of the context"],
)
def test_what_is_gone_is_not_launched_again(bench: Bench, gone: bytes) -> None:
    bench.run(BIND, launch(1), launch(2))
    bench.run(BIND, launch(3), gone, launch(4), launch(5))
    assert bench.gpu.parameters == [1, 2, 3]
    last = bench.host.applied
    assert bench.failures() == [(last - 1, INVALID_HANDLE), (last, INVALID_HANDLE)]


def test_the_legacy_stream_is_that_of_the_bound_context(bench: Bench) -> None:
    bench.run(BIND, pack_record(Op.CTX_CREATE, CONTEXT_2, 0, 0))
    legacy = launch(1, stream=0)
    bench.run(BIND, legacy, legacy)
    assert not bench.driver._contexts[bench.gpu.made].legacy.dirty
    bench.run(INSIDE, legacy, legacy)
    assert bench.driver._contexts[bench.gpu.made].legacy.dirty
    bench.run(BIND, legacy)
    contexts = [call[3] for call in bench.gpu.launched]
    assert contexts == [CONTEXT, CONTEXT, bench.gpu.made, bench.gpu.made, CONTEXT]


def test_a_known_launch_that_fails_is_reported_once_and_the_next_go_on(bench: Bench) -> None:
    bench.run(BIND, launch(0))
    bench.gpu.results = [0, INVALID_VALUE]
    bench.run(BIND, *(launch(n) for n in range(1, 5)))
    assert bench.gpu.parameters == [0, 1, 2, 3, 4]
    assert bench.failures() == [(bench.host.applied - 2, INVALID_VALUE)]
    assert bench.failures() == []


def test_a_fault_that_a_known_launch_shows_ends_launching_and_names_the_one_before(
    bench: Bench,
) -> None:
    bench.run(BIND, launch(0))
    bench.gpu.results = [0, LAUNCH_FAILED]
    bench.run(BIND, *(launch(n) for n in range(1, 5)))
    assert bench.gpu.parameters == [0, 1, 2]
    assert bench.executor.poisoned == LAUNCH_FAILED
    assert bench.failures() == [(bench.host.applied - 3, LAUNCH_FAILED)]


def test_repeated_launches_are_skipped_one_by_one(bench: Bench) -> None:
    bench.run(BIND, launch(1), launch(2), launch(3))
    bench.run(BIND, *(launch(n) for n in range(2, 6)), skip=2)
    assert bench.gpu.parameters == [1, 2, 3, 4, 5]


def test_a_recorded_failure_is_imposed_among_known_launches(bench: Bench) -> None:
    bench.run(BIND, launch(1), launch(2))
    failed = pack_record(Op.OUTCOME, bench.host.applied + 2, INVALID_VALUE, 0)
    bench.run(BIND, launch(3), failed, launch(4), launch(5), count=3)
    assert bench.gpu.parameters == [1, 2, 3, 5]
    assert bench.replies() == []


@pytest.mark.parametrize("end", [1, 9, 52, 59])
def test_a_known_launch_that_ends_too_early_is_refused(bench: Bench, end: int) -> None:
    bench.run(BIND, launch(1))
    applied = bench.host.applied
    with pytest.raises(ProtocolError):
        bench.run(BIND, launch(2), launch(3)[:end], count=2)
    assert bench.gpu.parameters == [1, 2]
    assert bench.host.applied == applied + 1


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_a_batch_of_more_or_less_known_launches_than_it_says_is_refused(
    bench: Bench, count: int
) -> None:
    bench.run(BIND, launch(0))
    applied = bench.host.applied
    with pytest.raises(ProtocolError, match=f"a batch of {count} calls holds"):
        bench.run(BIND, launch(1), launch(2), launch(3), count=count)
    assert bench.host.applied == applied + min(count, 3)
    assert bench.gpu.parameters == list(range(min(count, 3) + 1))


def test_parameters_in_a_frame_of_their_own_are_not_looked_for_behind_the_record(
    bench: Bench,
) -> None:
    far = pack_record(Op.LAUNCH, KERNEL, STREAM, 1, 2, 3, 4, 5, 6, 7, payload=True)
    frames = [n.to_bytes(8, "little") for n in range(3)]
    bench.run(BIND, far, far, launch(5), far, launch(6), payloads=frames)
    assert bench.gpu.parameters == [0, 1, 5, 2, 6]


def test_a_kernel_gets_no_more_parameters_than_it_has(bench: Bench) -> None:
    long = pack_record(
        Op.LAUNCH, KERNEL, STREAM, *[1] * 7, data=(7).to_bytes(8, "little") + b"more"
    )
    short = pack_record(Op.LAUNCH, KERNEL, STREAM, *[1] * 7, data=bytes(4))
    bench.run(BIND, long, long, short, short)
    assert bench.gpu.parameters == [7, 7]
    last = bench.host.applied
    assert bench.failures() == [(last - 1, INVALID_VALUE), (last, INVALID_VALUE)]


def test_a_program_that_varies_its_launches_without_end_is_served(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.server.launches.MOST", 8)
    grids = list(itertools.chain(range(1, 30), range(1, 30)))
    bench.run(BIND, *(launch(grid, grid=grid) for grid in grids))
    assert bench.gpu.parameters == grids
    assert len(bench.executor.launches._known) <= 8


def test_work_of_ordered_streams_is_marked_before_a_known_launch_comes_behind_it(
    bench: Bench,
) -> None:
    bench.run(BIND, pack_record(Op.STREAM_CREATE, MORE, 0, 0))
    mine, legacy = launch(1, stream=MORE), launch(2, stream=0)
    bench.run(BIND, mine, legacy, mine, legacy)
    stream = bench.driver._streams[bench.executor.handles.real["stream"][MORE]]
    assert not stream.dirty
    assert stream.mark is not None
    number = stream.mark.number
    bench.run(BIND, mine, legacy)
    assert not stream.dirty
    assert stream.mark.number > number
