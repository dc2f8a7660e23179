"""Initialisation and devices. All of it is answered from the table of the first attachment."""

from __future__ import annotations

import re
from typing import Any

from outlast.cuda_types import CUdevice_attribute, CUresult
from outlast.shim.call import OK, SUCCESS, api, client
from outlast.shim.failure import CallFailure, require
from outlast.shim.handles import CUdevice, CUuuid
from outlast.shim.objects import Device
from outlast.shim.process import process

__all__ = [
    "cuDeviceComputeCapability",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetByPCIBusId",
    "cuDeviceGetCount",
    "cuDeviceGetLuid",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid",
    "cuDeviceTotalMem",
    "cuDriverGetVersion",
    "cuInit",
]

_BUS_ATTRIBUTES = (
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
    CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
)
#: Domain, bus, device; the function is always 0.
_BUS_ID = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.0)?")
#: CUDA version whose driver API this client speaks.
DRIVER_VERSION = 13000


@api()
def cuInit(Flags: int) -> tuple[CUresult]:
    """Connect to the session server, once per process."""
    require(not process.forked, CUresult.CUDA_ERROR_NOT_INITIALIZED)
    require(Flags == 0)
    require(process.initialize().devices, CUresult.CUDA_ERROR_NO_DEVICE)
    return OK


@api(outputs=1)
def cuDriverGetVersion() -> tuple[CUresult, int]:
    """Return the CUDA version of the driver API."""
    require(not process.forked, CUresult.CUDA_ERROR_NOT_INITIALIZED)
    return SUCCESS, DRIVER_VERSION


@api(outputs=1)
def cuDeviceGetCount() -> tuple[CUresult, int]:
    """Return the number of devices."""
    return SUCCESS, len(client().devices)


@api(outputs=1)
def cuDeviceGet(ordinal: int) -> tuple[CUresult, CUdevice]:
    """Return the device of an ordinal."""
    return SUCCESS, CUdevice(client().device(ordinal).ordinal)


@api(outputs=1)
def cuDeviceGetName(length: int, dev: Any) -> tuple[CUresult, bytes]:
    """Return a device's name in a NUL-padded field of ``length`` bytes."""
    device = client().device(dev)
    require(length > 0)
    return SUCCESS, device.name[: length - 1].ljust(length, b"\0")


@api(outputs=1)
def cuDeviceGetUuid(dev: Any) -> tuple[CUresult, CUuuid]:
    """Return a device's UUID."""
    return SUCCESS, CUuuid(client().device(dev).uuid)


@api(outputs=1)
def cuDeviceTotalMem(dev: Any) -> tuple[CUresult, int]:
    """Return a device's memory size in bytes."""
    return SUCCESS, client().device(dev).total_memory


@api(outputs=1)
def cuDeviceGetAttribute(attrib: CUdevice_attribute, dev: Any) -> tuple[CUresult, int]:
    """Return an attribute of a device."""
    attributes = client().device(dev).attributes
    require(int(attrib) in attributes)
    return SUCCESS, attributes[int(attrib)]


@api(outputs=2)
def cuDeviceComputeCapability(dev: Any) -> tuple[CUresult, int, int]:
    """Return a device's compute capability, major and minor."""
    major, minor = (
        client()
        .device(dev)
        .limits(
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    return SUCCESS, major, minor


@api(outputs=1)
def cuDeviceGetPCIBusId(length: int, dev: Any) -> tuple[CUresult, bytes]:
    """Return where a device is on its host's bus, in a NUL-padded field of ``length`` bytes."""
    name = _bus_id(client().device(dev))
    require(length > len(name))
    return SUCCESS, name.encode().ljust(length, b"\0")


@api(outputs=1)
def cuDeviceGetByPCIBusId(pciBusId: bytes | str) -> tuple[CUresult, CUdevice]:
    """Return the device at a place of its host's bus."""
    devices = client().devices
    name = pciBusId if isinstance(pciBusId, str) else bytes(pciBusId).decode(errors="replace")
    found = _BUS_ID.fullmatch(name.partition("\0")[0])
    require(found)
    assert found is not None
    place = tuple(int(part or "0", 16) for part in found.groups())
    for device in devices:
        if device.limits(*_BUS_ATTRIBUTES) == place:
            return SUCCESS, CUdevice(device.ordinal)
    raise CallFailure(CUresult.CUDA_ERROR_INVALID_DEVICE)


@api(outputs=2)
def cuDeviceGetLuid(dev: Any) -> tuple[CUresult, bytes, int]:
    """Fail: only devices of Windows have one."""
    client().device(dev)
    raise CallFailure(CUresult.CUDA_ERROR_NOT_SUPPORTED)


def _bus_id(device: Device) -> str:
    domain, bus, place = device.limits(*_BUS_ATTRIBUTES)
    return f"{domain:04X}:{bus:02X}:{place:02X}.0"
