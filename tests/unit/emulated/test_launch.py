"""Launches: which are refused, how parameters are given, and that order is kept."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from outlast.cuda_types import CUfunction_attribute as Attribute

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        ((0, 1, 1), (1, 1, 1), 0),
        ((1, 0, 1), (1, 1, 1), 0),
        ((1, 1, -1), (1, 1, 1), 0),
        ((1 << 31, 1, 1), (1, 1, 1), 0),
        ((1, 65536, 1), (1, 1, 1), 0),
        ((1, 1, 65536), (1, 1, 1), 0),
        ((1, 1, 1), (0, 1, 1), 0),
        ((1, 1, 1), (1025, 1, 1), 0),
        ((1, 1, 1), (1, 1, 65), 0),
        ((1, 1, 1), (32, 33, 1), 0),
        ((1, 1, 1), (1, 1, 1), (48 << 10) + 1),
        ((1, 1, 1), (1, 1, 1), -1),
    ],
)
def test_impossible_shapes_are_refused(host: Any, grid: Any, block: Any, shared: int) -> None:
    target = host.put(np.zeros(1, np.int32))
    code = host.launch(host.kernel("store"), grid, block, target, 1, shared=shared)
    assert code == INVALID_VALUE
    assert host.get(target, np.ones(1, np.int32))[0] == 0


def test_more_threads_than_a_kernel_is_bounded_to_are_refused(host: Any) -> None:
    target = host.put(np.zeros(64, np.int32))
    kernel = host.kernel("bounded", "language")
    assert host.launch(kernel, 1, 65, target) == INVALID_VALUE
    host.run(kernel, 1, 64, target)
    assert host.get(target, np.zeros(64, np.int32)).tolist() == list(range(64))


def test_dynamic_shared_memory_must_be_asked_for_above_48_kib(host: Any) -> None:
    cuda, kernel = host.cuda, host.kernel("softmax")
    x = host.put(np.ones(64, np.float32))
    limit = Attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert host.launch(kernel, 1, 32, x, x, 64, shared=64 << 10) == INVALID_VALUE
    assert cuda.cuFuncSetAttribute(kernel, limit, 200 << 10)[0] == INVALID_VALUE
    assert cuda.cuFuncSetAttribute(kernel, limit, 64 << 10)[0] == 0
    assert cuda.cuFuncGetAttribute(limit, kernel) == (0, 64 << 10)
    host.run(kernel, 1, 32, x, x, 64, shared=64 << 10)
    assert cuda.cuFuncSetAttribute(kernel, Attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, 1)[0] == 1


def test_bad_handles_and_missing_contexts_are_refused(host: Any) -> None:
    target, kernel = host.put(np.zeros(1, np.int32)), host.kernel("store")
    assert host.launch(kernel + 1, 1, 1, target, 1) == INVALID_HANDLE
    assert host.launch(kernel, 1, 1, target, 1, stream=12345) == INVALID_HANDLE
    host.cuda.cuCtxSetCurrent(0)
    assert host.launch(kernel, 1, 1, target, 1) == INVALID_CONTEXT
    assert host.cuda.cuMemAlloc(4) == (INVALID_CONTEXT, None)
    host.cuda.cuCtxSetCurrent(host.context)


def test_a_kernel_runs_in_its_own_context_only(fresh: Any) -> None:
    cuda, kernel = fresh.cuda, fresh.kernel("store")
    target = fresh.put(np.zeros(1, np.int32))
    result, other = cuda.cuCtxCreate(None, 0, 0)
    assert (result, cuda.cuCtxGetCurrent()) == (0, (0, other))
    assert fresh.launch(kernel, 1, 1, target, 1) == INVALID_HANDLE
    mine = cuda.cuMemAlloc(64)[1]
    assert cuda.cuCtxDestroy(other)[0] == 0
    assert cuda.cuCtxGetCurrent() == (0, fresh.context)
    assert cuda.cuMemGetAddressRange(mine)[0] == INVALID_VALUE
    assert fresh.launch(kernel, 1, 1, target, 1) == 0


def launch_forms(host: Any, kernel: int, target: int) -> list[Any]:
    """Launch with every form of parameters; return the results."""
    address, value = ctypes.c_void_p(target), ctypes.c_int(3)
    pointers = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(value))
    buffer = ctypes.create_string_buffer(target.to_bytes(8, "little") + (4).to_bytes(4, "little"))
    size = ctypes.c_uint64(12)
    extra = (ctypes.c_uint64 * 5)(*(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0))
    shape = (1, 1, 1, 1, 1, 1, 0, 0)
    forms: list[tuple[Any, Any]] = [
        (((target, 1), (ctypes.c_void_p, ctypes.c_int)), 0),
        (((address, ctypes.c_int(2)), (None, None)), 0),
        (ctypes.addressof(pointers), 0),
        (0, ctypes.addressof(extra)),
    ]
    seen = []
    for parameters, more in forms:
        assert host.cuda.cuLaunchKernel(kernel, *shape, parameters, more)[0] == 0
        seen.append(int(host.get(target, np.zeros(1, np.int32))[0]))
    return seen


def test_parameters_may_be_given_in_every_form(host: Any) -> None:
    target = host.put(np.zeros(1, np.int32))
    assert launch_forms(host, host.kernel("store"), target) == [1, 2, 3, 4]


def test_missing_or_short_parameters_are_refused(host: Any) -> None:
    cuda, kernel = host.cuda, host.kernel("store")
    shape = (kernel, 1, 1, 1, 1, 1, 1, 0, 0)
    assert cuda.cuLaunchKernel(*shape, 0, 0)[0] == INVALID_VALUE
    assert cuda.cuLaunchKernel(*shape, ((1,), (ctypes.c_int,)), 0)[0] == INVALID_VALUE
    short = ((1, 1), (ctypes.c_int, ctypes.c_int))
    assert cuda.cuLaunchKernel(*shape, short, 0)[0] == INVALID_VALUE
    assert cuda.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, bytes(11)) == INVALID_VALUE
    assert cuda.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, bytes(5000)) == INVALID_VALUE


def test_launches_run_once_and_in_issue_order_on_all_streams(host: Any) -> None:
    target = host.put(np.zeros(1, np.uint64))
    kernel = host.kernel("append_digit")
    streams = [host.cuda.cuStreamCreate(flags)[1] for flags in (0, 1, 1)]
    for digit in range(1, 10):
        packed = memoryview(target.to_bytes(8, "little") + digit.to_bytes(4, "little"))
        stream = streams[digit % 3]
        assert host.cuda.launch_packed(kernel, stream, 1, 1, 1, 1, 1, 1, 0, packed) == 0
    assert host.get(target, np.zeros(1, np.uint64))[0] == 123456789


def test_float_atomics_give_the_same_bits_every_time(
    host: Any, random: np.random.Generator
) -> None:
    x = (random.standard_normal(1 << 14) * 1e3).astype(np.float32)
    px, found = host.put(x), set()
    for _ in range(3):
        out = host.put(np.zeros(1, np.float32))
        host.run(host.kernel("block_reduce"), 64, 256, px, out, 1 << 14)
        found.add(host.get(out, np.zeros(1, np.float32)).tobytes())
    assert len(found) == 1


def test_threads_issue_side_by_side_and_no_launch_is_lost(host: Any) -> None:
    kernel, threads, launches = host.kernel("store"), 4, 2000
    targets = [host.put(np.zeros(1, np.int32)) for _ in range(threads)]
    counter = host.cuda.cuModuleGetGlobal(host.module("common"), b"counter")[1]
    count = host.kernel("use_globals")
    before = host.get(counter, np.zeros(1, np.uint64))[0]
    scratch = host.put(np.zeros(1, np.float32))

    def issue(target: int) -> None:
        host.cuda.cuCtxSetCurrent(host.context)
        add = scratch.to_bytes(8, "little") + (1).to_bytes(4, "little")
        for value in range(launches):
            packed = target.to_bytes(8, "little") + value.to_bytes(4, "little")
            assert host.cuda.launch_packed(kernel, 0, 1, 1, 1, 1, 1, 1, 0, packed) == 0
            assert host.cuda.launch_packed(count, 0, 1, 1, 1, 1, 1, 1, 0, add) == 0

    running = [threading.Thread(target=issue, args=(target,)) for target in targets]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert [host.get(t, np.zeros(1, np.int32))[0] for t in targets] == [launches - 1] * threads
    assert host.get(counter, np.zeros(1, np.uint64))[0] == before + threads * launches
