"""Barriers with numbers, counts and reductions; lanes that wait for each other, also for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

INDEX = "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %o, %d1; mov.u32 %r9, 0;"
STORE = "st.global.u32 [%d1], %r9;"
TIMEOUT = 702


def outputs(host: Any, body: str, threads: int = 40) -> NDArray[np.uint32]:
    """Run PTX that leaves each thread's output in ``%r9``; ``%r1`` is the thread."""
    out = host.put(np.zeros(threads, np.uint32))
    host.run(host.assemble(INDEX + body + STORE), 1, threads, out)
    found: NDArray[np.uint32] = host.get(out, np.zeros(threads, np.uint32))
    return found


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("bar.red.popc.u32 %r9, 0, %p1;", 7),
        ("barrier.red.popc.u32 %r9, 3, 64, !%p1;", 33),
        ("bar.red.and.pred %p2, 2, %p1; selp.u32 %r9, 1, 2, %p2;", 2),
        ("bar.red.and.pred %p2, 2, %p3; selp.u32 %r9, 1, 2, %p2;", 1),
        ("barrier.red.or.aligned.pred %p2, 5, %p1; selp.u32 %r9, 1, 2, %p2;", 1),
        ("bar.red.or.pred %p2, 5, !%p3; selp.u32 %r9, 1, 2, %p2;", 2),
    ],
)
def test_a_barrier_reduces_a_predicate_of_all_threads(
    host: Any, operation: str, expected: int
) -> None:
    body = "setp.ge.u32 %p1, %r1, 33; setp.ge.u32 %p3, %r1, 0;" + operation
    assert set(outputs(host, body).tolist()) == {expected}


def test_a_number_may_be_in_a_register_and_a_barrier_be_used_again(host: Any) -> None:
    body = """
        .shared .align 4 .b8 cell[4];
        mov.u32 %r2, 7;
        setp.eq.u32 %p1, %r1, 0;
        @%p1 st.shared.u32 [cell], 5;
        barrier.sync %r2;
        ld.shared.u32 %r9, [cell];
        bar.sync 7;
        @%p1 st.shared.u32 [cell], 6;
        bar.cta.sync 7;
        ld.shared.u32 %r3, [cell];
        mad.lo.u32 %r9, %r9, 10, %r3;
    """
    assert set(outputs(host, body).tolist()) == {56}


def test_producers_arrive_without_waiting_and_consumers_wait_for_them(host: Any) -> None:
    body = """
        .shared .align 4 .b8 cell[4];
        setp.ge.u32 %p1, %r1, 32;
        @%p1 bra PRODUCE;
        barrier.sync 1, 64;             // the producers come later
        ld.shared.u32 %r9, [cell];
        bar.arrive 2, 64;
        bra END;
    PRODUCE:
        st.shared.u32 [cell], 9;
        barrier.arrive 1, 64;
        barrier.sync 2, 64;
        mov.u32 %r9, 4;
    END:
    """
    assert outputs(host, body).tolist() == [9] * 32 + [4] * 8


def test_lanes_that_have_ended_count_for_their_warp(host: Any) -> None:
    body = """
        setp.eq.u32 %p1, %r1, 0;
        @%p1 st.global.u32 [%d1], %r1;
        @%p1 exit;
        barrier.sync 1, 64;
        mov.u32 %r9, 1;
    """
    assert outputs(host, body).tolist() == [0] + [1] * 39


@pytest.mark.parametrize("lanes", [32, 40])
def test_a_warp_operation_waits_for_the_lanes_of_its_mask(host: Any, lanes: int) -> None:
    """Half of the warp meets twice by itself before it joins the others."""
    body = """
        and.b32 %r2, %r1, 16;
        setp.ne.u32 %p1, %r2, 0;
        mov.u32 %r3, %r1;
        @!%p1 bra JOIN;
        vote.sync.ballot.b32 %r4, %p1, 0xffff0000;
        shfl.sync.bfly.b32 %r3, %r1, 1, 31, 0xffff0000;
        popc.b32 %r4, %r4;
        add.u32 %r3, %r3, %r4;
    JOIN:
        shfl.sync.idx.b32 %r9, %r3, 16, 31, 0xffffffff;
    """
    found = outputs(host, body, lanes)
    assert found[:32].tolist() == [17 + 16] * 32


def test_divergent_lanes_of_two_masks_do_not_mix(host: Any) -> None:
    body = """
        and.b32 %r2, %r1, 1;
        setp.ne.u32 %p1, %r2, 0;
        @%p1 bra ODD;
        redux.sync.add.u32 %r9, %r1, 0x55555555;
        bra END;
    ODD:
        redux.sync.max.u32 %r9, %r1, 0xaaaaaaaa;
    END:
    """
    assert outputs(host, body, 32).tolist() == [240, 31] * 16


@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_match_finds_the_lanes_of_one_value(host: Any, kind: str) -> None:
    value = "%r2" if kind == "b32" else "%d2"
    body = f"""
        shr.u32 %r2, %r1, 3;
        cvt.u64.u32 %d2, %r2; shl.b64 %d2, %d2, 33;
        match.any.sync.{kind} %r9, {value}, 0xffffffff;
    """
    assert outputs(host, body).tolist() == [0xFF << (i // 8 * 8) for i in range(32)] + [0xFF] * 8


def test_match_all_says_whether_all_have_one_value(host: Any) -> None:
    body = """
        shr.u32 %r2, %r1, 5;
        match.all.sync.b32 %r3|%p1, %r2, 0xffffffff;
        match.all.sync.b32 %r4|%p2, %r1, 0xffffffff;
        selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 2, 0, %p2;
        add.u32 %r9, %r3, %r4; shl.b32 %r9, %r9, 2; or.b32 %r9, %r9, %r5; or.b32 %r9, %r9, %r6;
    """
    whole = (0xFFFFFFFF << 2 | 1) & 0xFFFFFFFF
    assert outputs(host, body).tolist() == [whole] * 32 + [0xFF << 2 | 1] * 8


DEADLOCKS = {
    "other barriers": """
        setp.lt.u32 %p1, %r1, 5;
        @%p1 bra A;
        bar.sync 1;
        bra END;
    A:  bar.sync 0;
    END:
    """,
    "barrier and warp operation": """
        setp.lt.u32 %p1, %r1, 5;
        @%p1 bra A;
        bar.sync 0;
        bra END;
    A:  shfl.sync.idx.b32 %r9, %r1, 0, 31, 0xffffffff;
    END:
    """,
    "too few threads": "barrier.sync 0, 96;",
}


@pytest.mark.parametrize("body", DEADLOCKS.values(), ids=DEADLOCKS.keys())
def test_threads_that_wait_for_each_other_end_the_kernel(fresh: Any, body: str) -> None:
    out = fresh.put(np.zeros(64, np.uint32))
    assert fresh.launch(fresh.assemble(INDEX + body + STORE), 2, 40, out) == 0
    assert fresh.cuda.cuCtxSynchronize()[0] == TIMEOUT
    reason = fresh.cuda.fault().reason
    assert "wait for each other" in reason
    assert "in kernel k, PTX line" in reason
