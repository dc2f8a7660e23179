"""What pointers are said to point to."""

from __future__ import annotations

import ctypes

import pytest

from outlast.cuda_types import CUmemorytype
from outlast.cuda_types import CUpointer_attribute as Name
from outlast.shim import driver

SIZE = 64
ASKED_BY_CUDART = [
    Name.CU_POINTER_ATTRIBUTE_CONTEXT,
    Name.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    Name.CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
    Name.CU_POINTER_ATTRIBUTE_HOST_POINTER,
    Name.CU_POINTER_ATTRIBUTE_IS_MANAGED,
    Name.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
]


@pytest.fixture
def memory(context):
    """Some device memory."""
    return driver.cuMemAlloc(SIZE)[1]


@pytest.fixture
def pinned(context):
    """Some pinned memory."""
    return driver.cuMemAllocHost(SIZE)[1]


def test_attributes_of_device_memory_come_from_the_table(link, context, memory):
    link.calls.clear()
    expected = {
        Name.CU_POINTER_ATTRIBUTE_CONTEXT: context,
        Name.CU_POINTER_ATTRIBUTE_MEMORY_TYPE: CUmemorytype.CU_MEMORYTYPE_DEVICE,
        Name.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: 0,
        Name.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: memory,
        Name.CU_POINTER_ATTRIBUTE_RANGE_SIZE: SIZE,
        Name.CU_POINTER_ATTRIBUTE_DEVICE_POINTER: memory + 10,
        Name.CU_POINTER_ATTRIBUTE_IS_MANAGED: 0,
        Name.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: 0,
        Name.CU_POINTER_ATTRIBUTE_MAPPED: 1,
    }
    for attribute, value in expected.items():
        assert driver.cuPointerGetAttribute(attribute, memory + 10) == (0, value)
    host = Name.CU_POINTER_ATTRIBUTE_HOST_POINTER
    assert driver.cuPointerGetAttribute(host, memory) == (1, None)
    assert driver.cuPointerGetAttribute(Name.CU_POINTER_ATTRIBUTE_BUFFER_ID, memory) == (801, None)
    assert link.calls == []


def test_attributes_of_pinned_memory_say_where_the_host_reaches_it(context, pinned):
    expected = {
        Name.CU_POINTER_ATTRIBUTE_CONTEXT: context,
        Name.CU_POINTER_ATTRIBUTE_MEMORY_TYPE: CUmemorytype.CU_MEMORYTYPE_HOST,
        Name.CU_POINTER_ATTRIBUTE_HOST_POINTER: pinned + 10,
        Name.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: 0,
        Name.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: pinned,
        Name.CU_POINTER_ATTRIBUTE_RANGE_SIZE: SIZE,
        Name.CU_POINTER_ATTRIBUTE_IS_MANAGED: 0,
        Name.CU_POINTER_ATTRIBUTE_MAPPED: 1,
    }
    for attribute, value in expected.items():
        assert driver.cuPointerGetAttribute(attribute, pinned + 10) == (0, value)
    device = Name.CU_POINTER_ATTRIBUTE_DEVICE_POINTER
    assert driver.cuPointerGetAttribute(device, pinned) == (1, None)


def test_registered_memory_is_pinned_memory_until_it_is_unregistered(context):
    own = bytearray(SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(own))
    kind = Name.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert driver.cuMemHostRegister(own, SIZE, 0) == (0,)
    assert driver.cuPointerGetAttribute(kind, address + 1) == (0, 1)
    assert driver.cuMemHostUnregister(own) == (0,)
    assert driver.cuPointerGetAttribute(kind, address + 1) == (1, None)


@pytest.mark.parametrize("where", [0, 4096, 1 << 45])
def test_an_unknown_pointer_is_an_error_for_one_attribute_and_none_for_several(context, where):
    for attribute in ASKED_BY_CUDART:
        assert driver.cuPointerGetAttribute(attribute, where) == (1, None)
    result, values = driver.cuPointerGetAttributes(6, ASKED_BY_CUDART, where)
    assert result == 0
    assert values == [0] * 6


def test_memory_that_is_freed_is_unknown(context, memory, pinned):
    driver.cuMemFree(memory)
    driver.cuMemFreeHost(pinned)
    for address in (memory, pinned):
        kind = Name.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        assert driver.cuPointerGetAttribute(kind, address) == (1, None)
        assert driver.cuPointerGetAttributes(1, [kind], address) == (0, [0])


def test_an_address_in_the_arena_that_nobody_allocated_is_unknown(context, memory):
    kind = Name.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert driver.cuPointerGetAttribute(kind, memory + SIZE) == (1, None)


def test_several_attributes_are_0_where_the_memory_has_none(context, memory, pinned):
    result, values = driver.cuPointerGetAttributes(6, ASKED_BY_CUDART, memory + 1)
    assert (result, values) == (0, [context, 2, memory + 1, 0, 0, 0])
    result, values = driver.cuPointerGetAttributes(6, ASKED_BY_CUDART, pinned + 1)
    assert (result, values) == (0, [context, 1, 0, pinned + 1, 0, 0])
    assert driver.cuPointerGetAttributes(1, ASKED_BY_CUDART, memory) == (0, [context])


def test_a_bad_number_of_attributes_is_invalid(context, memory):
    for count in (0, -1, 7):
        assert driver.cuPointerGetAttributes(count, ASKED_BY_CUDART, memory) == (1, None)
    assert driver.cuPointerGetAttributes(1, None, memory) == (1, None)
    tokens = [Name.CU_POINTER_ATTRIBUTE_P2P_TOKENS]
    assert driver.cuPointerGetAttributes(1, tokens, memory) == (801, None)
