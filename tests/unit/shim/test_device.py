"""Device queries are answered from the table of the link."""

from __future__ import annotations

import uuid

from outlast.cuda_types import CUdevice_attribute
from outlast.shim import driver


def test_devices_are_answered_locally(link, context):
    before = len(link.calls)
    assert driver.cuDeviceGetCount() == (0, 2)
    assert driver.cuDeviceGet(1) == (0, 1)
    assert driver.cuDeviceTotalMem(1) == (0, 1 << 30)
    assert driver.cuDeviceComputeCapability(0) == (0, 9, 0)
    assert len(link.calls) == before


def test_a_device_that_does_not_exist_is_invalid(link, context):
    for ordinal in (-1, 2, 1 << 40):
        assert driver.cuDeviceGet(ordinal) == (101, None)
        assert driver.cuDevicePrimaryCtxRetain(ordinal) == (101, None)
        assert driver.cuDeviceGetName(64, ordinal) == (101, None)


def test_a_name_fits_its_field(link, context):
    _, name = driver.cuDeviceGetName(64, 0)
    assert len(name) == 64
    assert name.split(b"\0")[0] == b"Fake Device 0"
    assert driver.cuDeviceGetName(5, 0) == (0, b"Fake\0")
    assert driver.cuDeviceGetName(0, 0) == (1, None)


def test_a_uuid_has_sixteen_bytes(link, context):
    _, value = driver.cuDeviceGetUuid(1)
    assert value.bytes == uuid.UUID(int=1).bytes


def test_attributes_come_from_the_table_and_unknown_ones_are_invalid(link, context):
    name = CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    assert driver.cuDeviceGetAttribute(name, 0) == (0, 1024)
    assert driver.cuDeviceGetAttribute(int(name), 1) == (0, 1024)
    assert driver.cuDeviceGetAttribute(99999, 0) == (1, None)


def test_the_driver_version_needs_no_server(link):
    result, version = driver.cuDriverGetVersion()
    assert result == 0
    assert version >= 13000
