"""Allocations in the order of a stream, and the pools they come from."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from outlast.cuda_types import CUmemPool_attribute as Name
from outlast.cuda_types import CUpointer_attribute
from outlast.session.operations import Op
from outlast.shim import driver

POOL_OF = CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
USED, USED_HIGH = Name.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, Name.CU_MEMPOOL_ATTR_USED_MEM_HIGH
RESERVED = Name.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
RESERVED_HIGH = Name.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
THRESHOLD = Name.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
MIB = 1 << 20
NOT_SUPPORTED = 801


@pytest.fixture
def stream(context):
    """A stream of device 0."""
    return driver.cuStreamCreate(1)[1]


@pytest.fixture
def pool(context):
    """The default pool of device 0."""
    return driver.cuDeviceGetDefaultMemPool(0)[1]


def figures(pool, *names):
    return [driver.cuMemPoolGetAttribute(pool, name)[1] for name in names]


def properties(**changes):
    props = driver.CUmemPoolProps()
    props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    for name, value in changes.items():
        setattr(props, name, value)
    return props


def test_an_allocation_is_waited_for_and_names_its_stream(link, stream):
    result, address = driver.cuMemAllocAsync(100, stream)
    assert result == 0
    assert link.calls[-1] == (Op.MEM_ALLOC_ASYNC, (100, stream), None)
    assert driver.cuMemGetAddressRange(address + 99) == (0, address, 100)
    assert driver.cuMemsetD8Async(address, 1, 100, stream) == (0,)
    assert driver.cuMemFreeAsync(address, stream) == (0,)
    assert link.calls[-1] == (Op.MEM_FREE_ASYNC, (address, stream), None)
    assert driver.cuMemGetAddressRange(address) == (500, None, None)


def test_either_free_takes_memory_of_either_allocation(link, stream, pool):
    ordered, plain = driver.cuMemAllocAsync(100, stream)[1], driver.cuMemAlloc(100)[1]
    assert driver.cuMemFree(ordered) == (0,)
    assert driver.cuMemFreeAsync(plain, stream) == (0,)
    assert link.ops()[-2:] == [Op.MEM_FREE, Op.MEM_FREE_ASYNC]
    assert figures(pool, USED) == [0]


def test_what_is_no_allocation_or_no_stream_is_refused(link, stream):
    _, address = driver.cuMemAllocAsync(100, stream)
    link.calls.clear()
    assert driver.cuMemFreeAsync(address + 1, stream) == (1,)
    assert driver.cuMemFreeAsync(address, 0x40) == (400,)
    assert driver.cuMemFreeAsync(0, stream) == (0,)
    assert driver.cuMemAllocAsync(100, 0x40) == (400, None)
    assert driver.cuMemAllocAsync(0, stream) == (0, 0)
    assert driver.cuMemAllocAsync(-1, stream) == (1, None)
    assert driver.cuMemAllocAsync(1 << 63, stream) == (2, None)
    assert link.calls == []
    assert driver.cuMemFreeAsync(address, 0) == (0,)
    assert driver.cuMemFreeAsync(address, stream) == (1,)


def test_an_allocation_that_fails_is_not_counted(link, stream, pool):
    assert driver.cuMemAllocAsync(1 << 40, stream) == (2, None)
    assert figures(pool, USED, USED_HIGH, RESERVED, RESERVED_HIGH) == [0, 0, 0, 0]


def test_a_late_error_is_reported_before_an_allocation(link, context, stream):
    link.deferred[context] = [1]
    assert driver.cuMemAllocAsync(100, stream) == (1, None)
    assert not link.of(Op.MEM_ALLOC_ASYNC)
    assert driver.cuMemAllocAsync(100, stream)[0] == 0


def test_the_default_pool_of_a_device_is_a_constant_and_its_current_one_at_first(link, context):
    pools = [driver.cuDeviceGetDefaultMemPool(device)[1] for device in (0, 1)]
    assert pools == [0x0600_0000_2000, 0x0600_0000_2010]
    assert [driver.cuDeviceGetMemPool(device)[1] for device in (0, 1)] == pools
    assert driver.cuDeviceGetDefaultMemPool(2) == (101, None)
    assert driver.cuMemPoolDestroy(pools[0]) == (1,)


def test_memory_knows_the_pool_that_it_came_from(stream, pool):
    _, own = driver.cuMemPoolCreate(properties())
    _, first = driver.cuMemAllocAsync(100, stream)
    _, second = driver.cuMemAllocFromPoolAsync(100, own, stream)
    assert driver.cuDeviceSetMemPool(0, own) == (0,)
    _, third = driver.cuMemAllocAsync(100, stream)
    _, plain = driver.cuMemAlloc(100)
    found = [driver.cuPointerGetAttribute(POOL_OF, a)[1] for a in (first, second, third, plain)]
    assert found == [pool, own, own, 0]
    where = CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT
    assert driver.cuPointerGetAttribute(where, first) == (0, 0)
    assert figures(pool, USED) == [100]
    assert figures(own, USED) == [200]


def test_a_destroyed_pool_is_the_current_one_no_more_and_its_memory_stays(stream, pool):
    _, own = driver.cuMemPoolCreate(properties())
    driver.cuDeviceSetMemPool(0, own)
    _, address = driver.cuMemAllocAsync(100, stream)
    assert driver.cuMemPoolDestroy(own) == (0,)
    assert driver.cuDeviceGetMemPool(0) == (0, pool)
    for answer in (
        driver.cuMemPoolDestroy(own),
        driver.cuDeviceSetMemPool(0, own),
        driver.cuMemPoolGetAttribute(own, USED),
        driver.cuMemAllocFromPoolAsync(100, own, stream),
    ):
        assert answer[0] == 1
    assert driver.cuMemsetD8(address, 0, 100) == (0,)
    assert driver.cuMemFreeAsync(address, stream) == (0,)


def test_pools_are_of_their_device_alone(stream):
    other = driver.cuDeviceGetDefaultMemPool(1)[1]
    assert driver.cuDeviceSetMemPool(0, other) == (1,)
    assert driver.cuMemAllocFromPoolAsync(100, other, stream) == (NOT_SUPPORTED, None)
    location = driver.CUmemLocation(driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 1)
    _, own = driver.cuMemPoolCreate(properties(location=location))
    assert figures(own, Name.CU_MEMPOOL_ATTR_LOCATION_ID) == [1]
    assert driver.cuDeviceSetMemPool(1, own) == (0,)


def test_a_pool_gives_no_more_than_its_maximum(link, stream):
    _, own = driver.cuMemPoolCreate(properties(maxSize=2048))
    _, address = driver.cuMemAllocFromPoolAsync(1500, own, stream)
    assert driver.cuMemAllocFromPoolAsync(549, own, stream) == (2, None)
    assert len(link.of(Op.MEM_ALLOC_ASYNC)) == 1
    driver.cuMemFreeAsync(address, stream)
    assert driver.cuMemAllocFromPoolAsync(2048, own, stream)[0] == 0


def test_figures_follow_what_is_used_and_high_water_marks_can_be_reset(stream, pool):
    first, second = (driver.cuMemAllocAsync(20 * MIB, stream)[1] for _ in range(2))
    assert figures(pool, USED, RESERVED) == [40 * MIB, 64 * MIB]
    driver.cuMemFreeAsync(first, stream)
    assert figures(pool, USED, USED_HIGH) == [20 * MIB, 40 * MIB]
    assert figures(pool, RESERVED, RESERVED_HIGH) == [32 * MIB, 64 * MIB]
    for name in (USED_HIGH, RESERVED_HIGH):
        assert driver.cuMemPoolSetAttribute(pool, name, 1) == (1,)
        assert driver.cuMemPoolSetAttribute(pool, name, 0) == (0,)
    assert figures(pool, USED_HIGH, RESERVED_HIGH) == [20 * MIB, 32 * MIB]
    driver.cuMemFree(second)
    assert figures(pool, USED, RESERVED) == [0, 0]


def test_free_memory_stays_reserved_up_to_the_threshold_until_it_is_trimmed(stream, pool):
    assert figures(pool, THRESHOLD) == [0]
    assert driver.cuMemPoolSetAttribute(pool, THRESHOLD, (1 << 64) - 1) == (0,)
    assert figures(pool, THRESHOLD) == [(1 << 64) - 1]
    driver.cuMemFreeAsync(driver.cuMemAllocAsync(100 * MIB, stream)[1], stream)
    assert figures(pool, USED, RESERVED) == [0, 128 * MIB]
    assert driver.cuMemPoolTrimTo(pool, 50 * MIB) == (0,)
    assert figures(pool, RESERVED) == [64 * MIB]
    assert driver.cuMemPoolTrimTo(pool, 0) == (0,)
    assert figures(pool, RESERVED) == [0]


def test_memory_that_goes_with_its_context_is_not_in_use(link, context, pool):
    driver.cuCtxCreate(None, 0, 0)
    assert driver.cuMemAllocAsync(100, 0)[0] == 0
    assert figures(pool, USED) == [100]
    assert driver.cuCtxDestroy(driver.cuCtxGetCurrent()[1]) == (0,)
    assert figures(pool, USED) == [0]


@pytest.mark.parametrize("name", [n for n in Name if 1 <= n <= 3])
def test_ways_of_reuse_can_be_switched_and_are_on_at_first(pool, name):
    assert figures(pool, name) == [1]
    assert driver.cuMemPoolSetAttribute(pool, name, 0) == (0,)
    assert figures(pool, name) == [0]


def test_attributes_that_cannot_be_set_or_are_unknown_are_invalid(pool):
    for name in (USED, RESERVED, Name.CU_MEMPOOL_ATTR_MAX_POOL_SIZE, 99):
        assert driver.cuMemPoolSetAttribute(pool, name, 0) == (1,)
    assert driver.cuMemPoolSetAttribute(pool, THRESHOLD, -1) == (1,)
    assert driver.cuMemPoolGetAttribute(pool, 99) == (1, None)
    assert driver.cuMemPoolTrimTo(pool, -1) == (1,)


def test_pools_of_other_kinds_are_not_made(context):
    place, kind = driver.CUmemLocationType, driver.CUmemAllocationType
    host = driver.CUmemLocation(place.CU_MEM_LOCATION_TYPE_HOST, 0)
    nowhere = driver.CUmemLocation(place.CU_MEM_LOCATION_TYPE_DEVICE, 2)
    shared = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    managed = kind.CU_MEM_ALLOCATION_TYPE_MANAGED
    assert driver.cuMemPoolCreate(None) == (1, None)
    assert driver.cuMemPoolCreate(driver.CUmemPoolProps()) == (1, None)
    assert driver.cuMemPoolCreate(properties(location=nowhere)) == (1, None)
    assert driver.cuMemPoolCreate(properties(maxSize=-1)) == (1, None)
    for props in (
        properties(location=host),
        properties(handleTypes=shared),
        properties(allocType=managed),
    ):
        assert driver.cuMemPoolCreate(props) == (NOT_SUPPORTED, None)


def test_properties_of_the_bindings_are_understood(context, stream):
    bindings = pytest.importorskip("cuda.bindings.driver")
    props = bindings.CUmemPoolProps()
    props.allocType = bindings.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = 1
    props.maxSize = 4096
    result, own = driver.cuMemPoolCreate(props)
    assert result == 0
    assert figures(own, Name.CU_MEMPOOL_ATTR_MAX_POOL_SIZE, Name.CU_MEMPOOL_ATTR_LOCATION_ID) == [
        4096,
        1,
    ]
    handle = bindings.CUmemoryPool(int(own))
    threshold = bindings.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    assert driver.cuMemPoolSetAttribute(handle, threshold, bindings.cuuint64_t(7)) == (0,)
    assert driver.cuMemPoolGetAttribute(handle, threshold) == (0, 7)


def test_a_pool_is_used_by_its_own_device_and_by_no_other(pool):
    def place(number, kind=driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE):
        return driver.CUmemLocation(kind, number)

    def wish(number, flags):
        return SimpleNamespace(location=place(number), flags=flags)

    none, read, all_of_it = 0, 1, 3
    assert driver.cuMemPoolGetAccess(pool, place(0)) == (0, all_of_it)
    assert driver.cuMemPoolGetAccess(pool, place(1)) == (0, none)
    assert driver.cuMemPoolGetAccess(pool, place(2)) == (101, None)
    assert driver.cuMemPoolGetAccess(pool, place(0, 0)) == (1, None)
    usual = [wish(0, all_of_it), wish(1, none)]
    assert driver.cuMemPoolSetAccess(pool, usual, 2) == (0,)
    for other in (wish(0, none), wish(0, read), wish(1, all_of_it)):
        assert driver.cuMemPoolSetAccess(pool, [other], 1) == (NOT_SUPPORTED,)
    assert driver.cuMemPoolSetAccess(pool, usual, 3) == (1,)
    assert driver.cuMemPoolSetAccess(pool, [wish(0, 2)], 1) == (1,)
