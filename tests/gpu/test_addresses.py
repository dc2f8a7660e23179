"""Addresses that CUDA chooses, of functions and variables, and that programs keep (E8).

A session's own allocations are where they were by construction. Code and module variables are
where CUDA puts them, so each way back is tried: what the program kept must be right, or the
restore refused.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import kernels, ptx
from helpers.keeper import keeper_pids
from helpers.program import Program, ok, running
from helpers.server_process import ServerProcess, kill

from outlast.shim import driver as cuda

FOLDER = Path(__file__).resolve().parents[1] / "kernels"
CALLS, MIXING = ((FOLDER / name).read_text() for name in ("calls.ptx", "mixing.ptx"))
#: A restore, and a replay, of a module whose variables would lie elsewhere.
REFUSALS = ("do not come back to their addresses", "came back with other functions or addresses")


@pytest.fixture
def server(tmp_path: Path, device: str) -> Iterator[ServerProcess]:
    state = tmp_path / "state"
    arguments = ["--checkpoint-interval", "0"]
    with ServerProcess(state, arguments, {"OUTLAST_DEVICE": device}) as started:
        yield started
    for pid in keeper_pids(state):
        kill(pid)


class Caller:
    """Calls functions through addresses: of its own memory, and of a module's variable."""

    def __init__(self, program: Program) -> None:
        self.program = program
        module = program.load(CALLS)
        self.keep, self.call, self.call_table = (
            program.kernel(module, name) for name in ("keep", "call", "call_table")
        )
        self.variable = program.variable(module, "table")
        self.kept, self.out = program.alloc(16), program.alloc(12)
        program.launch(self.keep, (("pointer", self.kept),))
        self.addresses = program.read(self.kept, 16)
        self.module = module
        self.calls = 0

    def check(self) -> None:
        """The addresses that were kept lead where they did, and no other ones are given now."""
        program, out = self.program, self.out
        self.calls += 1
        program.launch(self.call, (("pointer", self.kept), ("pointer", out), ("u32", 7)))
        # The last number is counted in a variable that no call can name.
        assert struct.unpack("<3I", program.read(out, 12)) == (14, 22, self.calls)
        program.launch(self.call_table, (("pointer", out), ("u32", 9)))
        assert struct.unpack("<2I", program.read(out, 8)) == (18, 28)
        again = program.alloc(16)
        program.launch(self.keep, (("pointer", again),))
        assert program.read(again, 16) == self.addresses
        assert program.read(self.variable[0], 16) == self.addresses
        assert program.variable(self.module, "table") == self.variable
        program.free(again)


def restore(server: ServerProcess, program: Program) -> None:
    program.checkpoint(server.state)
    server.kill()
    server.start()


def replay(server: ServerProcess, program: Program) -> None:
    server.kill_workers()


def stop(server: ServerProcess, program: Program) -> None:
    assert server.terminate() == 0
    server.start()


def hand_over(server: ServerProcess, program: Program) -> None:
    os.kill(server.pid, signal.SIGUSR2)
    assert server.wait() == 0
    server.start()


@pytest.mark.parametrize("way", [restore, replay, stop, hand_over])
def test_functions_are_called_through_the_addresses_that_a_program_has_kept(
    server: ServerProcess, program: Program, way: Callable[[ServerProcess, Program], None]
) -> None:
    caller = Caller(program)
    caller.check()
    for _ in range(2):
        way(server, program)
        caller.check()


@pytest.mark.parametrize("way", [restore, replay, hand_over])
def test_variables_stay_where_they_are_whatever_else_this_worker_has_needed(
    server: ServerProcess, program: Program, way: Callable[[ServerProcess, Program], None]
) -> None:
    """Waits, copies, saves and whatever is gone again come before the modules."""
    gone = [program.stream(1) for _ in range(8)]
    memory, host = program.alloc(64 << 20), ok(cuda.cuMemAllocHost(64 << 20))
    for stream in gone:
        ok(cuda.cuMemcpyDtoHAsync(host, memory, 64 << 20, stream))
        ok(cuda.cuStreamSynchronize(stream))
        ok(cuda.cuStreamDestroy(stream))
    program.checkpoint(server.state)
    caller = Caller(program)
    listing = program.load(ptx.LIST)
    offset = program.variable(listing, "offset")
    program.write(offset[0], (1000).to_bytes(8, "little"))
    for _ in range(2):
        way(server, program)
        caller.check()
        assert program.variable(listing, "offset") == offset
        assert program.read(offset[0], 8) == (1000).to_bytes(8, "little")


@pytest.mark.parametrize("way", [restore, replay, hand_over])
def test_modules_of_a_session_with_a_long_history_are_right_or_refused(
    server: ServerProcess,
    tmp_path: Path,
    way: Callable[[ServerProcess, Program], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The next worker loads only what is there still, and in no worker's order but its own."""
    with running(server.endpoint, "old", tmp_path / "client", reconnect_timeout=15.0) as program:
        gone = [program.load(text) for text in (MIXING, ptx.LIST, CALLS, kernels.PTX)]
        for module in gone[:2]:
            ok(cuda.cuModuleUnload(module))
        program.free(program.alloc(40 << 20))
        caller = Caller(program)
        linger = program.kernel(gone[3], "linger")
        program.launch(linger, (("u64", int(2e8)),))
        for module in gone[2:]:
            ok(cuda.cuModuleUnload(module))
        listing = program.load(ptx.LIST)
        offset = program.variable(listing, "offset")
        program.write(offset[0], (1000).to_bytes(8, "little"))
        caller.check()
        way(server, program)
        if cuda.cuCtxSynchronize()[0] == cuda.CUresult.CUDA_SUCCESS:
            caller.check()
            assert program.variable(listing, "offset") == offset
            assert program.read(offset[0], 8) == (1000).to_bytes(8, "little")
            outcome = "restored"
        else:
            log = server.log_text()
            assert any(reason in log for reason in REFUSALS)
            outcome = "refused, as its variables would have moved"
        with capsys.disabled():
            print(f"\na session with a history is {outcome}")
