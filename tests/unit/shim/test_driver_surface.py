"""The client API has the names and parameters of the CUDA bindings."""

from __future__ import annotations

import inspect
import re

import pytest

from outlast.shim import driver

FUNCTIONS = [name for name in driver.__all__ if re.match(r"cu[A-Z]", name)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_the_parameters_of_the_bindings(name):
    bindings = pytest.importorskip("cuda.bindings.driver")
    signature = getattr(bindings, name).__doc__.splitlines()[0]
    inside = re.sub(r"\[[^\]]*\]", "", signature[signature.index("(") + 1 : -1])
    theirs = [
        re.split(r"[ *]", part.split(":")[0].strip())[-1] for part in inside.split(",") if part
    ]
    assert list(inspect.signature(getattr(driver, name)).parameters) == theirs


def test_the_surface_covers_what_small_programs_call():
    wanted = {"cuInit", "cuMemAlloc", "cuModuleLoadData", "cuLaunchKernel", "cuStreamCreate"}
    assert wanted <= set(FUNCTIONS)
    assert len(FUNCTIONS) >= 60


def test_every_exported_name_exists():
    assert not [name for name in driver.__all__ if not hasattr(driver, name)]


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in {
    "cuInit", "cuGetErrorName", "cuGetErrorString", "cuDriverGetVersion",
}])  # fmt: skip
def test_every_function_fails_with_not_initialized_before_cuinit(name, link):
    function = getattr(driver, name)
    arguments = [0] * len(inspect.signature(function).parameters)
    result, *outputs = function(*arguments)
    assert result == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED
    assert outputs == [None] * len(outputs)


def test_error_names_and_texts_work_before_cuinit(link):
    assert driver.cuGetErrorName(driver.CUresult(2)) == (0, b"CUDA_ERROR_OUT_OF_MEMORY")
    assert driver.cuGetErrorString(700) == (0, b"illegal memory access")
    assert driver.cuGetErrorName(12345) == (1, None)


def test_enums_of_the_bindings_are_understood(link, context):
    bindings = pytest.importorskip("cuda.bindings.driver")
    _, address = driver.cuMemAlloc(16)
    size = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE
    assert driver.cuPointerGetAttribute(size, address) == (0, 16)
    threads = bindings.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    assert driver.cuDeviceGetAttribute(threads, bindings.CUdevice(0)) == (0, 1024)
    flag = bindings.CUstream_flags.CU_STREAM_NON_BLOCKING
    _, stream = driver.cuStreamCreate(flag)
    assert driver.cuStreamGetFlags(bindings.CUstream(stream)) == (0, 1)
    assert driver.cuGetErrorName(bindings.CUresult.CUDA_ERROR_NOT_READY)[0] == 0
    assert driver.cuEventCreate(bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING)[0] == 0
    assert driver.cuCtxSetCurrent(bindings.CUcontext(context)) == (0,)
