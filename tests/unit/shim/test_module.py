"""Modules: loads travel, look-ups do not, and nothing of an unloaded one is found."""

from __future__ import annotations

import ctypes
import re

import pytest
from helpers.fake_link import image
from helpers.fatbins import InMemory, sample, wrapper

from outlast.cuda_types import CUfunction_attribute
from outlast.session.operations import Op
from outlast.shim import driver

KERNEL = ("k", [[0, 8], [8, 4]])


@pytest.fixture
def module(context):
    result, handle = driver.cuModuleLoadData(image(KERNEL, variables={"table": 64}))
    assert result == 0
    return handle


def test_a_load_sends_the_image_unchanged(link, context):
    data = image(KERNEL)
    for form in (data, bytearray(data), ctypes.create_string_buffer(data, len(data))):
        assert driver.cuModuleLoadData(form)[0] == 0
    assert [call[2] for call in link.of(Op.MODULE_LOAD)] == [data] * 3


def test_an_image_given_by_address_ends_at_its_nul(link, context):
    text = ctypes.create_string_buffer(image(KERNEL))
    assert driver.cuModuleLoadData(ctypes.addressof(text))[0] == 0
    assert driver.cuModuleLoadDataEx(ctypes.addressof(text), 0, (), ())[0] == 0
    assert link.of(Op.MODULE_LOAD)[0][2] == image(KERNEL)


def test_binary_images_given_by_address_arrive_whole(link, context):
    fatbin = (0xBA55ED50).to_bytes(4, "little") + bytes([1, 0, 16, 0]) + (5).to_bytes(8, "little")
    fatbin += b"\0ab\0c"
    elf = bytearray(b"\x7fELF\2".ljust(64, b"\0"))
    elf[40:48] = (64).to_bytes(8, "little")
    elf[58:62] = bytes([64, 0, 3, 0])
    elf += b"\0" * 3 * 64
    for binary in (fatbin, bytes(elf)):
        holder = ctypes.create_string_buffer(binary + b"behind")
        assert driver.cuModuleLoadData(ctypes.addressof(holder)) == (218, None)
        assert link.calls[-1][2] == binary


def test_a_wrapper_is_followed_before_anything_travels(link, context):
    held = InMemory(sample("size"))
    for form in (wrapper(held.address), InMemory(wrapper(held.address)).address):
        assert driver.cuModuleLoadData(form) == (218, None)
    assert [call[2] for call in link.of(Op.MODULE_LOAD)] == [sample("size")] * 2


@pytest.mark.parametrize(
    "form",
    [wrapper(0x10_0000), 0x10_0000, sample("size")[:-1], sample("cubin")[:1000], b"\x7fELF"],
)
def test_an_image_that_is_not_all_there_is_refused_with_the_reason(link, context, form):
    assert driver.cuModuleLoadData(form) == (200, None)
    assert link.of(Op.MODULE_LOAD) == []
    assert re.search("no memory at 0x100000|cut off", str(driver.last_error()))


def test_a_file_is_read_where_the_program_is(link, context, tmp_path):
    path = tmp_path / "kernels.fatbin"
    assert driver.cuModuleLoad(str(path).encode()) == (301, None)
    path.write_bytes(sample("speed"))
    assert driver.cuModuleLoad(str(path)) == (218, None)
    path.write_bytes(b"")
    assert driver.cuModuleLoad(str(path)) == (200, None)
    assert [call[2] for call in link.of(Op.MODULE_LOAD)] == [sample("speed")]


def test_a_bad_image_is_refused(link, context):
    assert driver.cuModuleLoadData(b"garbage") == (218, None)
    assert driver.cuModuleLoadData(b"") == (1, None)
    assert driver.cuModuleLoadData(0) == (1, None)
    with pytest.raises(TypeError):
        driver.cuModuleLoadData("text")
    assert driver.cuModuleLoadData(image(KERNEL))[0] == 0


def test_a_reply_that_describes_no_module_is_an_error(link, context):
    assert driver.cuModuleLoadData(b'{"functions": [{}], "globals": {}}') == (999, None)


