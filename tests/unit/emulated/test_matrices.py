"""Matrix instructions of a warp against numpy, with the layouts of fragments that PTX defines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.matrix_products import BITS, PRODUCTS, kernel_text
from numpy.typing import NDArray

Array = NDArray[Any]


def bits_of(values: Array, kind: str) -> Array:
    """Return the bits of elements, as 64-bit integers."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint64)
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint64)
    if kind == "tf32":
        # The low bits are not looked at: what is in them must not matter.
        return values.astype(np.float32).view(np.uint32).astype(np.uint64) | np.uint64(0x1FFF)
    if kind == "f64":
        return values.astype(np.float64).view(np.uint64)
    return values.astype(np.int64).view(np.uint64) & np.uint64((1 << BITS[kind]) - 1)


def element_of(kind: str, register: int, lane: int, rows: int) -> list[tuple[int, int]]:
    """Return the (row, k) of a register's elements; for B the row is the column."""
    width = max(BITS[kind], 32)
    count = width // BITS[kind]
    row = lane // 4 + 8 * (register % rows)
    start = register // rows * 4 * count + lane % 4 * count
    return [(row, start + i) for i in range(count)]


def fragment(matrix: Array, kind: str, rows: int) -> Array:
    """Return the registers of each lane, as bytes in the order in which a lane loads them."""
    width = max(BITS[kind], 32)
    bits = bits_of(matrix, kind)
    count = rows * matrix.shape[1] * BITS[kind] // (4 * width)
    words = np.zeros((32, count), np.uint64)
    for lane in range(32):
        for register in range(count):
            for i, (row, k) in enumerate(element_of(kind, register, lane, rows)):
                words[lane, register] |= bits[row, k] << np.uint64(i * BITS[kind])
    return words.astype(np.uint64 if width == 64 else np.uint32)


def test_layouts_of_the_test_are_those_of_the_documentation() -> None:
    """Three places from PTX ISA's figures, so that test and device do not err alike."""
    # m16n8k16 of f16: a5 (register 2, upper half) of lane 9 is at row 2, column 2 * 1 + 1 + 8.
    assert element_of("f16", 2, 9, 2)[1] == (2, 11)
    # m16n8k32 of s8: a14 (register 3, byte 2) of lane 7 is at row 9, column 4 * 3 + 2 + 16.
    assert element_of("s8", 3, 7, 2)[2] == (9, 30)
    # m16n8k8 of tf32: a1 of lane 30 is at row 15, column 2; b1 at k 6, column 7.
    assert element_of("tf32", 1, 30, 2) == [(15, 2)]
    assert element_of("tf32", 1, 30, 1) == [(7, 6)]


@pytest.fixture(scope="module")
def module(host: Any) -> int:
    result, found = host.cuda.cuModuleLoadData(kernel_text().encode())
    assert result == 0, host.cuda.load_log
    return int(found)


