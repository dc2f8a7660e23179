"""Warp operations in full and partial warps, and odd corners of control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

THREADS = 40  # a full warp and one of eight lanes
INDEX = """
    mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %o, %d1;
"""
STORE = "st.global.u32 [%d1], %r9;"


def outputs(host: Any, body: str, threads: int = THREADS) -> NDArray[np.uint32]:
    """Run PTX that leaves each thread's output in ``%r9``; ``%r1`` is the thread."""
    out = host.put(np.zeros(threads, np.uint32))
    host.run(host.assemble(INDEX + body + STORE), 1, threads, out)
    found: NDArray[np.uint32] = host.get(out, np.zeros(threads, np.uint32))
    return found


def per_warp(function: Any) -> list[int]:
    """Apply a reduction to the lanes of each warp, for every thread."""
    warps = [range(32), range(32, THREADS)]
    return [function(warp) & 0xFFFFFFFF for warp in warps for _ in warp]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add.u32", sum),
        ("max.u32", max),
        ("min.u32", min),
        ("max.s32", max),
        ("xor.b32", lambda lanes: int(np.bitwise_xor.reduce(list(lanes)))),
        ("or.b32", lambda lanes: int(np.bitwise_or.reduce(list(lanes)))),
        ("and.b32", lambda lanes: int(np.bitwise_and.reduce(list(lanes)))),
    ],
)
def test_redux_counts_the_live_lanes_only(host: Any, operation: str, expected: Any) -> None:
    found = outputs(host, f"redux.sync.{operation} %r9, %r1, 0xffffffff;")
    assert found.tolist() == per_warp(expected)


def test_active_mask_shows_the_lanes_that_exist(host: Any) -> None:
    assert outputs(host, "activemask.b32 %r9;").tolist() == [0xFFFFFFFF] * 32 + [0xFF] * 8


def test_a_ballot_of_a_divergent_warp_waits_for_the_others(host: Any) -> None:
    body = """
        setp.lt.u32 %p1, %r1, 5;
        @%p1 bra AHEAD;
        nanosleep.u32 10;
    AHEAD:
        vote.sync.ballot.b32 %r9, %p1, 0xffffffff;
    """
    assert outputs(host, body).tolist() == [0x1F] * 32 + [0] * 8


@pytest.mark.parametrize(
    ("operation", "source"),
    [
        ("up.b32 %r9, %r1, 3, 0", lambda lane: lane - 3 if lane >= 3 else lane),
        ("down.b32 %r9, %r1, 3, 31", lambda lane: lane + 3 if lane + 3 < 32 else lane),
        ("bfly.b32 %r9, %r1, 5, 31", lambda lane: lane ^ 5),
        ("idx.b32 %r9, %r1, 9, 31", lambda lane: 9),
        ("idx.b32 %r9, %r1, 1, 0x1807", lambda lane: (lane & 24) + 1),
        ("down.b32 %r9, %r1, 1, 0x1807", lambda lane: lane if lane % 8 == 7 else lane + 1),
    ],
)
def test_shuffles_read_the_lane_that_ptx_names(host: Any, operation: str, source: Any) -> None:
    found = outputs(host, f"shfl.sync.{operation}, 0xffffffff;", threads=32)
    assert found.tolist() == [source(lane) for lane in range(32)]


def test_threads_that_have_ended_do_not_hold_up_a_barrier(host: Any) -> None:
    body = """
        mov.u32 %r9, 1;
        setp.ge.u32 %p1, %r1, 33;
        @%p1 st.global.u32 [%d1], %r9;
        @%p1 exit;
        bar.sync 0;
        mov.u32 %r9, 2;
        bar.warp.sync 0xffffffff;
    """
    assert outputs(host, body).tolist() == [2] * 33 + [1] * 7


def test_a_jump_table(host: Any) -> None:
    body = """
        and.b32 %r2, %r1, 3;
        mov.u32 %r9, 0;
        table: .branchtargets A, B, C, D;
        brx.idx %r2, table;
    A:  add.u32 %r9, %r9, 1000;
    B:  add.u32 %r9, %r9, 100;
    C:  add.u32 %r9, %r9, 10;
    D:  add.u32 %r9, %r9, 1;
    """
    assert outputs(host, body).tolist() == [1111, 111, 11, 1] * (THREADS // 4)


def test_address_windows_tell_each_other_apart(host: Any) -> None:
    body = """
        .shared .align 4 .b8 words[16];
        .local .align 4 .b8 own[16];
        mov.u64 %d2, words; cvta.shared.u64 %d2, %d2;
        mov.u64 %d3, own; cvta.local.u64 %d3, %d3;
        isspacep.shared %p1, %d2; isspacep.local %p2, %d3; isspacep.global %p3, %o;
        isspacep.global %p4, %d2; isspacep.shared %p5, %o;
        st.u32 [%d3], 7; ld.local.u32 %r3, [own];
        selp.u32 %r4, 1, 0, %p1; selp.u32 %r5, 2, 0, %p2; selp.u32 %r6, 4, 0, %p3;
        selp.u32 %r7, 8, 0, %p4; selp.u32 %r8, 16, 0, %p5;
        add.u32 %r9, %r4, %r5; add.u32 %r9, %r9, %r6; add.u32 %r9, %r9, %r7;
        add.u32 %r9, %r9, %r8; shl.b32 %r3, %r3, 8; or.b32 %r9, %r9, %r3;
    """
    assert set(outputs(host, body).tolist()) == {7 << 8 | 7}


def test_local_memory_is_bounded(fresh: Any) -> None:
    body = ".local .align 4 .b8 own[16]; mov.u32 %r9, 1; st.local.u32 [own+16], %r9;"
    out = fresh.put(np.zeros(1, np.uint32))
    assert fresh.launch(fresh.assemble(body), 1, 1, out) == 0
    assert fresh.cuda.cuCtxSynchronize()[0] == 700
