"""Loading images: what is accepted, what is refused and with which code."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from outlast.cuda_types import CUfunction_attribute as Attribute

INVALID_VALUE, OUT_OF_MEMORY, INVALID_IMAGE, NO_BINARY = 1, 2, 200, 209
INVALID_PTX, UNSUPPORTED_VERSION, NOT_FOUND, NOT_SUPPORTED = 218, 222, 500, 801

#: Machine code without anything in it.
ELF = b"\x7fELF\2" + bytes(59)
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def kernel_with(body: str) -> bytes:
    registers = ".reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %d<4>; .reg .pred %p<2>;"
    return f"{HEADER}.visible .entry k(.param .u64 x)\n{{\n{registers}\n{body}\nret;\n}}".encode()


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (b"", INVALID_IMAGE),
        (b"garbage", INVALID_IMAGE),
        (b"\xff\xfe\x00\x01", INVALID_IMAGE),
        (ELF, NO_BINARY),
        (ELF[:40], INVALID_IMAGE),
        (b"\x50\xed\x55\xba" + bytes(60), INVALID_IMAGE),
        (b".version 99.0\n.target sm_80\n", UNSUPPORTED_VERSION),
        (b".version 8.0\n", INVALID_PTX),
        (b".version eight\n.target sm_80\n", INVALID_PTX),
        (HEADER.encode() + b"nonsense", INVALID_PTX),
        (HEADER.encode() + b".visible .entry k() {", INVALID_PTX),
        (kernel_with("add.s32 %r1, %r2"), INVALID_PTX),
        (kernel_with("add.s32 %r1, %r2;"), INVALID_PTX),
        (kernel_with("add.s32 %r9, %r1, %r2;"), INVALID_PTX),
        (kernel_with("bra nowhere;"), INVALID_PTX),
        (kernel_with("ld.global.u32 %r1, %r2;"), INVALID_PTX),
        (kernel_with("mov.u32 %r1, nothing;"), INVALID_PTX),
        (kernel_with("and.f32 5, %f1, %f2;"), INVALID_PTX),
        (HEADER.encode() + b".extern .global .u32 missing;", INVALID_PTX),
        (kernel_with("wgmma.fence.sync.aligned;"), NOT_SUPPORTED),
        (kernel_with("call missing, ();"), NOT_SUPPORTED),
        (kernel_with("bar.sync 16;"), INVALID_PTX),
        (HEADER.encode() + b".global .texref t;", INVALID_PTX),
    ],
)
def test_images_are_refused_with_the_code_that_cuda_has(host: Any, image: bytes, code: int) -> None:
    before = host.cuda.cuMemGetInfo()
    assert host.cuda.cuModuleLoadData(image) == (code, None)
    assert host.cuda.cuMemGetInfo() == before


def test_the_log_names_the_instruction_and_its_line(host: Any) -> None:
    assert host.cuda.cuModuleLoadData(kernel_with("wgmma.fence.sync.aligned;"))[0] == 801
    assert host.cuda.load_log == "line 7: instruction wgmma.fence.sync.aligned"


def test_an_instruction_in_a_kernel_that_nobody_launches_is_refused_too(host: Any) -> None:
    image = kernel_with("") + b"\n.visible .entry other() { tex.1d.v4.f32.s32 x, y; ret; }"
    assert host.cuda.cuModuleLoadData(image)[0] == NOT_SUPPORTED


def test_an_image_may_be_the_address_of_a_text(host: Any) -> None:
    text = ctypes.create_string_buffer(kernel_with(""))
    result, module = host.cuda.cuModuleLoadData(ctypes.addressof(text))
    assert result == 0
    assert host.cuda.cuModuleGetFunction(module, b"k")[0] == 0
    elf = ctypes.create_string_buffer(ELF)
    assert host.cuda.cuModuleLoadData(ctypes.addressof(elf))[0] == NO_BINARY
    assert host.cuda.cuModuleLoadData(0)[0] == INVALID_IMAGE


def test_what_is_not_in_a_module_is_not_found(host: Any) -> None:
    module = host.module("common")
    assert host.cuda.cuModuleGetFunction(module, b"nothing") == (NOT_FOUND, None)
    assert host.cuda.cuModuleGetGlobal(module, b"nothing") == (NOT_FOUND, None, None)
    assert host.cuda.cuModuleGetFunction(module + 1, b"saxpy")[0] == 400


def test_function_attributes_follow_from_the_ptx(host: Any) -> None:
    def attribute(kernel: int, name: str) -> int:
        result, value = host.cuda.cuFuncGetAttribute(Attribute[f"CU_FUNC_ATTRIBUTE_{name}"], kernel)
        assert result == 0
        return int(value)

    matmul, bounded = host.kernel("matmul"), host.kernel("bounded", "language")
    assert attribute(matmul, "SHARED_SIZE_BYTES") == 2048
    assert attribute(matmul, "MAX_THREADS_PER_BLOCK") == 1024
    assert attribute(matmul, "BINARY_VERSION") == 80
    assert attribute(bounded, "MAX_THREADS_PER_BLOCK") == 64
    assert attribute(host.kernel("local_array", "language"), "LOCAL_SIZE_BYTES") == 64
    assert host.cuda.cuFuncGetAttribute(999, matmul)[0] == INVALID_VALUE


def test_parameters_have_offsets_and_sizes(host: Any) -> None:
    kernel = host.kernel("by_value", "language")
    assert host.cuda.cuFuncGetParamInfo(kernel, 0) == (0, 0, 36)
    assert host.cuda.cuFuncGetParamInfo(kernel, 1) == (0, 40, 8)
    assert host.cuda.cuFuncGetParamInfo(kernel, 2)[0] == INVALID_VALUE


def test_module_info_says_all_that_a_client_needs(host: Any) -> None:
    info = host.cuda.module_info(host.module("common"))
    saxpy = next(f for f in info.functions if f.name == "saxpy")
    assert [(p.offset, p.size) for p in saxpy.parameters] == [(0, 4), (8, 8), (16, 8), (24, 4)]
    assert {g.name for g in info.globals} >= {"counter", "coefficients"}
    with pytest.raises(KeyError):
        host.cuda.module_info(1)


def test_initial_values_reach_the_device(host: Any) -> None:
    image = f"""{HEADER}
        .global .align 4 .u32 words[4] = {{1, 0x10, 0b11}};
        .const .align 8 .f64 half = 0.5;
        .global .align 4 .f32 single = 0f3F800000;
        .global .align 8 .u64 pointer = generic(words)+8;
    """.encode()
    result, module = host.cuda.cuModuleLoadData(image)
    assert result == 0

    def variable(name: bytes, like: Any) -> Any:
        return host.get(host.cuda.cuModuleGetGlobal(module, name)[1], like)

    words = host.cuda.cuModuleGetGlobal(module, b"words")[1]
    assert variable(b"words", np.zeros(4, np.uint32)).tolist() == [1, 16, 3, 0]
    assert variable(b"half", np.zeros(1))[0] == 0.5
    assert variable(b"single", np.zeros(1, np.float32))[0] == 1.0
    assert variable(b"pointer", np.zeros(1, np.uint64))[0] == words + 8
    assert host.cuda.cuModuleUnload(module)[0] == 0


def test_unloading_frees_variables_and_forgets_functions(fresh: Any) -> None:
    before = fresh.cuda.cuMemGetInfo()
    module, kernel = fresh.module("common"), fresh.kernel("saxpy")
    assert fresh.cuda.cuMemGetInfo() != before
    counter = fresh.cuda.cuModuleGetGlobal(module, b"counter")[1]
    assert fresh.cuda.cuMemFree(counter)[0] == INVALID_VALUE
    assert fresh.cuda.cuModuleUnload(module)[0] == 0
    assert fresh.cuda.cuMemGetInfo() == before
    assert fresh.launch(kernel, 1, 1) == 400
    assert fresh.cuda.cuModuleUnload(module)[0] == 400


def test_a_queued_launch_runs_though_its_module_is_unloaded(fresh: Any) -> None:
    x = np.ones(1 << 18, np.float32)
    px, out = fresh.put(x), fresh.put(np.zeros(1, np.int32))
    saxpy, store = fresh.kernel("saxpy"), fresh.kernel("store")
    fresh.launch(saxpy, 64, 256, 1.0, px, px, 1 << 18)
    fresh.launch(store, 1, 1, out, 5)
    assert fresh.cuda.cuModuleUnload(fresh.module("common"))[0] == 0
    assert fresh.cuda.cuCtxSynchronize()[0] == 0
    assert fresh.get(out, np.zeros(1, np.int32))[0] == 5


def test_a_module_comes_back_at_given_addresses_or_not_at_all(fresh: Any) -> None:
    cuda, image = fresh.cuda, (HEADER + ".global .u32 a = 7; .const .u32 b = 8;").encode()
    base = cuda.devices()[0].arena_base + (1 << 30)
    free = cuda.cuMemGetInfo()
    assert cuda.load_module_at(image, {"a": base, "b": base}) == (OUT_OF_MEMORY, 0)
    assert cuda.load_module_at(image, {"a": base}) == (INVALID_VALUE, 0)
    assert cuda.load_module_at(b"garbage", {}) == (INVALID_IMAGE, 0)
    assert cuda.cuMemGetInfo() == free
    result, module = cuda.load_module_at(image, {"a": base + 8192, "b": base})
    assert result == 0
    assert cuda.cuModuleGetGlobal(module, b"a") == (0, base + 8192, 4)
    assert fresh.get(base, np.zeros(1, np.uint32))[0] == 8
    assert [r.kind for r in cuda.regions()] == ["global", "global"]


def test_the_same_text_loaded_twice_makes_modules_of_their_own(host: Any) -> None:
    """Read once, but variables, attributes and code belong to one module each."""
    image = (
        kernel_with("").decode()
        + """
        .global .u32 counter;
        .visible .entry count() { .reg .b32 %r; atom.global.add.u32 %r, [counter], 1; ret; }
        """
    ).encode()
    modules = [host.cuda.cuModuleLoadData(image)[1] for _ in range(2)]
    kernels = [host.cuda.cuModuleGetFunction(module, b"count")[1] for module in modules]
    for kernel, times in zip(kernels, (3, 1), strict=True):
        for _ in range(times):
            host.run(kernel, 1, 1)
    limit = Attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    before = host.cuda.cuFuncGetAttribute(limit, kernels[1])[1]
    assert host.cuda.cuFuncSetAttribute(kernels[0], limit, 64)[0] == 0
    assert host.cuda.cuFuncGetAttribute(limit, kernels[1])[1] == before
    places = [host.cuda.cuModuleGetGlobal(module, b"counter")[1] for module in modules]
    found = [int(host.get(place, np.zeros(1, np.uint32))[0]) for place in places]
    assert found == [3, 1]