def test_look_ups_are_local_and_a_missing_name_is_not_found(link, module):
    _, function = driver.cuModuleGetFunction(module, b"k")
    before = len(link.calls)
    assert driver.cuModuleGetFunction(module, "k") == (0, function)
    assert driver.cuModuleGetFunction(module, b"nothing") == (500, None)
    assert driver.cuModuleGetGlobal(module, b"nothing") == (500, None, None)
    assert driver.cuFuncGetParamInfo(function, 1) == (0, 8, 4)
    assert driver.cuFuncGetParamInfo(function, 2) == (1, None, None)
    name = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    assert driver.cuFuncGetAttribute(name, function) == (0, 1024)
    assert driver.cuFuncGetAttribute(77, function) == (1, None)
    assert len(link.calls) == before


def test_a_variable_is_device_memory_that_cannot_be_freed(link, module):
    result, address, size = driver.cuModuleGetGlobal(module, b"table")
    assert (result, size) == (0, 64)
    assert driver.cuMemcpyHtoD(address, b"x" * 64, 64) == (0,)
    assert driver.cuMemFree(address) == (1,)
    assert driver.cuModuleUnload(module) == (0,)
    assert driver.cuMemcpyHtoD(address, b"x" * 64, 64) == (1,)


def test_setting_an_attribute_is_answered_and_changes_the_check(link, module):
    name = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _, function = driver.cuModuleGetFunction(module, b"k")
    parameters = ((0, 0), (ctypes.c_void_p, ctypes.c_int))

    def launch(shared):
        return driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, shared, 0, parameters, 0)

    assert launch(100_000) == (1,)
    assert driver.cuFuncSetAttribute(function, name, 100_000) == (0,)
    assert driver.cuFuncGetAttribute(name, function) == (0, 100_000)
    assert launch(100_000) == (0,)
    assert driver.cuFuncSetAttribute(function, name, 0) == (0,)
    assert launch(100_000) == (1,)


def test_an_attribute_that_cannot_be_set_is_refused(link, module):
    name = CUfunction_attribute
    _, function = driver.cuModuleGetFunction(module, b"k")
    result = driver.cuFuncSetAttribute(function, name.CU_FUNC_ATTRIBUTE_NUM_REGS, 1)
    assert result == (1,)
    link.fail_next[Op.FUNCTION_SET_ATTRIBUTE] = 1
    settable = name.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert driver.cuFuncSetAttribute(function, settable, 1 << 30) == (1,)
    assert driver.cuFuncGetAttribute(settable, function) == (0, 49152)


@pytest.mark.parametrize("handle", [-1, 0, 0x0600_0000_0010, 1 << 65])
def test_foreign_module_and_function_handles_are_invalid(handle, link, context):
    assert driver.cuModuleUnload(handle) == (400,)
    assert driver.cuModuleGetFunction(handle, b"k") == (400, None)
    assert driver.cuModuleGetGlobal(handle, b"k") == (400, None, None)
    assert driver.cuFuncGetAttribute(0, handle) == (400, None)
    assert driver.cuLaunchKernel(handle, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == (400,)
    assert driver.cuMemAlloc(16)[0] == 0


def test_a_handle_of_another_kind_is_invalid(link, module):
    _, stream = driver.cuStreamCreate(0)
    assert driver.cuModuleUnload(stream) == (400,)
    assert driver.cuEventRecord(module, 0) == (400,)
    assert driver.cuStreamDestroy(module) == (400,)


def test_no_handle_of_an_unloaded_module_ever_comes_back(link, context):
    layouts = ([[0, 8]], [[0, 8], [8, 8], [16, 4]])
    values = (
        ((1,), (ctypes.c_void_p,)),
        ((1, 2, 3.0), (ctypes.c_void_p, ctypes.c_long, ctypes.c_float)),
    )
    seen = set()
    for round_number in range(200):
        which = round_number % 2
        _, module = driver.cuModuleLoadData(image(("k", layouts[which])))
        _, function = driver.cuModuleGetFunction(module, b"k")
        assert not seen & {module, function}
        seen |= {module, function}
        launch = (function, 1, 1, 1, 1, 1, 1, 0, 0)
        assert driver.cuLaunchKernel(*launch, values[which], 0) == (0,)
        assert len(link.calls[-1][2]) == (8, 20)[which]
        assert driver.cuLaunchKernel(*launch, values[1 - which], 0) == (1,)
        assert driver.cuModuleUnload(module) == (0,)
        assert driver.cuLaunchKernel(*launch, values[which], 0) == (400,)
