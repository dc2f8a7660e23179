"""Libraries: one load a context, kernels that hold in all, nothing left of an unloaded one."""

from __future__ import annotations

import ctypes

import pytest
from helpers.fake_link import image

from outlast.cuda_types import CUfunction_attribute as Attribute
from outlast.session.operations import Op
from outlast.shim import driver

IMAGE = image(("a", [[0, 8]]), ("b", [[0, 8], [8, 4]]), variables={"table": 64})
SHARED = Attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
NO_OPTIONS = (None, None, 0, None, None, 0)
INVALID_HANDLE, INVALID_CONTEXT, NOT_FOUND, NOT_PERMITTED = 400, 201, 500, 800


def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


@pytest.fixture
def library(context):
    return ok(driver.cuLibraryLoadData(IMAGE, *NO_OPTIONS))


def launch(function, value=7, shared=0):
    parameters = ((value,), (ctypes.c_void_p,))
    return driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, shared, 0, parameters, 0)


def test_a_load_brings_the_module_of_the_current_context_along(link, library):
    assert link.ops().count(Op.LIBRARY_LOAD) == 1
    before = len(link.calls)
    module = ok(driver.cuLibraryGetModule(library))
    address, size = ok(driver.cuLibraryGetGlobal(library, b"table"))
    assert (address, size) == ok(driver.cuModuleGetGlobal(module, b"table"))
    assert driver.cuLibraryGetKernelCount(library) == (0, 2)
    assert len(link.calls) == before
    assert driver.cuMemcpyHtoD(address, b"x" * size, size) == (0,)


def test_a_library_needs_no_context_until_something_of_it_does(link):
    assert driver.cuInit(0) == (0,)
    library = ok(driver.cuLibraryLoadData(IMAGE, *NO_OPTIONS))
    kernel = ok(driver.cuLibraryGetKernel(library, b"a"))
    assert driver.cuKernelGetName(kernel) == (0, b"a")
    assert driver.cuKernelGetParamInfo(kernel, 0) == (0, 0, 8)
    assert driver.cuKernelGetParamInfo(kernel, 1) == (1, None, None)
    assert driver.cuKernelGetAttribute(SHARED, kernel, 0) == (0, 49152)
    assert driver.cuKernelGetFunction(kernel) == (INVALID_CONTEXT, None)
    assert driver.cuLibraryGetGlobal(library, b"table") == (INVALID_CONTEXT, None, None)
    assert Op.LIBRARY_MODULE not in link.ops()
    driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0)))
    function = ok(driver.cuKernelGetFunction(kernel))
    assert driver.cuFuncGetName(function) == (0, b"a")
    assert link.ops().count(Op.LIBRARY_MODULE) == 1


def test_a_kernel_is_launched_as_its_function_of_the_current_context(link, library):
    kernel = ok(driver.cuLibraryGetKernel(library, "a"))
    assert launch(kernel) == launch(kernel) == (0,)
    first = {args[0] for op, args, _ in link.calls if op is Op.LAUNCH}
    assert first == {ok(driver.cuKernelGetFunction(kernel))}
    other = ok(driver.cuCtxCreate(None, 0, 1))
    assert launch(kernel) == (0,)
    second = link.of(Op.LAUNCH)[-1][1][0]
    assert second not in first
    assert second == ok(driver.cuKernelGetFunction(kernel))
    assert link.ops().count(Op.LIBRARY_MODULE) == 1
    assert ok(driver.cuFuncGetModule(second)) == ok(driver.cuLibraryGetModule(library))
    assert driver.cuCtxDestroy(other) == (0,)
    assert launch(kernel) == (0,)
    assert link.of(Op.LAUNCH)[-1][1][0] in first


def test_look_ups_give_the_same_handle_and_a_missing_name_is_not_found(link, library):
    kernel = ok(driver.cuLibraryGetKernel(library, b"b"))
    before = len(link.calls)
    assert ok(driver.cuLibraryGetKernel(library, "b")) == kernel
    assert driver.cuKernelGetLibrary(kernel) == (0, library)
    assert driver.cuLibraryGetKernel(library, b"c") == (NOT_FOUND, None)
    assert driver.cuLibraryGetGlobal(library, b"c") == (NOT_FOUND, None, None)
    assert driver.cuLibraryGetManaged(library, b"table") == (NOT_FOUND, None, None)
    assert len(link.calls) == before
    assert ok(driver.cuLibraryEnumerateKernels(9, library))[1] == kernel
    assert len(ok(driver.cuLibraryEnumerateKernels(1, library))) == 1
    assert driver.cuLibraryEnumerateKernels(0, library) == (1, None)


