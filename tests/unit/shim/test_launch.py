"""Launches: checked on the client, packed to the kernel's layout, planned once."""

from __future__ import annotations

import ctypes
import struct
import threading

import numpy as np
import pytest
from helpers.fake_link import image

from outlast.errors import LogFull
from outlast.session.operations import Op
from outlast.session.wire import pack_record
from outlast.shim import driver
from outlast.shim.api.launch import MAX_PLANS

LAYOUT = [[0, 8], [8, 1], [12, 4], [16, 8]]
TYPES = (ctypes.c_void_p, ctypes.c_byte, ctypes.c_float, ctypes.c_longlong)
VALUES = (0x1000, -2, 1.5, -7)
DATA = struct.pack("<Qb3xfq", *VALUES)


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_float))


def load(*kernel):
    _, module = driver.cuModuleLoadData(image(kernel))
    return driver.cuModuleGetFunction(module, kernel[0].encode())[1]


@pytest.fixture
def kernel(context):
    return load("k", LAYOUT)


def launch(function, parameters=(VALUES, TYPES), grid=(1, 1, 1), block=(1, 1, 1), shared=0,
           stream=0, extra=0):  # fmt: skip
    return driver.cuLaunchKernel(function, *grid, *block, shared, stream, parameters, extra)


def test_the_record_is_that_of_the_wire_table(link, kernel):
    records = []
    link.send_record = lambda head, lane=None: records.append(head) or 1
    for _ in range(2):
        assert launch(kernel, grid=(1, 2, 3), block=(4, 5, 6), shared=7) == (0,)
    fields = (kernel, 0, 1, 2, 3, 4, 5, 6, 7)
    assert records == [pack_record(Op.LAUNCH, *fields, data=DATA)] * 2


@pytest.mark.parametrize(
    ("configuration", "code"),
    [
        ({"grid": (0, 1, 1)}, 1),
        ({"grid": (1, -1, 1)}, 1),
        ({"grid": (1, 65536, 1)}, 1),
        ({"grid": (1 << 31, 1, 1)}, 1),
        ({"block": (2048, 1, 1)}, 1),
        ({"block": (1, 1, 65)}, 1),
        ({"block": (32, 32, 2)}, 1),
        ({"block": (0, 1, 1)}, 1),
        ({"shared": 49153}, 1),
        ({"shared": -1}, 1),
        ({"stream": 0x40}, 400),
        ({"parameters": 0}, 1),
        ({"parameters": (VALUES[:-1], TYPES[:-1])}, 1),
        ({"parameters": (VALUES[:-1], TYPES)}, 1),
        ({"parameters": (VALUES, (*TYPES[:-1], ctypes.c_int))}, 1),
        ({"extra": 4096}, 1),
    ],
    ids=str,
)
def test_a_bad_launch_fails_itself_and_the_next_one_works(configuration, code, link, kernel):
    for _ in range(2):
        assert launch(kernel, **configuration) == (code,)
    assert not link.of(Op.LAUNCH)
    assert launch(kernel) == (0,)
    assert driver.cuCtxSynchronize() == (0,)
    assert len(link.of(Op.LAUNCH)) == 1


def test_a_kernel_with_a_smaller_block_limit_is_out_of_resources(link, context):
    data = image(("k", [])).replace(b'"0": 1024', b'"0": 256')
    _, module = driver.cuModuleLoadData(data)
    _, function = driver.cuModuleGetFunction(module, b"k")
    assert launch(function, (), block=(257, 1, 1)) == (1,)
    assert launch(function, (), block=(256, 1, 1)) == (0,)


def test_static_shared_memory_counts_when_the_kernel_names_no_limit(link, context):
    data = image(("k", [])).replace(b'"1": 0', b'"1": 1024').replace(b', "8": 49152', b"")
    _, module = driver.cuModuleLoadData(data)
    _, function = driver.cuModuleGetFunction(module, b"k")
    assert launch(function, (), shared=48129) == (1,)
    assert launch(function, (), shared=48128) == (0,)


