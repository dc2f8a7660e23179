"""Copies and fills of rows do what a loop over their bytes does."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.session.operations import Op
from outlast.shim import driver
from outlast.shim.driver import CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUmemorytype

HOST, DEVICE = CUmemorytype.CU_MEMORYTYPE_HOST, CUmemorytype.CU_MEMORYTYPE_DEVICE
ARRAY, UNIFIED = CUmemorytype.CU_MEMORYTYPE_ARRAY, CUmemorytype.CU_MEMORYTYPE_UNIFIED
INVALID, NOT_SUPPORTED = 1, 801
SIZE = 4096


def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


@pytest.fixture
def pattern():
    return bytes(i * 7 % 251 for i in range(SIZE))


@pytest.fixture
def memory(link, context, pattern):
    """Two allocations: the pattern, and zeros."""
    source, target = ok(driver.cuMemAlloc(SIZE)), ok(driver.cuMemAlloc(SIZE))
    ok(driver.cuMemcpyHtoD(source, pattern, SIZE))
    ok(driver.cuMemsetD8(target, 0, SIZE))
    return source, target


def content(address, size=SIZE):
    data = bytearray(size)
    ok(driver.cuMemcpyDtoH(data, address, size))
    return bytes(data)


def side(name, kind, memory, x=0, y=0, pitch=0, **more):
    place = "Host" if kind == HOST else "Device"
    values = {"MemoryType": kind, place: memory, "XInBytes": x, "Y": y, "Pitch": pitch, **more}
    return {name + key: value for key, value in values.items()}


def expected(pattern, source, target, width, height, depth=1):
    """Return what comes of zeros by a copy; sides are (x, y, z, pitch, rows)."""
    out = bytearray(SIZE)
    (sx, sy, sz, sp, sr), (tx, ty, tz, tp, tr) = source, target
    for z in range(depth):
        for row in range(height):
            at = ((sz + z) * sr + sy + row) * sp + sx
            to = ((tz + z) * tr + ty + row) * tp + tx
            out[to : to + width] = pattern[at : at + width]
    return bytes(out)


PLACES = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(20, 60))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    source=PLACES,
    target=PLACES,
    width=st.integers(1, 15),
    height=st.integers(1, 12),
    kinds=st.sampled_from(["dd", "hd", "dh", "hh"]),
    stream=st.booleans(),
)
def test_rows_go_where_a_loop_would_put_them(
    memory, pattern, source, target, width, height, kinds, stream
):
    held, out = bytearray(pattern), bytearray(SIZE)
    ok(driver.cuMemsetD8(memory[1], 0, SIZE))
    copy = CUDA_MEMCPY2D(
        **side("src", *((HOST, held) if kinds[0] == "h" else (DEVICE, memory[0])), *source),
        **side("dst", *((HOST, out) if kinds[1] == "h" else (DEVICE, memory[1])), *target),
        WidthInBytes=width,
        Height=height,
    )
    ok(driver.cuMemcpy2DAsync(copy, 0) if stream else driver.cuMemcpy2D(copy))
    got = bytes(out) if kinds[1] == "h" else content(memory[1])
    (sx, sy, sp), (tx, ty, tp) = source, target
    assert got == expected(pattern, (sx, sy, 0, sp, 0), (tx, ty, 0, tp, 0), width, height)


@pytest.mark.parametrize("kinds", ["dd", "hd", "dh"])
def test_slices_go_where_a_loop_would_put_them(memory, pattern, kinds):
    held, out = ctypes.create_string_buffer(pattern, SIZE), bytearray(SIZE)
    copy = CUDA_MEMCPY3D(
        **side(
            "src",
            *((HOST, ctypes.addressof(held)) if kinds[0] == "h" else (DEVICE, memory[0])),
            *(3, 1, 16),
            Height=9,
            Z=2,
        ),
        **side(
            "dst",
            *((HOST, out) if kinds[1] == "h" else (DEVICE, memory[1])),
            *(1, 2, 20),
            Height=8,
            Z=1,
        ),
        WidthInBytes=10,
        Height=5,
        Depth=4,
    )
    ok(driver.cuMemcpy3D(copy))
    got = bytes(out) if kinds[1] == "h" else content(memory[1])
    assert got == expected(pattern, (3, 1, 2, 16, 9), (1, 2, 1, 20, 8), 10, 5, 4)


def test_many_rows_travel_in_few_calls_and_whole_ones_as_plain_copies(link, context):
    size = 1 << 20
    address = ok(driver.cuMemAlloc(2 * size))
    data = bytes(range(256)) * (size // 256)
    rows = {"WidthInBytes": 1024, "Height": 1024}
    out = bytearray(size)
    ok(driver.cuMemcpy2D(CUDA_MEMCPY2D(
        **side("src", HOST, data), **side("dst", DEVICE, address, pitch=2048), **rows
    )))  # fmt: skip
    ok(driver.cuMemcpy2D(CUDA_MEMCPY2D(
        **side("src", DEVICE, address, pitch=2048), **side("dst", HOST, out), **rows
    )))  # fmt: skip
    assert out == data
    assert link.ops().count(Op.COPY_HTOD_2D) == link.ops().count(Op.COPY_DTOH_2D) == 4
    before = len(link.calls)
    ok(driver.cuMemcpy2D(CUDA_MEMCPY2D(
        **side("src", HOST, data), **side("dst", DEVICE, address), **rows
    )))  # fmt: skip
    assert link.ops()[before:] == [Op.COPY_HTOD]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"srcMemoryType": ARRAY}, NOT_SUPPORTED),
        ({"dstMemoryType": 0}, NOT_SUPPORTED),
        ({"dstPitch": 63}, INVALID),
        ({"srcPitch": 63}, INVALID),
        ({"WidthInBytes": -1}, INVALID),
        ({"Height": 65}, INVALID),
        ({"dstXInBytes": 1}, INVALID),
        ({"srcY": 1}, INVALID),
        ({"srcDevice": 64}, INVALID),
        ({"dstY": 1 << 63}, INVALID),
    ],
)
def test_what_does_not_fit_is_refused(link, memory, changes, code):
    fields = {"WidthInBytes": 64, "Height": 64}
    fields |= side("src", DEVICE, memory[0], pitch=64) | side("dst", DEVICE, memory[1], pitch=64)
    before = len(link.calls)
    assert driver.cuMemcpy2D(CUDA_MEMCPY2D(**(fields | changes))) == (code,)
    assert len(link.calls) == before
    assert driver.cuMemcpy2D(CUDA_MEMCPY2D(**fields)) == (0,)


def test_no_bytes_and_no_description_are_what_they_are(link, memory):
    nothing = CUDA_MEMCPY2D(**side("src", DEVICE, memory[0]), **side("dst", DEVICE, memory[1]))
    assert driver.cuMemcpy2D(nothing) == (0,)
    assert driver.cuMemcpy2D(None) == (INVALID,)


def test_the_structures_of_the_bindings_are_understood(memory, pattern):
    bindings = pytest.importorskip("cuda.bindings.driver")
    copy = bindings.CUDA_MEMCPY2D()
    copy.srcMemoryType = copy.dstMemoryType = bindings.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.dstDevice = map(bindings.CUdeviceptr, memory)
    copy.srcPitch, copy.dstPitch, copy.WidthInBytes, copy.Height = 32, 16, 8, 5
    ok(driver.cuMemcpy2DUnaligned(copy))
    assert content(memory[1]) == expected(pattern, (0, 0, 0, 32, 0), (0, 0, 0, 16, 0), 8, 5)


@pytest.mark.parametrize("unified", [False, True])
def test_addresses_say_which_way_bytes_go(memory, pattern, unified):
    held, out = ctypes.create_string_buffer(pattern, SIZE), ctypes.create_string_buffer(SIZE)
    here, there = ctypes.addressof(held), ctypes.addressof(out)

    def copy(to, at):
        if not unified:
            ok(driver.cuMemcpy(to, at, SIZE))
            return
        fields = {"srcMemoryType": UNIFIED, "dstMemoryType": UNIFIED, "srcDevice": at}
        fields |= {"dstDevice": to, "WidthInBytes": SIZE, "Height": 1}
        ok(driver.cuMemcpy2D(CUDA_MEMCPY2D(**fields)))

    copy(memory[1], here)
    copy(memory[0], memory[1])
    copy(there, memory[0])
    assert out.raw == pattern
    copy(there, here)
    ok(driver.cuMemcpyAsync(there, memory[0], 4, 0))
    assert driver.cuMemcpy(0, here, 4) == (INVALID,)


@pytest.mark.parametrize(
    ("name", "value", "width"), [("D8", 0xAB, 1), ("D16", 0xABCD, 2), ("D32", 0xABCD1234, 4)]
)
@pytest.mark.parametrize("suffix", ["", "Async"])
def test_rows_are_filled_and_what_is_between_them_stays(memory, name, value, width, suffix):
    fill = getattr(driver, f"cuMemsetD2{name}{suffix}")
    stream = (0,) if suffix else ()
    address = memory[1]
    assert fill(address + 16, 32, value, 3, 5, *stream) == (0,)
    row = bytes(16) + value.to_bytes(width, "little") * 3
    assert content(address) == (row.ljust(32, b"\0") * 5).ljust(SIZE, b"\0")
    assert fill(address, 32, value, 0, 5, *stream) == (0,)
    assert fill(address, 3 * width - width, value, 3, 2, *stream) == (INVALID,)
    assert fill(address, 32, 1 << (8 * width), 3, 2, *stream) == (INVALID,)
    assert fill(address, 2048, value, 3, 3, *stream) == (INVALID,)


def test_rows_are_allocated_with_a_pitch_that_suits_devices(link, context):
    address, pitch = ok(driver.cuMemAllocPitch(1000, 10, 4))
    assert (pitch, address % 512) == (1024, 0)
    assert ok(driver.cuMemGetAddressRange(address))[1] == 10240
    assert driver.cuMemAllocPitch(1000, 10, 3) == (INVALID, None, None)
    assert driver.cuMemAllocPitch(1 << 40, 1 << 40, 4) == (2, None, None)
