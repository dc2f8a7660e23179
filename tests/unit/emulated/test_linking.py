"""Texts that are linked do together what they say, and what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.fatbins import sample

from outlast.cuda_types import CUjitInputType
from outlast.session.link_inputs import LinkInput

PTX, FATBIN = CUjitInputType.CU_JIT_INPUT_PTX, CUjitInputType.CU_JIT_INPUT_FATBINARY
HEAD = ".version {}\n.target sm_{}\n.address_size 64\n"

#: Calls a function and reads a variable that are elsewhere; has a table and a helper of its own.
CALLER = (
    HEAD.format("7.5", 80)
    + """
.file 1 "somewhere; { else.cu"
.extern .func (.param .b32 result) twice (.param .b32 value);
.extern .global .align 4 .u32 shared_number;
.global .align 4 .u32 table[2] = {3, 4}; // a name that the other text has too: {
.func (.param .b32 result) own (.param .b32 value)
{
    .reg .u32 %r<3>;
    ld.param.u32 %r1, [value];
    add.u32 %r2, %r1, 1;
    st.param.b32 [result], %r2;
    ret;
}
.visible .entry run(.param .u64 out)
{
    .local .align 4 .b8 depot[8];
    .reg .u32 %r<8>; .reg .u64 %d<4>;
    .loc 1 1 1
    ld.param.u64 %d1, [out];
    mov.u64 %d2, shared_number;
    ld.global.u32 %r1, [%d2];
    {
        .param .b32 p; .param .b32 q;
        st.param.b32 [p], %r1;
        call (q), twice, (p);
        ld.param.b32 %r2, [q];
        st.param.b32 [p], %r2;
        call (q), own, (p);
        ld.param.b32 %r3, [q];
    }
    mov.u64 %d3, table;
    ld.global.u32 %r4, [%d3+4];
    add.u32 %r5, %r3, %r4;
    st.local.u32 [depot+4], %r5;
    ld.local.u32 %r5, [depot+4];
    st.global.u32 [%d1], %r5;
    ret;
}
"""
)
CALLEE = (
    HEAD.format("8.0", 75)
    + """
/* the other table
   .visible .entry nothing */
.visible .global .align 4 .u32 shared_number = 20;
.global .align 4 .u32 table[1] = {100};
.func (.param .b32 result) own (.param .b32 value)
{
    .reg .u32 %r<4>; .reg .u64 %d<2>;
    ld.param.u32 %r1, [value];
    mov.u64 %d1, table;
    ld.global.u32 %r2, [%d1];
    add.u32 %r3, %r1, %r2;
    st.param.b32 [result], %r3;
    ret;
}
.visible .func (.param .b32 result) twice (.param .b32 value)
{
    .reg .u32 %r<4>;
    ld.param.u32 %r1, [value];
    add.u32 %r2, %r1, %r1;
    {
        .param .b32 p; .param .b32 q;
        st.param.b32 [p], %r2;
        call (q), own, (p);
        ld.param.b32 %r3, [q];
    }
    st.param.b32 [result], %r3;
    ret;
}
"""
)
#: (20 * 2 + 100) + 1 + 4
RESULT = 145


def link(host: Any, *inputs: tuple[int, str | bytes]) -> tuple[int, bytes]:
    parts = [
        LinkInput(int(kind), f"input {i}", data.encode() if isinstance(data, str) else data)
        for i, (kind, data) in enumerate(inputs)
    ]
    result: tuple[int, bytes] = host.cuda.link(parts)
    return result


def run(host: Any, image: bytes) -> int:
    result, module = host.cuda.cuModuleLoadData(image)
    assert result == 0, host.cuda.load_log
    out = host.put(np.zeros(1, np.uint32))
    host.run(host.cuda.cuModuleGetFunction(module, b"run")[1], 1, 1, out)
    return int(host.get(out, np.zeros(1, np.uint32))[0])


@pytest.mark.parametrize("order", [(CALLER, CALLEE), (CALLEE, CALLER)])
def test_texts_call_each_other_and_keep_what_is_their_own(host: Any, order: Any) -> None:
    result, image = link(host, *((PTX, text) for text in order))
    assert result == 0, host.cuda.load_log
    assert run(host, image) == RESULT
    assert image.startswith(b".version 8.0\n.target sm_80\n")


def test_a_link_makes_the_same_image_each_time(host: Any) -> None:
    inputs = [(PTX, CALLER), (PTX, CALLEE)]
    assert link(host, *inputs) == link(host, *inputs)


def test_what_was_linked_can_be_linked_again(host: Any) -> None:
    once = link(host, (PTX, CALLER), (PTX, CALLEE))[1]
    assert run(host, link(host, (PTX, once))[1]) == RESULT
    extra = HEAD.format("8.0", 80) + ".global .u32 table = 9;"
    assert run(host, link(host, (PTX, once), (PTX, extra))[1]) == RESULT


def test_fatbins_are_linked_by_their_text(host: Any) -> None:
    result, image = link(host, (FATBIN, sample("size")), (PTX, CALLER), (PTX, CALLEE))
    assert result == 0
    module = host.cuda.cuModuleLoadData(image)[1]
    assert host.cuda.cuModuleGetFunction(module, b"which")[0] == 0
    assert run(host, image) == RESULT


def test_weak_functions_of_several_texts_are_one(host: Any) -> None:
    weak = CALLEE.replace(".visible .func", ".weak .func").replace(
        ".visible .global", ".weak .global"
    )
    result, image = link(host, (PTX, weak), (PTX, weak), (PTX, CALLER))
    assert result == 0, host.cuda.load_log
    assert run(host, image) == RESULT


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ([(PTX, CALLEE), (PTX, CALLEE)], 218),  # defined twice
        ([(PTX, CALLER)], 218),  # the variable is nowhere
        ([(PTX, "garbage")], 200),
        ([(PTX, HEAD.format("8.0", 80) + ".visible .entry k() {")], 218),
        ([(PTX, ".version x\n")], 218),
        ([], 218),
        ([(CUjitInputType.CU_JIT_INPUT_CUBIN, b"\x7fELF")], 209),
        ([(FATBIN, sample("cubin"))], 209),
        ([(CUjitInputType.CU_JIT_INPUT_LIBRARY, b"!<arch>")], 801),
        ([(77, b"?")], 801),
    ],
)
def test_what_cannot_be_linked_is_refused_with_a_reason(
    host: Any, inputs: list[tuple[int, Any]], code: int
) -> None:
    host.cuda.load_log = ""
    assert link(host, *inputs) == (code, b"")
    assert host.cuda.load_log
