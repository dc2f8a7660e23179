"""Memory in the order of streams is memory of the session: it comes back where it was."""

from __future__ import annotations

import random
from pathlib import Path

from helpers.program import Program, ok, running
from helpers.program_process import ProgramProcess
from helpers.server_process import ServerProcess

from outlast.shim import driver as cuda

SIZES = (16, 5000, 70_000, 3 << 20)


class History:
    """Allocations and frees of all kinds in some streams, and what is left of them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.chance = random.Random(22)
        self.streams = [0, program.stream(0), program.stream(1), program.stream(1)]
        #: Address -> contents.
        self.live: dict[int, bytes] = {}

    def go_on(self, steps: int) -> None:
        """Allocate or free, in a stream or not."""
        program, chance = self.program, self.chance
        for _ in range(steps):
            stream = chance.choice(self.streams)
            if len(self.live) < 8 or chance.random() < 0.5:
                data = chance.randbytes(chance.choice(SIZES))
                plain = chance.random() < 0.25
                size = len(data)
                address = program.alloc(size) if plain else program.alloc_in(stream, size)
                for other, held in self.live.items():
                    assert address + size <= other or other + len(held) <= address
                ok(cuda.cuMemcpyHtoDAsync(address, data, size, 0 if plain else stream))
                self.live[address] = data
            else:
                address = chance.choice(sorted(self.live))
                del self.live[address]
                # All its uses are behind us.
                program.sync()
                if chance.random() < 0.25:
                    program.free(address)
                else:
                    program.free_in(stream, address)
        program.sync()

    def check(self) -> None:
        """Everything is where it was, with what was in it."""
        self.program.sync()
        for address, data in self.live.items():
            assert ok(cuda.cuMemGetAddressRange(address)) == (address, len(data))
            assert self.program.read(address, len(data)) == data


def test_replay_after_a_kill_imposes_the_addresses(server: ServerProcess, program: Program) -> None:
    history = History(program)
    history.go_on(120)
    for _ in range(2):
        server.kill()
        server.start()
        history.check()
        history.go_on(20)
    history.check()
    assert program.link.statistics()["replayed_calls"] > 240


def test_checkpoint_and_replay_behind_it_bring_the_same_memory_back(
    server: ServerProcess, program: Program
) -> None:
    history = History(program)
    history.go_on(60)
    program.checkpoint(server.state)
    history.go_on(60)
    server.kill()
    server.start()
    history.check()
    assert server.terminate() == 0  # everything is in the last checkpoint now
    server.start()
    history.check()
    history.go_on(20)
    history.check()


def test_worker_that_dies_in_the_middle_of_a_streams_work_is_followed_by_one_that_knows_it(
    server: ServerProcess, program: Program
) -> None:
    kernel, _ = program.new_tape()
    stream = program.stream(1)
    target = program.alloc_in(stream, 8)
    scratch = program.alloc_in(stream, 1 << 20)
    for digit in (1, 2, 3):
        program.launch(kernel, (("pointer", target), ("u32", digit)), stream)
    program.free_in(stream, scratch)
    server.kill_workers()
    program.sync()  # nothing else orders the copy behind the stream's work
    assert program.number(target) == 123
    assert program.alloc_in(stream, 1 << 20) == scratch
    program.launch(kernel, (("pointer", target), ("u32", 4)), stream)
    ok(cuda.cuStreamSynchronize(stream))
    assert program.number(target) == 1234


def test_new_process_uses_and_frees_what_the_dead_one_allocated(
    server: ServerProcess, tmp_path: Path
) -> None:
    state = tmp_path / "client"
    with ProgramProcess(server.endpoint, "train", state) as client:
        stream = client.call("stream", 1)
        address = client.call("alloc_in", stream, 64)
        client.call("sync")  # it is zeroed there, and written in another stream
        client.call("write", address, b"left behind")
        client.call("checkpoint_of", str(server.state))
        client.kill()
    server.kill()
    server.start()
    with running(server.endpoint, "train", state) as program:
        assert program.read(address, 11) == b"left behind"
        program.free_in(stream, address)
        assert program.alloc_in(stream, 64) == address
        pool = ok(cuda.cuDeviceGetDefaultMemPool(0))
        used = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        assert ok(cuda.cuMemPoolGetAttribute(pool, used)) == 64
