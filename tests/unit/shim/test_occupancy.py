"""Occupancy is asked for once; cooperative launches and attributes follow what a device can."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from helpers.fake_link import ATTRIBUTES, image

from outlast.cuda_types import CUdevice_attribute, CUfunction_attribute
from outlast.session.operations import Op
from outlast.shim import driver
from outlast.shim.driver import CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig

ID = CUlaunchAttributeID
PARAMETERS = ((7,), (ctypes.c_void_p,))
TOO_LARGE, NOT_SUPPORTED = 720, 801


@pytest.fixture
def kernel(context):
    _, module = driver.cuModuleLoadData(image(("k", [[0, 8]])))
    return driver.cuModuleGetFunction(module, b"k")[1]


def launch_ex(kernel, *attributes, count=None, **options):
    attrs = [CUlaunchAttribute(number, value) for number, value in attributes]
    count = len(attrs) if count is None else count
    return driver.cuLaunchKernelEx(
        CUlaunchConfig(attrs=attrs, numAttrs=count, **options), kernel, PARAMETERS, 0
    )


def test_the_same_question_travels_once_until_an_attribute_changes(link, kernel):
    ask = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
    assert ask(kernel, 128, 0) == ask(kernel, 128, 0) == (0, 8)
    assert driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(kernel, 128, 0, 0) == (0, 8)
    assert len(link.of(Op.OCCUPANCY)) == 1
    assert ask(kernel, 256, 0) == (0, 4)
    dynamic = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert driver.cuFuncSetAttribute(kernel, dynamic, 1024) == (0,)
    assert ask(kernel, 128, 0) == (0, 8)
    assert len(link.of(Op.OCCUPANCY)) == 3


@pytest.mark.parametrize("arguments", [(0, 0), (-1, 0), (32, -1), (1 << 31, 0)])
def test_impossible_blocks_are_refused_here(link, kernel, arguments):
    assert driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, *arguments) == (1, None)
    assert not link.of(Op.OCCUPANCY)


def test_the_best_block_size_fills_a_device(link, kernel):
    best = driver.cuOccupancyMaxPotentialBlockSize
    assert best(kernel, None, 0, 0) == (0, 4, 1024)
    assert best(kernel, None, 0, 100) == (0, 64, 64)
    assert best(kernel, None, 0, 33) == (0, 128, 32)
    # Shared memory that grows with the block: 32 bytes a thread and more.
    assert best(kernel, lambda size: size * 128, 0, 0) == (0, 4, 512)
    in_c = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(lambda size: size * 128)
    address = ctypes.cast(in_c, ctypes.c_void_p).value
    assert best(kernel, address, 0, 0) == (0, 4, 512)
    assert driver.cuOccupancyMaxPotentialBlockSizeWithFlags(kernel, 0, 0, 64, 1)[0] == 0
    assert driver.cuOccupancyAvailableDynamicSMemPerBlock(kernel, 2, 64) == (0, 32768)


def test_a_cooperative_launch_is_one_if_all_its_blocks_fit(link, kernel):
    dimensions = (1, 1, 128, 1, 1, 0, 0)
    assert driver.cuLaunchCooperativeKernel(kernel, 32, *dimensions, PARAMETERS) == (0,)
    assert driver.cuLaunchCooperativeKernel(kernel, 33, *dimensions, PARAMETERS) == (TOO_LARGE,)
    assert driver.cuLaunchCooperativeKernel(kernel, 0, *dimensions, PARAMETERS) == (1,)
    ((_, args, data),) = link.of(Op.LAUNCH_COOPERATIVE)
    assert args == (kernel, 0, 32, 1, 1, 128, 1, 1, 0)
    assert data == (7).to_bytes(8, "little")
    assert not link.of(Op.LAUNCH)


def test_a_device_that_cannot_do_it_is_not_asked(link, monkeypatch):
    attribute = CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
    link.devices[0]["attributes"][str(int(attribute))] = 0
    assert ATTRIBUTES[attribute]
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    _, module = driver.cuModuleLoadData(image(("k", [[0, 8]])))
    kernel = driver.cuModuleGetFunction(module, b"k")[1]
    answer = driver.cuLaunchCooperativeKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, PARAMETERS)
    assert answer == (NOT_SUPPORTED,)
    assert launch_ex(kernel, (ID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1)) == (NOT_SUPPORTED,)


def test_hints_of_a_launch_are_taken_as_such_and_the_rest_is_refused(link, kernel):
    one = SimpleNamespace(clusterDim=SimpleNamespace(x=1, y=1, z=1))
    two = SimpleNamespace(clusterDim=SimpleNamespace(x=2, y=1, z=1))
    options = {"gridDimX": 3, "blockDimY": 2, "sharedMemBytes": 16}
    hints = [(ID.CU_LAUNCH_ATTRIBUTE_PRIORITY, -1), (ID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, one)]
    assert launch_ex(kernel, **options) == launch_ex(kernel, *hints, **options) == (0,)
    assert [call[1][2:] for call in link.of(Op.LAUNCH)] == [(3, 1, 1, 1, 2, 1, 16)] * 2
    assert launch_ex(kernel, (ID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1)) == (0,)
    assert len(link.of(Op.LAUNCH_COOPERATIVE)) == 1
    for number, value in (
        (ID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, two),
        (ID.CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, 0),
        (999, 0),
    ):
        assert launch_ex(kernel, (number, value)) == (NOT_SUPPORTED,)
        assert launch_ex(kernel, (number, value), count=0) == (0,)
    assert launch_ex(kernel, count=1) == (1,)
    assert driver.cuLaunchKernelEx(None, kernel, PARAMETERS, 0) == (1,)


def test_clusters_are_refused_where_they_are_asked_for_too(link, kernel):
    assert driver.cuOccupancyMaxActiveClusters(kernel, CUlaunchConfig()) == (NOT_SUPPORTED, None)
    assert driver.cuOccupancyMaxPotentialClusterSize(kernel, None) == (NOT_SUPPORTED, None)
    assert driver.cuOccupancyMaxActiveClusters(1, None) == (400, None)
