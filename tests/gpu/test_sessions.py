"""Sessions on the GPU: what a program sees through server and client, whatever dies."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import ptx
from helpers.keeper import held, keeper_pids
from helpers.kernels import PTX
from helpers.program import Program, ok, running
from helpers.program_process import ProgramProcess
from helpers.server_process import ServerProcess, assert_eventually, kill

from outlast.shim import driver as cuda

STRAY = cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
NODES = 300


def test_list_of_device_pointers_is_walked_to_the_same_sum_after_each_restore(
    server: ServerProcess, program: Program
) -> None:
    """E8: programs keep addresses in device memory, so these are the same afterwards."""
    nodes = [program.alloc(16 if index % 3 else 5000) for index in range(NODES)]
    for index, (node, following) in enumerate(zip(nodes, [*nodes[1:], 0], strict=True)):
        program.write(node, following.to_bytes(8, "little") + index.to_bytes(8, "little"))
    big = program.alloc(40 << 20)
    module = program.load(ptx.LIST)
    kernel, out = program.kernel(module, "total"), program.alloc(8)
    variable = program.variable(module, "offset")
    program.write(variable[0], (1000).to_bytes(8, "little"))

    def total() -> int:
        program.launch(kernel, (("pointer", nodes[0]), ("pointer", out)))
        return program.number(out)

    expected = sum(range(NODES)) + 1000
    assert total() == expected
    program.checkpoint(server.state)
    later = program.alloc(100)
    server.kill()
    server.start()
    assert total() == expected
    program.write(later, b"l" * 100)
    assert server.terminate() == 0
    server.start()
    assert total() == expected
    assert program.read(later, 100) == b"l" * 100
    assert program.read(big + (20 << 20), 16) == bytes(16)
    assert program.variable(module, "offset") == variable


def test_memory_is_handed_to_the_next_server_where_it_was(
    server: ServerProcess, program: Program
) -> None:
    """SIGUSR2: nothing is stored and nothing replayed, and addresses and variables are right."""
    sizes = (16, 5000, 3 << 20, 40 << 20, 100 << 20)
    filled = {program.alloc(size): bytes([size % 251]) * 16 for size in sizes}
    for address, data in filled.items():
        program.write(address, data)
    module = program.load(ptx.LIST)
    variable = program.variable(module, "offset")
    program.write(variable[0], (1000).to_bytes(8, "little"))
    for _ in range(3):
        assert server.process is not None
        server.process.send_signal(signal.SIGUSR2)
        assert server.wait() == 0
        server.start()
        for address, data in filled.items():
            assert program.read(address, 16) == data
        assert program.read(variable[0], 8) == (1000).to_bytes(8, "little")
        first = next(iter(filled))
        program.free(first)
        del filled[first]
        filled[program.alloc(6000)] = bytes(16)
    assert program.link.statistics()["replayed_calls"] == 0
    assert not list((server.state / "checkpoints").rglob("manifest.json"))
    for pid in keeper_pids(server.state):
        kill(pid)


@pytest.fixture
def resting(tmp_path: Path, device: str) -> Iterator[ServerProcess]:
    """A server whose sessions are sealed as soon as they are idle."""
    arguments = ["--checkpoint-interval", "0", "--idle-seal", "0.1"]
    environment = {"OUTLAST_DEVICE": device, "LUPINE_EMULATED_MEMORY": str(1 << 30)}
    with ServerProcess(tmp_path / "state", arguments, environment) as started:
        yield started
    for pid in keeper_pids(started.state):
        kill(pid)


def come_to_rest(server: ServerProcess, program: Program) -> int:
    """Wait until all that the program has done is sealed; return the worker's pid."""
    seq = program.link.next_seq - 1
    found: dict[str, Any] = {}

    def sealed() -> bool:
        found.update(held(server.state, "train"))
        return bool(found.get("sealed")) and found["seq"] == seq

    assert_eventually(sealed, "the session is sealed")
    return int(found["holder"])


def test_whatever_is_killed_an_idle_session_goes_on_in_its_memory(
    resting: ServerProcess, tmp_path: Path
) -> None:
    """The worker alone, and everything; nothing is stored, nothing replayed."""
    with running(resting.endpoint, "train", tmp_path / "client") as program:
        sizes = (16, 5000, 3 << 20, 40 << 20, 300 << 20)
        filled = {program.alloc(size): bytes([size % 251]) * 16 for size in sizes}
        for address, data in filled.items():
            program.write(address, data)
        module = program.load(ptx.LIST)
        variable = program.variable(module, "offset")
        program.write(variable[0], (1000).to_bytes(8, "little"))
        kernel, tape = program.new_tape()
        for turn in range(4):
            program.append(kernel, tape, [turn + 1])
            worker = come_to_rest(resting, program)
            if turn % 2:
                resting.kill()
                resting.start()
            else:
                kill(worker)
            for address, data in filled.items():
                assert program.read(address, 16) == data
            assert program.read(variable[0], 8) == (1000).to_bytes(8, "little")
            first = next(iter(filled))
            program.free(first)
            del filled[first]
            filled[program.alloc(6000 << turn)] = bytes(16)
        assert program.number(tape) == 1234
        assert program.link.statistics()["replayed_calls"] == 0
        assert not list((resting.state / "checkpoints").rglob("manifest.json"))


