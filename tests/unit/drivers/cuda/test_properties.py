"""What of a GPU's own description holds for a program somewhere else."""

from __future__ import annotations

import enum
from types import SimpleNamespace

import pytest

from outlast.errors import ConfigError
from outlast.server.drivers.cuda.properties import read_device


class CUdevice_attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88
    CU_DEVICE_ATTRIBUTE_NUMA_ID = 131
    CU_DEVICE_ATTRIBUTE_OF_A_NEWER_DRIVER = 999
    CU_DEVICE_ATTRIBUTE_MAX = 1000


def gpu(found: int = 0) -> SimpleNamespace:
    """Return bindings with one device, whose attributes are all 7."""
    return SimpleNamespace(
        CUdevice_attribute=CUdevice_attribute,
        cuDeviceGet=lambda ordinal: (found, ordinal),
        cuDeviceGetName=lambda length, device: (0, b"NVIDIA Test\0".ljust(length, b"\0")),
        cuDeviceGetUuid=lambda device: (0, SimpleNamespace(bytes=bytes(range(16)))),
        cuDeviceTotalMem=lambda device: (0, 1 << 37),
        cuDeviceGetAttribute=lambda attribute, device: (1 if attribute == 999 else 0, 7),
    )


def test_device_is_described_without_what_a_remote_program_cannot_use() -> None:
    info = read_device(gpu(), 2, base=1 << 44, arena_size=1 << 40)
    assert info.attributes == {1: 7, 83: 0, 88: 0, 131: -1}
    assert (info.name, info.total_memory) == ("NVIDIA Test", 1 << 37)
    assert info.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (info.arena_base, info.arena_size) == ((1 << 44) + (2 << 40), 1 << 40)


def test_device_that_cannot_be_asked_is_named() -> None:
    with pytest.raises(ConfigError, match="device 0 cannot be asked: error 101"):
        read_device(gpu(found=101), 0, base=1 << 44, arena_size=1 << 40)
