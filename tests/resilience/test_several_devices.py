"""Several emulated devices: each with memory of its own, all of it there again after a loss."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.keeper import keeper_pids
from helpers.program import Program, ok, open_link, running, tape_of
from helpers.server_process import DEADLINE, ServerProcess, assert_eventually, kill

from outlast.errors import RestoreFailed, ServerUnreachable
from outlast.shim import driver as cuda

DEVICES = 2
SIZE = (1 << 20) + 4096
INVALID_DEVICE = cuda.CUresult.CUDA_ERROR_INVALID_DEVICE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    arguments = ["--checkpoint-interval", "0", "--emulated-devices", str(DEVICES)]
    with ServerProcess(tmp_path / "state", arguments) as started:
        yield started
    for pid in keeper_pids(tmp_path / "state"):
        kill(pid)
    assert_eventually(lambda: not keeper_pids(tmp_path / "state"), "the keeper ends")


@pytest.fixture
def program(server: ServerProcess, tmp_path: Path) -> Iterator[Program]:
    with running(server.endpoint, "train", tmp_path / "client") as started:
        yield started


@dataclass
class Part:
    """What the program has on one device."""

    device: int
    context: int
    append: int
    tape: int
    bulk: int
    data: bytes
    digits: list[int]


def enter(context: int) -> None:
    """Make a context current in this thread."""
    ok(cuda.cuCtxSetCurrent(context))


def begin(program: Program, device: int) -> Part:
    """Begin on a device: a tape, and bytes that nothing changes."""
    context = int(ok(cuda.cuDevicePrimaryCtxRetain(device)))
    enter(context)
    append, tape = program.new_tape()
    data = os.urandom(SIZE)
    bulk = program.alloc(SIZE)
    program.write(bulk, data)
    return Part(device, context, append, tape, bulk, data, [])


def play(program: Program, part: Part, digit: int) -> None:
    """Append a digit to the tape of a device whose context is current."""
    program.append(part.append, part.tape, [digit])
    part.digits.append(digit)


def look(program: Program, part: Part) -> None:
    """Check everything that is on a device, from its context."""
    enter(part.context)
    assert ok(cuda.cuCtxGetDevice()) == part.device
    assert program.number(part.tape) == tape_of(part.digits)
    assert program.read(part.bulk, SIZE) == part.data


def in_turns(program: Program, parts: list[Part], digits: range) -> None:
    """Append digits on all devices from one thread, a context switch before each."""
    for digit in digits:
        for part in parts:
            enter(part.context)
            play(program, part, (digit + part.device) % 10)


def test_programs_see_each_device(program: Program) -> None:
    assert ok(cuda.cuDeviceGetCount()) == DEVICES
    assert [ok(cuda.cuDeviceGet(n)) for n in range(DEVICES)] == [0, 1]
    assert cuda.cuDeviceGet(DEVICES)[0] == INVALID_DEVICE
    assert cuda.cuDevicePrimaryCtxRetain(DEVICES)[0] == INVALID_DEVICE
    assert len({bytes(ok(cuda.cuDeviceGetUuid(n)).bytes) for n in range(DEVICES)}) == DEVICES
    bus = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
    assert [ok(cuda.cuDeviceGetAttribute(bus, n)) for n in range(DEVICES)] == [0, 1]
    totals = {ok(cuda.cuDeviceTotalMem(n)) for n in range(DEVICES)}
    assert totals == {4 << 30}
    contexts = [ok(cuda.cuDevicePrimaryCtxRetain(n)) for n in range(DEVICES)]
    free = []
    program.alloc(SIZE)
    for context in contexts:
        enter(context)
        free.append(ok(cuda.cuMemGetInfo())[0])
    assert free[0] + SIZE <= free[1] == 4 << 30


def test_allocations_of_each_device_are_in_its_own_arena(program: Program) -> None:
    arenas = [(row["arena_base"], row["arena_size"]) for row in program.link.devices]
    parts = [begin(program, device) for device in range(DEVICES)]
    for part, (base, size) in zip(parts, arenas, strict=True):
        assert base <= part.tape < base + size
        assert base <= part.bulk < base + size
    # As far into its arena on each: addresses are a matter of a device's own calls.
    assert len({part.bulk - base for part, (base, _) in zip(parts, arenas, strict=True)}) == 1
    assert arenas[0][0] + arenas[0][1] <= arenas[1][0]


def test_one_thread_switches_between_contexts(program: Program) -> None:
    parts = [begin(program, device) for device in range(DEVICES)]
    in_turns(program, parts, range(50))
    for part in parts:
        look(program, part)
    # A context's own stack: what lies below is the other device again.
    ok(cuda.cuCtxPushCurrent(parts[0].context))
    assert ok(cuda.cuCtxGetDevice()) == 0
    ok(cuda.cuCtxPopCurrent())
    assert ok(cuda.cuCtxGetDevice()) == 1


def test_each_device_has_threads_of_its_own(program: Program) -> None:
    parts: dict[int, Part] = {}
    errors: list[BaseException] = []

    def work(device: int) -> None:
        try:
            parts[device] = part = begin(program, device)
            for digit in range(50):
                play(program, part, (digit + device) % 10)
                if digit % 10 == 0:
                    assert program.number(part.tape) == tape_of(part.digits)
            look(program, part)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(device,)) for device in range(DEVICES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert not errors
    for part in parts.values():
        look(program, part)


def test_copies_within_a_device(program: Program) -> None:
    parts = [begin(program, device) for device in range(DEVICES)]
    for part in parts:
        enter(part.context)
        target = program.alloc(SIZE)
        ok(cuda.cuMemcpyDtoD(target, part.bulk, SIZE))
        assert program.read(target, SIZE) == part.data
    for part in parts:
        look(program, part)


def test_what_is_freed_on_one_device_stays_on_the_other(program: Program) -> None:
    first, second = (begin(program, device) for device in range(DEVICES))
    enter(first.context)
    program.free(first.bulk)
    program.free(first.tape)
    look(program, second)
    enter(first.context)
    assert program.alloc(8) == first.tape


def test_contexts_beside_the_primary_ones_keep_to_their_device(program: Program) -> None:
    made = [int(ok(cuda.cuCtxCreate(None, 0, device))) for device in range(DEVICES)]
    addresses = []
    for context in made:
        enter(context)
        addresses.append(program.alloc(SIZE))
    for row, address in zip(program.link.devices, addresses, strict=True):
        assert row["arena_base"] <= address < row["arena_base"] + row["arena_size"]
    ok(cuda.cuCtxDestroy(made[0]))
    enter(made[1])
    assert program.read(addresses[1], 8) == bytes(8)


@pytest.mark.parametrize("saved", [False, True], ids=["from its log", "from an epoch"])
def test_all_devices_come_back_after_a_kill(
    server: ServerProcess, program: Program, saved: bool
) -> None:
    parts = [begin(program, device) for device in range(DEVICES)]
    in_turns(program, parts, range(7))
    if saved:
        for part in parts:
            enter(part.context)
            program.sync()
        program.checkpoint(server.state)
    in_turns(program, parts, range(3))
    for part in parts:
        look(program, part)
    server.kill()
    server.start()
    in_turns(program, parts, range(5))
    for part in parts:
        look(program, part)
        # The next allocation goes where it would have gone.
        enter(part.context)
        assert program.alloc(8) - part.tape == parts[0].bulk - parts[0].tape + SIZE


def test_all_devices_come_back_after_sigterm(server: ServerProcess, program: Program) -> None:
    parts = [begin(program, device) for device in range(DEVICES)]
    in_turns(program, parts, range(7))
    assert server.terminate() == 0
    server.start()
    for part in parts:
        look(program, part)
    assert program.link.statistics()["replayed_calls"] == 0


def test_memory_of_all_devices_is_handed_to_the_next_server(
    server: ServerProcess, program: Program
) -> None:
    parts = [begin(program, device) for device in range(DEVICES)]
    for turn in range(2):
        in_turns(program, parts, range(turn + 3))
        assert server.process is not None
        server.process.send_signal(signal.SIGUSR2)
        assert server.wait() == 0
        assert not list((server.state / "checkpoints").rglob("manifest.json"))
        server.start()
        for part in parts:
            look(program, part)
    assert program.link.statistics()["replayed_calls"] == 0


def test_a_new_program_finds_what_is_on_each_device(server: ServerProcess, tmp_path: Path) -> None:
    with running(server.endpoint, "train", tmp_path / "client") as first:
        parts = [begin(first, device) for device in range(DEVICES)]
        in_turns(first, parts, range(4))
        first.sync()
    with running(server.endpoint, "train", tmp_path / "client") as second:
        for part in parts:
            assert ok(cuda.cuDevicePrimaryCtxRetain(part.device)) == part.context
            look(second, part)
            second.free(part.bulk)


def test_a_server_that_lacks_a_device_refuses_the_session_and_keeps_its_epoch(
    server: ServerProcess, tmp_path: Path
) -> None:
    with running(server.endpoint, "train", tmp_path / "client") as program:
        parts = [begin(program, device) for device in range(DEVICES)]
        in_turns(program, parts, range(4))
        program.sync()
    assert server.terminate() == 0
    server.arguments[-1] = "1"
    server.start()
    # Whether the last try got its refusal in time.
    with pytest.raises((ServerUnreachable, RestoreFailed)):
        open_link(server.endpoint, "train", tmp_path / "client", connect_timeout=2.0)
    missing = f"context {parts[1].context:#x} cannot be made again"
    assert_eventually(lambda: missing in server.log_text(), "the server says what it lacks")
    assert server.terminate() == 0
    server.arguments[-1] = str(DEVICES)
    server.start()
    with running(server.endpoint, "train", tmp_path / "client") as later:
        for part in parts:
            ok(cuda.cuDevicePrimaryCtxRetain(part.device))
            look(later, part)
