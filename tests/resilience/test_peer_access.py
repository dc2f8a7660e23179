"""Devices that use each other's memory, and what becomes of that when something dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ptx
from helpers.keeper import keeper_pids
from helpers.program import Program, ok, running
from helpers.server_process import ServerProcess, assert_eventually, kill

from outlast.shim import driver as cuda

ILLEGAL_ADDRESS = (cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)
ALREADY = (cuda.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,)
SIZE = 5000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    arguments = ["--checkpoint-interval", "0", "--emulated-devices", "2"]
    with ServerProcess(tmp_path / "state", arguments) as started:
        yield started
    for pid in keeper_pids(tmp_path / "state"):
        kill(pid)
    assert_eventually(lambda: not keeper_pids(tmp_path / "state"), "the keeper ends")


class Pair:
    """A kernel on the second device, and numbers on the first."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.first, self.second = (int(ok(cuda.cuDevicePrimaryCtxRetain(n))) for n in range(2))
        self.enter(self.first)
        self.near = self.number(5)
        self.enter(self.second)
        self.own = program.alloc(8)
        self.total = program.kernel(program.load(ptx.LIST), "total")

    def enter(self, context: int) -> None:
        ok(cuda.cuCtxSetCurrent(context))

    def number(self, value: int) -> int:
        """Return a list of one number in the current context's memory."""
        address = self.program.alloc(16)
        self.program.write(address, bytes(8) + value.to_bytes(8, "little"))
        return address

    def add_up(self, address: int) -> int:
        """Have the second device read a list; the kernel adds the 5 of its own module."""
        self.enter(self.second)
        parameters = (("pointer", address), ("pointer", self.own))
        self.program.launch(self.total, parameters)
        return self.program.number(self.own) - 5

    def enable(self) -> tuple[int]:
        self.enter(self.second)
        return cuda.cuCtxEnablePeerAccess(self.first, 0)


@pytest.fixture
def pair(server: ServerProcess, tmp_path: Path) -> Iterator[Pair]:
    with running(server.endpoint, "train", tmp_path / "client") as program:
        yield Pair(program)


def test_a_kernel_that_was_not_let_cannot_use_anothers_memory(pair: Pair) -> None:
    pair.enter(pair.second)
    parameters = (("pointer", pair.near), ("pointer", pair.own))
    pair.program.launch(pair.total, parameters)
    assert cuda.cuCtxSynchronize() == ILLEGAL_ADDRESS


def test_a_kernel_that_was_let_uses_what_is_there_and_what_comes(pair: Pair) -> None:
    assert ok(cuda.cuDeviceCanAccessPeer(1, 0)) == 1
    ok(pair.enable())
    assert pair.enable() == ALREADY
    assert pair.add_up(pair.near) == 5
    pair.enter(pair.first)
    later = pair.number(6)
    assert pair.add_up(later) == 6
    ok(cuda.cuCtxDisablePeerAccess(pair.first))
    parameters = (("pointer", pair.near), ("pointer", pair.own))
    pair.program.launch(pair.total, parameters)
    assert cuda.cuCtxSynchronize() == ILLEGAL_ADDRESS


@pytest.mark.parametrize("way", ["from its log", "from an epoch", "handed over"])
def test_access_is_there_again_behind_a_restart(
    server: ServerProcess, pair: Pair, way: str
) -> None:
    ok(pair.enable())
    if way == "from an epoch":
        pair.program.checkpoint(server.state)
    assert pair.add_up(pair.near) == 5
    if way == "handed over":
        assert server.process is not None
        server.process.send_signal(signal.SIGUSR2)
        assert server.wait() == 0
    else:
        server.kill()
    server.start()
    assert pair.add_up(pair.near) == 5
    pair.enter(pair.first)
    assert pair.add_up(pair.number(9)) == 9
    assert pair.enable() == ALREADY


def test_a_new_program_finds_the_access_that_the_dead_one_had(
    server: ServerProcess, tmp_path: Path
) -> None:
    with running(server.endpoint, "train", tmp_path / "client") as program:
        made = Pair(program)
        ok(made.enable())
        assert made.add_up(made.near) == 5
    with running(server.endpoint, "train", tmp_path / "client") as program:
        made.program = program
        assert made.enable() == ALREADY
        assert made.add_up(made.near) == 5
        ok(cuda.cuCtxDisablePeerAccess(made.first))


def test_copies_go_from_device_to_device_in_order(pair: Pair) -> None:
    """Without access: the copy itself needs none."""
    program, data = pair.program, os.urandom(SIZE)
    pair.enter(pair.first)
    source, stream = program.alloc(SIZE), program.stream(1)
    pair.enter(pair.second)
    target, beside = program.alloc(SIZE), program.stream(1)
    pair.enter(pair.first)
    program.write(source, data)
    ok(cuda.cuMemcpyPeerAsync(target, pair.second, source, pair.first, SIZE, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert program.read(target, SIZE) == data
    # Nothing runs beside the other form, whatever its stream.
    ok(cuda.cuMemsetD8Async(source, 7, SIZE, stream))
    ok(cuda.cuMemcpyPeer(target, pair.second, source, pair.first, SIZE))
    pair.enter(pair.second)
    out = bytearray(SIZE)
    ok(cuda.cuMemcpyDtoHAsync(out, target, SIZE, beside))
    assert bytes(out) == bytes([7]) * SIZE
