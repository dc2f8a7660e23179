"""Checkpoint providers: plug-ins that store and load epochs."""

from outlast.checkpoint_providers.base import CheckpointProvider
from outlast.checkpoint_providers.manifest import (
    Allocation,
    DeferredError,
    Device,
    Epoch,
    Handle,
    Image,
    Manifest,
    Region,
    Reply,
)
from outlast.checkpoint_providers.reader import EpochReader
from outlast.checkpoint_providers.registry import known_providers, open_provider
from outlast.checkpoint_providers.snapshot import (
    RegionBuffer,
    RegionSource,
    Snapshot,
    StoredEpoch,
)
from outlast.checkpoint_providers.writer import EpochWriter

__all__ = [
    "Allocation",
    "CheckpointProvider",
    "DeferredError",
    "Device",
    "Epoch",
    "EpochReader",
    "EpochWriter",
    "Handle",
    "Image",
    "Manifest",
    "Region",
    "RegionBuffer",
    "RegionSource",
    "Reply",
    "Snapshot",
    "StoredEpoch",
    "known_providers",
    "open_provider",
]