def test_with_work_behind_its_seal_a_session_goes_on_from_its_checkpoint(
    resting: ServerProcess, tmp_path: Path
) -> None:
    with running(resting.endpoint, "train", tmp_path / "client") as program:
        kernel, tape = program.new_tape()
        big = program.alloc(100 << 20)
        program.append(kernel, tape, [1])
        program.checkpoint(resting.state)
        program.append(kernel, tape, [2])
        program.write(big, b"b" * 16)
        worker = come_to_rest(resting, program)
        program.append(kernel, tape, [3])
        program.sync()
        kill(worker)
        program.append(kernel, tape, [4])
        assert program.number(tape) == 1234
        assert program.read(big, 16) == b"b" * 16
        assert program.link.statistics()["replayed_calls"] > 0


@pytest.mark.whole_device
def test_memory_freed_behind_a_seal_is_free_for_everybody(
    resting: ServerProcess, tmp_path: Path
) -> None:
    """The keeper has descriptors of it; with one of them left it would never be free."""
    with (
        running(resting.endpoint, "train", tmp_path / "client") as program,
        ProgramProcess(resting.endpoint, "neighbour", tmp_path / "neighbour") as neighbour,
    ):
        program.alloc(16)  # what a context takes is taken now
        neighbour.call("alloc", 16)
        assert_eventually(lambda: len(resting.workers()) == 3, "the spare worker is there")
        share = int(ok(cuda.cuMemGetInfo())[0]) * 6 // 10
        big = int(ok(cuda.cuMemAlloc(share)))
        come_to_rest(resting, program)
        assert cuda.cuMemAlloc(share)[0] == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        program.free(big)
        assert_eventually(lambda: neighbour.call("free_memory") > share, "the memory is free")
        neighbour.call("free", neighbour.call("alloc", share))
        assert_eventually(lambda: program.free_memory() > share, "the memory is free again")
        big = int(ok(cuda.cuMemAlloc(share)))
        worker = come_to_rest(resting, program)
        ok(cuda.cuMemsetD32(big, 7, share // 4))
        program.sync()
        kill(worker)
        # The next worker needs as much again, which the keeper has to give back before.
        assert program.number(big, 4) == 7
        assert program.link.statistics()["replayed_calls"] > 0


def test_stray_store_ends_one_session_and_leaves_another_alone(
    server: ServerProcess, program: Program, tmp_path: Path
) -> None:
    with ProgramProcess(server.endpoint, "neighbour", tmp_path / "neighbour") as neighbour:
        kernel, target = neighbour.call("new_tape")
        neighbour.call("append", kernel, target, [1])
        ours, address = program.new_tape()
        program.append(ours, address + (1 << 36), [5])
        assert cuda.cuCtxSynchronize() == (STRAY,)
        assert cuda.cuMemAlloc(8) == (STRAY, None)
        neighbour.call("append", kernel, target, [2])
        assert neighbour.call("number", target) == 12


@pytest.mark.whole_device
def test_program_that_runs_out_of_memory_frees_and_goes_on(program: Program) -> None:
    free, total = ok(cuda.cuMemGetInfo())
    assert 0 < free <= total
    assert cuda.cuMemAlloc(total + 1)[0] == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    half = int(ok(cuda.cuMemAlloc(free // 2)))
    more = free // 2 + free // 4
    assert cuda.cuMemAlloc(more)[0] == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    program.free(half)
    program.free(int(ok(cuda.cuMemAlloc(more))))


def test_copies_and_events_of_several_streams_are_right(program: Program) -> None:
    kernel, target = program.new_tape()
    first, second = program.stream(1), program.stream(1)
    start, middle = program.event(), program.event()
    program.record(start, first)
    for digit in (1, 2, 3):
        program.launch(kernel, (("pointer", target), ("u32", digit)), first)
    program.record(middle, first)
    ok(cuda.cuStreamWaitEvent(second, middle, 0))
    program.launch(kernel, (("pointer", target), ("u32", 4)), second)
    data = bytearray(8)
    ok(cuda.cuMemcpyDtoHAsync(data, target, 8, second))
    assert int.from_bytes(data, "little") == 1234
    ok(cuda.cuEventSynchronize(middle))
    assert ok(cuda.cuEventElapsedTime(start, middle)) >= 0
    assert ok(cuda.cuEventQuery(middle)) == ()
    big = bytes(range(256)) * (5 << 12)
    copy = program.alloc(len(big))
    program.write(copy, big)
    assert program.read(copy, len(big)) == big


def test_kernel_that_takes_longer_than_the_heartbeat_is_waited_for(
    tmp_path: Path, device: str
) -> None:
    """E10: silence of the device is not silence of the server."""
    arguments = ["--heartbeat", "0.2", "--heartbeat-timeout", "0.6"]
    with (
        ServerProcess(tmp_path / "state", arguments, {"OUTLAST_DEVICE": device}) as server,
        running(
            server.endpoint,
            "long",
            tmp_path / "client",
            heartbeat=0.2,
            heartbeat_timeout=0.6,
        ) as program,
    ):
        linger = program.kernel(program.load(PTX), "linger")
        target = program.alloc(4)
        program.launch(linger, (("u64", int(2.5e9)),))
        program.write(target, b"done")
        out = (ctypes.c_char * 4)()
        ok(cuda.cuMemcpyDtoH(out, target, 4))
        assert out.raw == b"done"
        assert program.reconnects() == 0
