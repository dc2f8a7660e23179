"""What the emulated device does not do is refused when it is loaded, with opcode and line."""

from __future__ import annotations

import re
from typing import Any

import pytest

NOT_SUPPORTED = 801
HEADER = ".version 8.7\n.target sm_100\n.address_size 64\n"

INSTRUCTIONS = {
    "texture": "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%d1, {%f5, %f6}];",
    "texture gather": "tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%d1, {%f5, %f6}];",
    "texture query": "txq.width.b32 %r1, [%d1];",
    "surface load": "suld.b.1d.b32.trap {%r1}, [%d1, {%r2}];",
    "surface store": "sust.b.1d.b32.trap [%d1, {%r2}], {%r1};",
    "wgmma": "wgmma.fence.sync.aligned;",
    "tcgen05": "tcgen05.wait::ld.sync.aligned;",
    "tensor copy": "cp.async.bulk.commit_group;",
    "tensor prefetch": "cp.async.bulk.prefetch.L2.global [%d1], 16;",
    "mbarrier": "mbarrier.init.shared.b64 [%r1], 1;",
    "barrier of copies": "cp.async.mbarrier.arrive.shared.b64 [%r1];",
    "cluster barrier": "barrier.cluster.arrive;",
    "cluster address": "mapa.shared::cluster.u32 %r1, %r2, 0;",
    "cluster memory": "ld.shared::cluster.u32 %r1, [%r2];",
    "cluster register": "mov.u32 %r1, %clusterid.x;",
    "grid synchronisation": "mov.u32 %r1, %envreg2;",
    "election": "elect.sync _|%p1, 0xffffffff;",
    "registers of a warp group": "setmaxnreg.inc.sync.aligned.u32 40;",
    "sparse matrices": "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2};",
    "vectors of a reduction": "red.global.v2.f32.add [%d1], {%f1, %f2};",
    "eight-bit floats": "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
    "dynamic parallelism": "call (%d1), cudaGetParameterBufferV2, (%d1);",
    "memory of the device's heap": "call (%d1), malloc, (%d1);",
}


@pytest.mark.parametrize("instruction", INSTRUCTIONS.values(), ids=INSTRUCTIONS.keys())
def test_an_instruction_is_refused_with_its_line(host: Any, instruction: str) -> None:
    text = (
        HEADER
        + ".extern .func (.reg .b64 out) cudaGetParameterBufferV2(.reg .b64 x);\n"
        + ".extern .func (.reg .b64 out) malloc(.reg .b64 x);\n"
        + ".visible .entry fine() { ret; }\n"
        + ".visible .entry k()\n{ .reg .b16 %h<3>; .reg .b32 %r<4>; .reg .b64 %d<4>;"
        + " .reg .f32 %f<8>; .reg .pred %p<3>;\n"
        + instruction
        + "\nret; }\n"
    )
    before = host.cuda.cuMemGetInfo()
    assert host.cuda.cuModuleLoadData(text.encode()) == (NOT_SUPPORTED, None)
    # Of a call and of a move it is the operand that cannot be had.
    operand = re.search(r"(?:call .*?, |mov.u32 %r1, )([%.\w]+)", instruction)
    reason = operand[1] if operand else instruction.split(" ")[0].strip(";")
    assert host.cuda.load_log.startswith("line 9: ")
    assert reason in host.cuda.load_log
    assert host.cuda.cuMemGetInfo() == before


@pytest.mark.parametrize("declaration", [".global .texref t;", ".global .surfref s;"])
def test_references_to_textures_are_refused(host: Any, declaration: str) -> None:
    assert host.cuda.cuModuleLoadData((HEADER + declaration).encode())[0] in (218, NOT_SUPPORTED)
