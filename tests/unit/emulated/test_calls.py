"""Calls through addresses and of functions that call themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.ptx_calls import CHOICE, HEADER, RECURSION

STACK_ERROR, INVALID_PC = 714, 718


def load(host: Any, text: str) -> int:
    result, module = host.cuda.cuModuleLoadData(text.encode())
    assert result == 0, host.cuda.load_log
    return int(module)


def test_functions_that_call_themselves_and_each_other(host: Any) -> None:
    kernel = host.cuda.cuModuleGetFunction(load(host, RECURSION), b"run")[1]
    out = host.put(np.zeros((64, 4), np.uint32))
    host.run(kernel, 1, 64, out)
    fib = [0, 1, 1, 2, 3, 5, 8, 13, 21]
    expected = [
        (fib[i % 9], i % 2, 1 - i % 2, sum((i ^ 1) + n + 1000 * n for n in range(1, 7)))
        for i in range(64)
    ]
    assert host.get(out, np.zeros((64, 4), np.uint32)).tolist() == [list(row) for row in expected]


def test_endless_recursion_fills_the_stack(fresh: Any) -> None:
    kernel = fresh.cuda.cuModuleGetFunction(load(fresh, RECURSION), b"endless")[1]
    assert fresh.launch(kernel, 1, 32, fresh.put(np.zeros(4, np.uint8))) == 0
    assert fresh.cuda.cuCtxSynchronize()[0] == STACK_ERROR
    assert "stack of calls is full in kernel endless, PTX line" in fresh.cuda.fault().reason


def test_functions_are_called_through_addresses_in_memory(host: Any) -> None:
    """Of kernels that nvcc made: addresses that a kernel stored, and those of a variable."""
    kept, out = host.put(np.zeros(2, np.uint64)), host.put(np.zeros(3, np.uint32))
    host.run(host.kernel("keep", "calls"), 1, 1, kept)
    host.run(host.kernel("call", "calls"), 1, 1, kept, out, 7)
    assert host.get(out, np.zeros(3, np.uint32)).tolist() == [14, 22, 1]
    host.run(host.kernel("call_table", "calls"), 1, 1, out, 9)
    assert host.get(out, np.zeros(2, np.uint32)).tolist() == [18, 28]
    table = host.cuda.cuModuleGetGlobal(host.module("calls"), b"table")[1]
    assert np.array_equal(
        host.get(table, np.zeros(2, np.uint64)), host.get(kept, np.zeros(2, np.uint64))
    )


def test_an_address_at_which_no_function_is_ends_the_kernel(fresh: Any) -> None:
    kept, out = fresh.put(np.full(2, 0x1234, np.uint64)), fresh.put(np.zeros(3, np.uint32))
    assert fresh.launch(fresh.kernel("call", "calls"), 1, 1, kept, out, 7) == 0
    assert fresh.cuda.cuCtxSynchronize()[0] == INVALID_PC
    assert "at which no function is in kernel call" in fresh.cuda.fault().reason


def test_threads_of_a_warp_call_different_functions(host: Any) -> None:
    kernel = host.cuda.cuModuleGetFunction(load(host, CHOICE), b"run")[1]
    out = host.put(np.zeros(40, np.uint32))
    host.run(kernel, 1, 40, out)
    expected = [i + 1 if i % 2 == 0 else i - 1 for i in range(40)]
    expected[9] = 9
    assert host.get(out, np.zeros(40, np.uint32)).tolist() == expected


def test_a_function_is_copied_less_often_than_it_is_called(host: Any) -> None:
    """Ten functions, each of which calls the next one four times: a million copies inlined."""
    functions = [
        f".func (.reg .b32 out) f{i}(.reg .b32 x) {{ .reg .b32 %r;\n"
        + "mov.b32 %r, x;\n"
        + ("add.u32 %r, %r, 1;\n" if i == 0 else f"call (%r), f{i - 1}, (%r);\n" * 4)
        + "mov.b32 out, %r; ret; }\n"
        for i in range(10)
    ]
    entry = """
        .visible .entry run(.param .u64 out)
        { .reg .b32 %r; .reg .b64 %d; ld.param.u64 %d, [out];
          call (%r), f9, (0); st.global.u32 [%d], %r; ret; }
    """
    kernel = host.cuda.cuModuleGetFunction(load(host, HEADER + "".join(functions) + entry), b"run")
    out = host.put(np.zeros(1, np.uint32))
    host.run(kernel[1], 1, 1, out)
    assert host.get(out, np.zeros(1, np.uint32))[0] == 4**9


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("call nowhere, ();", 801),
        ("call k, ();", 218),
        ("call %d1, (), missing;", 218),
        ("call %d1, ();", 218),
        (".param .b32 x; call f, (x);", 218),
        (".param .b32 x; ld.param.b64 %d1, [x];", 218),
        (".param .b32 x; st.param.b32 [x+4], 1;", 218),
        ("ld.param.u64 %d1, [out+4096];", 218),
    ],
)
def test_calls_and_parameters_that_do_not_fit_are_refused(host: Any, text: str, code: int) -> None:
    function = ".func f(.param .b64 x) { ret; }\n"
    body = f".visible .entry k(.param .u64 out) {{ .reg .b64 %d<3>; {text} ret; }}"
    assert host.cuda.cuModuleLoadData((HEADER + function + body).encode())[0] == code


def test_an_address_may_be_written_byte_by_byte(host: Any) -> None:
    """As compilers do it in structures without a common type."""
    parts = ", ".join(f"{0xFF << 8 * i:#x}(up)" for i in range(8))
    more = ", ".join(f"{0xFF << 8 * i:#x}(generic(word)+4)" for i in range(8))
    text = CHOICE + (
        f".global .u32 word[2];\n"
        f".global .align 8 .b8 table[17] = {{7, 0, 0, 0, 0, 0, 0, 0, {parts}}};\n"
        f".global .align 8 .b8 place[8] = {{{more}}};\n"
    )
    module = load(host, text)
    table, word, place = (
        host.cuda.cuModuleGetGlobal(module, name)[1] for name in (b"table", b"word", b"place")
    )
    entry = host.get(table, np.zeros(2, np.uint64)).tolist()
    assert entry[0] == 7
    assert entry[1] >> 44 == 7  # where addresses of functions are
    assert host.get(place, np.zeros(1, np.uint64))[0] == word + 4