@pytest.mark.parametrize("parameters", [0, None, (), ((), ()), [(), ()]])
def test_a_kernel_without_parameters_takes_none_in_any_form(parameters, link, context):
    function = load("bare", [])
    for _ in range(2):
        assert launch(function, parameters) == (0,)
    assert [call[2] for call in link.of(Op.LAUNCH)] == [b"", b""]


def test_numbers_that_are_no_integers_are_refused(link, kernel):
    launch(kernel)
    for bad in ({"grid": (2.5, 1, 1)}, {"shared": "1"}, {"parameters": (VALUES,)}):
        with pytest.raises(TypeError):
            launch(kernel, **bad)
    assert launch(kernel) == (0,)


def test_values_are_converted_as_c_does(link, context):
    function = load("k", [[0, 4], [4, 4], [8, 8], [16, 1]])
    types = (ctypes.c_uint, ctypes.c_float, ctypes.c_void_p, ctypes.c_bool)
    for values, data in (
        ((-1, 2, None, 1), struct.pack("<IfQ?", 0xFFFFFFFF, 2, 0, True)),
        ((1 << 32, 1e300, 5, 0), struct.pack("<IfQ?", 0, float("inf"), 5, False)),
        ((ctypes.c_uint(7), np.float32(0.5), driver.CUdeviceptr(9), True),
         struct.pack("<IfQ?", 7, 0.5, 9, True)),
        ((np.int64(7), np.float64(0.5), np.uint64(9), np.bool_(True)),
         struct.pack("<IfQ?", 7, 0.5, 9, True)),
    ):  # fmt: skip
        for _ in range(2):
            assert launch(function, (values, types)) == (0,)
            assert link.calls[-1][2] == data
    with pytest.raises(TypeError):
        launch(function, ((1.5, 0, 0, 0), types))


def test_pointers_of_the_bindings_are_packed(link, context):
    bindings = pytest.importorskip("cuda.bindings.driver")
    function = load("k", [[0, 8], [8, 8]])
    values = (bindings.CUdeviceptr(1), bindings.CUdeviceptr(2))
    assert launch(function, (values, (ctypes.c_void_p, None))) == (0,)
    assert link.calls[-1][2] == struct.pack("<QQ", 1, 2)


def test_values_may_carry_their_own_type(link, context):
    function = load("k", [[0, 8], [8, 4], [16, 8]])
    values = (Pair(1, 2.0), ctypes.c_int(3), driver.CUdeviceptr(4))
    for _ in range(2):
        assert launch(function, (values, (None, None, None))) == (0,)
    expected = struct.pack("<ifi4xQ", 1, 2.0, 3, 4)
    assert [call[2] for call in link.of(Op.LAUNCH)] == [expected] * 2
    assert launch(function, (values, (Pair, None, ctypes.c_void_p))) == (0,)
    assert launch(function, ((values[1], *values[1:]), (None, None, None))) == (1,)
    with pytest.raises(TypeError):
        launch(function, ((1, *values[1:]), (None, None, None)))


def test_an_array_of_pointers_is_read(link, kernel):
    holders = [ctype(value) for ctype, value in zip(TYPES, VALUES, strict=True)]
    pointers = (ctypes.c_void_p * 4)(*map(ctypes.addressof, holders))
    for _ in range(2):
        assert launch(kernel, ctypes.addressof(pointers)) == (0,)
    addresses = np.array(list(pointers), np.uint64)
    assert launch(kernel, addresses.ctypes.data) == (0,)
    pointers[3] = None
    assert launch(kernel, ctypes.addressof(pointers)) == (1,)
    assert [call[2] for call in link.of(Op.LAUNCH)] == [DATA] * 3
    with pytest.raises(TypeError):
        launch(kernel, ((1,), None))


def test_an_extra_list_is_read(link, kernel):
    buffer = ctypes.create_string_buffer(DATA, len(DATA))
    size = ctypes.c_size_t(len(DATA))
    words = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), None)
    assert launch(kernel, 0, extra=ctypes.addressof(words)) == (0,)
    assert link.calls[-1][2] == DATA
    size.value = len(DATA) - 1
    assert launch(kernel, 0, extra=ctypes.addressof(words)) == (1,)


