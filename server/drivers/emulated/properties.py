"""What the emulated device says of itself."""

from __future__ import annotations

import hashlib

from outlast.cuda_types import CUdevice_attribute, CUdevice_P2PAttribute, CUlimit

NAME = "Outlast emulated device"
COMPUTE_CAPABILITY = (8, 0)
DRIVER_VERSION = 13000

MAX_THREADS = 1024  # of a block
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
SHARED_DEFAULT = 48 << 10  # bytes of a block without opting in
SHARED_OPTIN = 163 << 10  # bytes
SHARED_RESERVED = 1 << 10  # bytes
MAX_PARAMETERS = 4096  # bytes
# Of a multiprocessor:
MAX_BLOCKS = 32
MAX_RESIDENT = 2048  # threads
REGISTERS = 65536
WARP = 32  # threads

#: Limits of a new context.
LIMITS = {
    int(CUlimit.CU_LIMIT_STACK_SIZE): 1024,  # bytes
    int(CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE): 1 << 20,  # bytes
    int(CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE): 8 << 20,  # bytes
    int(CUlimit.CU_LIMIT_MAX_L2_FETCH_GRANULARITY): 64,  # bytes
    int(CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE): 0,  # bytes
}

_VALUES = {
    "MAX_THREADS_PER_BLOCK": MAX_THREADS,
    "MAX_BLOCK_DIM_X": MAX_BLOCK[0],
    "MAX_BLOCK_DIM_Y": MAX_BLOCK[1],
    "MAX_BLOCK_DIM_Z": MAX_BLOCK[2],
    "MAX_GRID_DIM_X": MAX_GRID[0],
    "MAX_GRID_DIM_Y": MAX_GRID[1],
    "MAX_GRID_DIM_Z": MAX_GRID[2],
    "MAX_SHARED_MEMORY_PER_BLOCK": SHARED_DEFAULT,
    "TOTAL_CONSTANT_MEMORY": 64 << 10,
    "WARP_SIZE": 32,
    "MAX_PITCH": (1 << 31) - 1,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "CLOCK_RATE": 1_000_000,  # kHz
    "TEXTURE_ALIGNMENT": 512,
    "GPU_OVERLAP": 1,
    "MULTIPROCESSOR_COUNT": 1,
    "CONCURRENT_KERNELS": 1,
    "MEMORY_CLOCK_RATE": 1_000_000,  # kHz
    "GLOBAL_MEMORY_BUS_WIDTH": 64,
    "L2_CACHE_SIZE": 4 << 20,
    "MAX_THREADS_PER_MULTIPROCESSOR": MAX_RESIDENT,
    "ASYNC_ENGINE_COUNT": 1,
    "UNIFIED_ADDRESSING": 1,
    "COMPUTE_CAPABILITY_MAJOR": COMPUTE_CAPABILITY[0],
    "COMPUTE_CAPABILITY_MINOR": COMPUTE_CAPABILITY[1],
    "STREAM_PRIORITIES_SUPPORTED": 1,
    "GLOBAL_L1_CACHE_SUPPORTED": 1,
    "LOCAL_L1_CACHE_SUPPORTED": 1,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": SHARED_OPTIN + SHARED_RESERVED,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": REGISTERS,
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    "COMPUTE_PREEMPTION_SUPPORTED": 1,
    "HOST_REGISTER_SUPPORTED": 1,
    "MEMORY_POOLS_SUPPORTED": 1,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": SHARED_OPTIN,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": MAX_BLOCKS,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": SHARED_RESERVED,
    "NUMA_ID": -1,
    "HOST_NUMA_ID": -1,
}


def device_attributes(ordinal: int) -> dict[int, int]:
    """Return every device attribute; what the device does not do is 0."""
    values = {
        int(attribute): 0 for attribute in CUdevice_attribute if attribute.name[-4:] != "_MAX"
    }
    for name, value in _VALUES.items():
        values[int(CUdevice_attribute[f"CU_DEVICE_ATTRIBUTE_{name}"])] = value
    values[int(CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)] = ordinal
    return values


def device_peers(ordinal: int, devices: int) -> dict[int, dict[int, int]]:
    """Return what a device can do with the memory of each other one: everything but arrays."""
    name = CUdevice_P2PAttribute
    values = {int(attribute): 0 for attribute in name}
    values[int(name.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)] = 1
    values[int(name.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)] = 1
    return {other: dict(values) for other in range(devices) if other != ordinal}


def device_uuid(ordinal: int) -> bytes:
    """Return an identifier that is the same in every process."""
    return hashlib.sha256(f"{NAME} {ordinal}".encode()).digest()[:16]


def uuid_text(uuid: bytes) -> str:
    """Return a UUID as ``nvidia-smi`` writes it."""
    text = uuid.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