def test_nothing_of_an_unloaded_library_is_found(link, library):
    kernel = ok(driver.cuLibraryGetKernel(library, b"a"))
    function, module = (
        ok(driver.cuKernelGetFunction(kernel)),
        ok(driver.cuLibraryGetModule(library)),
    )
    address, _ = ok(driver.cuLibraryGetGlobal(library, b"table"))
    assert launch(kernel) == launch(function) == (0,)
    assert driver.cuModuleUnload(module) == (NOT_PERMITTED,)
    assert driver.cuLibraryUnload(library) == (0,)
    assert launch(kernel) == launch(function) == (INVALID_HANDLE,)
    assert driver.cuLibraryUnload(library) == (INVALID_HANDLE,)
    assert driver.cuLibraryGetModule(library) == (INVALID_HANDLE, None)
    assert driver.cuKernelGetName(kernel) == (INVALID_HANDLE, None)
    assert driver.cuModuleGetFunction(module, b"a") == (INVALID_HANDLE, None)
    assert driver.cuMemcpyHtoD(address, b"x", 1) == (1,)


def test_an_attribute_of_a_kernel_holds_in_all_contexts_of_its_device(link, library, context):
    kernel = ok(driver.cuLibraryGetKernel(library, b"a"))
    assert launch(kernel, shared=60_000) == (1,)
    assert driver.cuKernelSetAttribute(SHARED, 60_000, kernel, 0) == (0,)
    assert driver.cuKernelGetAttribute(SHARED, kernel, 0) == (0, 60_000)
    assert driver.cuKernelGetAttribute(SHARED, kernel, 1) == (0, 49152)
    assert launch(kernel, shared=60_000) == (0,)
    ok(driver.cuCtxCreate(None, 0, 0))
    assert launch(kernel, shared=60_000) == (0,)
    ok(driver.cuCtxCreate(None, 0, 1))
    assert launch(kernel, shared=60_000) == (1,)
    assert driver.cuKernelSetAttribute(SHARED, 1, kernel, 2) == (101,)
    assert driver.cuKernelSetAttribute(Attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, 1, kernel, 0) == (1,)


def test_a_refused_image_makes_no_library(link, context):
    assert driver.cuLibraryLoadData(b"garbage", *NO_OPTIONS) == (218, None)
    link.fail_next[Op.LIBRARY_LOAD] = 209
    assert driver.cuLibraryLoadData(IMAGE, *NO_OPTIONS) == (209, None)
    assert driver.cuLibraryLoadFromFile(b"/nowhere", *NO_OPTIONS) == (301, None)


def test_functions_of_a_module_are_counted_and_listed(link, context):
    module = ok(driver.cuModuleLoadData(IMAGE))
    assert driver.cuModuleGetFunctionCount(module) == (0, 2)
    functions = ok(driver.cuModuleEnumerateFunctions(2, module))
    assert [ok(driver.cuFuncGetName(f)) for f in functions] == [b"a", b"b"]
    assert functions[1] == ok(driver.cuModuleGetFunction(module, b"b"))
    assert driver.cuFuncIsLoaded(functions[0]) == (0, 1)
    assert driver.cuFuncLoad(functions[0]) == (0,)
    assert driver.cuModuleEnumerateFunctions(0, module) == (1, None)


@pytest.mark.parametrize("handle", [-1, 0, 0x0600_0000_0010, 1 << 65])
def test_foreign_handles_are_invalid(handle, link, context):
    assert driver.cuLibraryUnload(handle) == (INVALID_HANDLE,)
    assert driver.cuLibraryGetKernel(handle, b"a") == (INVALID_HANDLE, None)
    assert driver.cuKernelGetFunction(handle) == (INVALID_HANDLE, None)
    assert driver.cuKernelGetAttribute(SHARED, handle, 0) == (INVALID_HANDLE, None)
    assert driver.cuFuncGetName(handle) == (INVALID_HANDLE, None)