def test_a_planned_launch_fails_once_its_stream_or_context_is_gone(link, kernel):
    _, stream = driver.cuStreamCreate(0)
    for _ in range(2):
        assert launch(kernel, stream=stream) == (0,)
    driver.cuStreamDestroy(stream)
    assert launch(kernel, stream=stream) == (400,)
    assert launch(kernel) == (0,)
    driver.cuDevicePrimaryCtxRelease(0)
    assert launch(kernel) == (709,)


def test_a_planned_launch_needs_its_context_current(link, context, kernel):
    assert launch(kernel) == (0,)
    driver.cuCtxCreate(None, 0, 0)
    assert launch(kernel) == (400,)
    driver.cuCtxPopCurrent()
    assert launch(kernel) == (0,)
    results = []
    thread = threading.Thread(target=lambda: results.append(launch(kernel)))
    thread.start()
    thread.join(10)
    assert results == [(201,)]


def test_a_stream_of_another_context_leaves_no_plan_behind(link, context, kernel):
    _, stream = driver.cuStreamCreate(0)
    driver.cuCtxCreate(None, 0, 0)
    assert launch(kernel, stream=stream) == (0,)
    driver.cuStreamDestroy(stream)
    assert launch(kernel, stream=stream) == (400,)


def test_a_planned_launch_reports_sticky_and_link_errors(link, kernel):
    launch(kernel)
    link.poison = 700
    assert launch(kernel) == (700,)
    link.poison = 0
    link.error = LogFull()
    assert launch(kernel) == (2,)
    assert launch(kernel) == (0,)


def test_the_per_thread_stream_is_resolved_at_each_launch(link, context, kernel):
    def in_thread():
        driver.cuCtxPushCurrent(context)
        launch(kernel, stream=2)

    launch(kernel, stream=2)
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join(10)
    first, second = (call[1][1] for call in link.of(Op.LAUNCH))
    assert first != second
    assert 2 not in (first, second)


def test_launch_blocking_makes_a_launch_report_its_own_error(link, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    function = load("k", LAYOUT)
    assert launch(function) == (0,)
    link.fail_next[Op.STREAM_SYNC] = 716
    assert launch(function) == (716,)
    assert len(link.of(Op.STREAM_SYNC)) == 2


def test_plans_do_not_grow_for_ever(link, context):
    function = load("bare", [])
    for size in range(1, MAX_PLANS + 20):
        launch(function, ((), ()), grid=(size, 1, 1))
    assert len(link.of(Op.LAUNCH)) == MAX_PLANS + 19
    from outlast.shim.process import process

    assert len(process.client.contexts[context].plans) <= MAX_PLANS


def test_a_launch_runs_on_what_earlier_calls_wrote(link, context):
    def add_one(model, data):
        address, count = struct.unpack("<Qi", data)
        view = model.bytes_at(address, count)
        view[:] = bytes(byte + 1 for byte in view)

    link.kernels["add_one"] = add_one
    function = load("add_one", [[0, 8], [8, 4]])
    _, address = driver.cuMemAlloc(4)
    out = bytearray(4)
    driver.cuMemcpyHtoD(address, b"\1\2\3\4", 4)
    for _ in range(3):
        launch(function, ((address, 4), (ctypes.c_void_p, ctypes.c_int)))
    driver.cuMemcpyDtoH(out, address, 4)
    assert out == b"\4\5\6\7"


def test_a_busy_mix_of_threads_gets_each_its_own_answers(link, context):
    function = load("k", [[0, 8]])
    failures = []

    def work(number):
        driver.cuCtxPushCurrent(context)
        _, stream = driver.cuStreamCreate(0)
        _, address = driver.cuMemAlloc(64)
        for step in range(60):
            pattern = bytes([number, step] * 32)
            out = bytearray(64)
            driver.cuMemcpyHtoDAsync(address, pattern, 64, stream)
            results = (
                launch(function, ((address,), (ctypes.c_void_p,)), stream=stream),
                driver.cuStreamSynchronize(stream),
                driver.cuMemcpyDtoHAsync(out, address, 64, stream),
            )
            if out != pattern or results != ((0,),) * 3:
                failures.append((number, step, results))
        driver.cuStreamDestroy(stream)
        driver.cuMemFree(address)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
