"""What a GPU says of itself, and what of that holds for a program somewhere else."""

from __future__ import annotations

import uuid
from typing import Any

from outlast.cuda_types import CUdevice_attribute, CUdevice_P2PAttribute
from outlast.errors import ConfigError
from outlast.server.drivers.base import DeviceInfo

#: Where the first device's memory lies, and how far the devices' ranges are apart.
BASE = 0x1000_0000_0000
ARENA_SIZE = 1 << 40  # bytes
_NAME_LENGTH = 256

#: What needs the program's own memory, its operating system or calls that do not exist here.
_NOT_OFFERED = (
    *("CAN_MAP_HOST_MEMORY", "MANAGED_MEMORY", "PAGEABLE_MEMORY_ACCESS"),
    *("CONCURRENT_MANAGED_ACCESS", "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM"),
    *("PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST"),
    "READ_ONLY_HOST_REGISTER_SUPPORTED",
    *("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"),
    *("HANDLE_TYPE_WIN32_HANDLE_SUPPORTED", "HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED"),
    *("HANDLE_TYPE_FABRIC_SUPPORTED", "GPU_DIRECT_RDMA_SUPPORTED"),
    *("GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS", "GPU_DIRECT_RDMA_WRITES_ORDERING"),
    *("GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED", "MEMPOOL_SUPPORTED_HANDLE_TYPES"),
    *(
        "DMA_BUF_SUPPORTED",
        "IPC_EVENT_SUPPORTED",
        "MULTICAST_SUPPORTED",
        "HOST_NUMA_MULTINODE_IPC_SUPPORTED",
    ),
    *("HOST_NUMA_MEMORY_POOLS_SUPPORTED", "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
    *("HOST_MEMORY_POOLS_SUPPORTED", "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
    *("HOST_ALLOC_DMA_BUF_SUPPORTED", "ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED"),
    *("HOST_NATIVE_ATOMIC_SUPPORTED", "TIMELINE_SEMAPHORE_INTEROP_SUPPORTED"),
    *("DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED", "CAN_USE_64_BIT_STREAM_MEM_OPS"),
    *("CAN_USE_STREAM_WAIT_VALUE_NOR",),
)
_ARRAYS = "CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED"
_NO_NUMBER = ("NUMA_ID", "HOST_NUMA_ID")


def read_device(
    cuda: Any, ordinal: int, *, base: int, arena_size: int, devices: int = 0
) -> DeviceInfo:
    """Return what one of several devices says of itself.

    Raises
    ------
    ConfigError
        It says nothing.
    """
    device = _ask(cuda.cuDeviceGet(ordinal), ordinal)
    name = bytes(_ask(cuda.cuDeviceGetName(_NAME_LENGTH, device), ordinal))
    identity = bytes(_ask(cuda.cuDeviceGetUuid(device), ordinal).bytes)
    total = int(_ask(cuda.cuDeviceTotalMem(device), ordinal))
    return DeviceInfo(
        ordinal,
        name.partition(b"\0")[0].decode(errors="replace"),
        f"GPU-{uuid.UUID(bytes=identity)}",
        total,
        base + ordinal * arena_size,
        arena_size,
        _attributes(cuda, device),
        _peers(cuda, ordinal, devices),
    )


def _attributes(cuda: Any, device: Any) -> dict[int, int]:
    values = {}
    for attribute in cuda.CUdevice_attribute:
        if attribute.name.endswith("_MAX"):
            continue
        error, value = cuda.cuDeviceGetAttribute(attribute, device)
        if not error:  # a driver does not know all that its bindings know
            values[int(attribute)] = int(value)
    for names, value in ((_NOT_OFFERED, 0), (_NO_NUMBER, -1)):
        for name in names:
            number = int(CUdevice_attribute[f"CU_DEVICE_ATTRIBUTE_{name}"])
            if number in values:
                values[number] = value
    return values


def _peers(cuda: Any, ordinal: int, devices: int) -> dict[int, dict[int, int]]:
    """Return what a device can do with the memory of each other one."""
    found: dict[int, dict[int, int]] = {}
    for other in range(devices):
        if other == ordinal:
            continue
        found[other] = {}
        for attribute in cuda.CUdevice_P2PAttribute:
            error, value = cuda.cuDeviceGetP2PAttribute(attribute, ordinal, other)
            if not error:
                found[other][int(attribute)] = int(value)
        # There are no arrays here.
        found[other][int(CUdevice_P2PAttribute[_ARRAYS])] = 0
    return found


def _ask(answer: tuple[Any, ...], ordinal: int) -> Any:
    if answer[0]:
        raise ConfigError(f"device {ordinal} cannot be asked: error {int(answer[0])}")
    return answer[1]
