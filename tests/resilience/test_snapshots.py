"""An epoch holds what the calls before it have made, and nothing of those behind it (E3)."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from pathlib import Path

import numpy as np
import pytest
from helpers.program import Program, epochs_of, ok, running
from helpers.server_process import DEADLINE, DEVICE, ServerProcess, assert_eventually

from outlast.checkpoint_providers import open_provider
from outlast.session.rows import EpochRow
from outlast.shim import driver as cuda

SIZE = {"cuda": 256 << 20, "emulated": 2 << 20}[DEVICE]  # bytes of each buffer
CUTS = 6
BLOCK = 256  # threads
#: Steps in the device's queue at a time.
QUEUE = 20

#: ``bump(u32 *a, u32 *b)`` adds 1 to a word of each: a launch that is lost, repeated or caught in
#: the middle shows for ever.
PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry bump(.param .u64 a, .param .u64 b)
{
    .reg .u64 %rd<6>;
    .reg .u32 %r<6>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %rd3, %r4, 4;
    add.u64 %rd4, %rd1, %rd3;
    add.u64 %rd5, %rd2, %rd3;
    ld.global.u32 %r5, [%rd4];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%rd4], %r5;
    ld.global.u32 %r5, [%rd5];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%rd5], %r5;
    ret;
}
"""


class Twins:
    """Two buffers that each step changes alike, one by a kernel and a fill by the next."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kernel = program.kernel(program.load(PTX), "bump")
        self.a, self.b = program.alloc(SIZE), program.alloc(SIZE)
        self.filled = program.alloc(SIZE)
        self.stream = program.stream(1)
        program.sync()  # the stream does not wait for the fills of fresh memory
        #: Seq of each kernel, and of each fill.
        self.bumps: list[int] = []
        self.fills: list[int] = []

    def step(self) -> None:
        """Enqueue a kernel and a fill; nothing waits for them."""
        values = (self.a, self.b), (ctypes.c_void_p, ctypes.c_void_p)
        blocks = SIZE // 4 // BLOCK
        ok(cuda.cuLaunchKernel(self.kernel, blocks, 1, 1, BLOCK, 1, 1, 0, self.stream, values, 0))
        self.bumps.append(self.program.link.next_seq - 1)
        value = len(self.bumps)
        ok(cuda.cuMemsetD32Async(self.filled, value, SIZE // 4, self.stream))
        self.fills.append(self.program.link.next_seq - 1)

    def steps(self) -> None:
        """Fill the queue, and let it run down."""
        for _ in range(QUEUE):
            self.step()
        ok(cuda.cuStreamSynchronize(self.stream))

    def at(self, seq: int) -> dict[int, int]:
        """Return what the words of each buffer are behind a call."""
        bumps, fills = bisect_right(self.bumps, seq), bisect_right(self.fills, seq)
        return {self.a: bumps, self.b: bumps, self.filled: fills}


def assert_stored(state: Path, row: EpochRow, expected: dict[int, int]) -> None:
    """Check every word that an epoch has of some buffers."""
    provider = open_provider("directory", state)
    with provider.open(row.location, row.digest) as reader:
        regions = {region.key: region for region in reader.manifest.regions}
        for address, value in expected.items():
            words = np.frombuffer(reader.read(regions[f"0:{address:#x}:alloc"]), np.uint32)
            assert (words == value).all(), (row.seq, value, np.unique(words))
    provider.close()


def newest(state: Path) -> EpochRow | None:
    """Return the newest epoch."""
    return next(iter(epochs_of(state, "train")), None)


@pytest.mark.timeout(120)
def test_each_epoch_is_a_cut_through_work_that_goes_on(tmp_path: Path) -> None:
    # However slow the machine is: the queue that an epoch waits for is short.
    arguments = ["--checkpoint-interval", "0", "--epoch-deadline", "20"]
    with ServerProcess(tmp_path / "state", arguments) as server:
        check_cuts(server, tmp_path)


def check_cuts(server: ServerProcess, tmp_path: Path) -> None:
    """Take epochs while work goes on, and restore the last one."""
    seqs = []
    with running(server.endpoint, "train", tmp_path / "client") as program:
        twins = Twins(program)
        for number in range(CUTS):
            for _ in range(1 + number):  # behind a queue of some length
                twins.step()
            program.link.request_epoch()

            def taken() -> bool:
                twins.steps()
                row = newest(server.state)
                return row is not None and row.seq not in seqs

            assert_eventually(taken, "the epoch is there", DEADLINE)
            row = newest(server.state)
            assert row is not None
            seqs.append(row.seq)
            twins.steps()
            assert_stored(server.state, row, twins.at(row.seq))
        assert seqs == sorted(set(seqs))
    # What was done behind it dies with client and server: a new program finds the cut.
    expected = twins.at(seqs[-1])
    server.kill()
    server.start()
    with running(server.endpoint, "train", tmp_path / "client") as program:
        for address, value in expected.items():
            words = np.frombuffer(program.read(address, SIZE), np.uint32)
            assert (words == value).all(), (value, np.unique(words))