def accumulator(matrix: Array, kind: str) -> Array:
    """Return C or D as lanes hold it."""
    m = matrix.shape[0]
    values = np.zeros((32, m // 8, 2), matrix.dtype)
    for lane in range(32):
        for i in range(m // 8):
            values[lane, i] = matrix[lane // 4 + 8 * i, lane % 4 * 2 : lane % 4 * 2 + 2]
    return values


@pytest.mark.parametrize("number", range(len(PRODUCTS)), ids=[p.opcode[17:] for p in PRODUCTS])
def test_products_of_matrices(
    host: Any, module: int, number: int, random: np.random.Generator
) -> None:
    product = PRODUCTS[number]
    (m, k), (result, first, second, _) = product.shape, product.types.split(".")
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}[result]
    limits = {"s8": (-128, 128), "u8": (0, 256), "s4": (-8, 8), "u4": (0, 16)}
    low, high = limits.get(first, (-8, 9))
    a = random.integers(low, high, (m, k))
    low, high = limits.get(second, (-8, 9))
    b = random.integers(low, high, (k, 8))
    c = random.integers(-1000, 1000, (m, 8)).astype(dtype)
    if product.suffix:
        c[:] = np.where(random.random((m, 8)) < 0.5, (1 << 31) - 50, -(1 << 31) + 50)
    scale = 1 if result == "s32" else 0.25  # sums stay exact, fractions included
    kernel = host.cuda.cuModuleGetFunction(module, f"k{number}".encode())[1]
    given = accumulator(c, result)
    out = host.put(np.zeros((32, 2, *given.shape[1:]), dtype))
    host.run(
        kernel,
        1,
        32,
        host.put(fragment(a * scale, first, m // 8)),
        host.put(fragment(b.T * scale, second, 1)),
        host.put(given),
        out,
    )
    found = host.get(out, np.zeros((32, 2, *given.shape[1:]), dtype))
    exact = (a @ b) * scale * scale + c.astype(np.float64)
    if product.suffix:
        exact = np.clip(exact, -(1 << 31), (1 << 31) - 1)
    expected = accumulator(exact.astype(dtype), result)
    assert np.array_equal(found[:, 0], expected)
    assert np.array_equal(found[:, 1], expected)


LOAD = """
    .shared .align 16 .b8 tile[1024];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d1, %r1, 16; add.u64 %d2, %o, %d1;
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d2];
    mov.u32 %r6, tile; shl.b32 %r7, %r1, 4; add.u32 %r6, %r6, %r7;
    st.shared.v4.u32 [%r6], {%r2, %r3, %r4, %r5};
    bar.sync 0;
"""


def run_tile(host: Any, body: str, tile: Array) -> Array:
    """Run a kernel on 512 bytes that it overwrites with each lane's four registers."""
    memory = host.put(tile)
    store = "st.global.v4.u32 [%d2], {%r8, %r9, %r10, %r11};"
    host.run(host.assemble(LOAD + body + store), 1, 32, memory)
    found: Array = host.get(memory, np.zeros((32, 4), np.uint32))
    return found


@pytest.mark.parametrize("trans", [False, True])
def test_matrices_are_loaded_from_rows_that_lanes_name(host: Any, trans: bool) -> None:
    tile = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    word = ".trans" if trans else ""
    body = f"ldmatrix.sync.aligned.m8n8.x4{word}.shared.b16 {{%r8, %r9, %r10, %r11}}, [%r6];"
    found = run_tile(host, body, tile).view(np.uint16).reshape(32, 4, 2)
    source = tile.transpose(0, 2, 1) if trans else tile
    for lane in range(32):
        for matrix in range(4):
            expected = source[matrix, lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert found[lane, matrix].tolist() == expected.tolist()


def test_fewer_matrices_and_a_transposition_between_lanes(host: Any) -> None:
    tile = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    body = """
        cvt.u64.u32 %d3, %r6; cvta.shared.u64 %d3, %d3;
        ldmatrix.sync.aligned.m8n8.x2.b16 {%r8, %r9}, [%d3];
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r6];
        movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r9;
    """
    found = run_tile(host, body, tile).view(np.uint16).reshape(32, 4, 2)
    wanted = [tile[0], tile[1], tile[0], tile[1].T]
    for lane in range(32):
        for i, matrix in enumerate(wanted):
            part = matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert found[lane, i].tolist() == part.tolist()


def test_a_row_outside_of_shared_memory_is_a_fault(fresh: Any) -> None:
    body = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r8, %r9, %r10, %r11}, [%r6+512];"
    memory = fresh.put(np.zeros(512, np.uint8))
    assert fresh.launch(fresh.assemble(LOAD.replace("1024", "512") + body), 1, 32, memory) == 0
    assert fresh.cuda.cuCtxSynchronize()[0] == 700


@pytest.mark.parametrize(
    "instruction",
    [
        "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3,"
        " %r4}, {%r5, %r6}, {%r1, %r2, %r3, %r4};",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%r1}, {%r2}, {%r3}, {%r4};",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r2};",
    ],
)
def test_what_sm_80_does_not_have_is_refused(host: Any, instruction: str) -> None:
    text = f""".version 8.0\n.target sm_80\n.address_size 64
        .visible .entry k(.param .u64 out) {{ .reg .b32 %r<8>; {instruction} ret; }}"""
    assert host.cuda.cuModuleLoadData(text.encode())[0] == 801
    assert host.cuda.load_log.startswith(f"line 4: instruction {instruction.split(' ')[0]}")
