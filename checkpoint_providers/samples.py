"""Snapshots to try providers with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from outlast.checkpoint_providers.codec import U64_MAX
from outlast.checkpoint_providers.manifest import (
    CHUNK_SIZE,
    Allocation,
    DeferredError,
    Device,
    Epoch,
    Handle,
    Image,
    Reply,
)
from outlast.checkpoint_providers.snapshot import RegionBuffer, RegionSource, Snapshot
from outlast.session.schema import ReplyKind

#: Sizes around every boundary the format has.
SIZES: Final = (0, 1, 511, 4096, 0, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 3, 0)


def bytes_of(seed: int, size: int) -> bytes:
    """Return ``size`` bytes that differ from those of every other seed."""
    pattern = seed.to_bytes(8, "little") + b"conformance"  # 19 bytes: no two chunks are equal
    return (pattern * (size // len(pattern) + 1))[:size]


def regions_of(seed: int, sizes: Sequence[int] = SIZES) -> list[RegionBuffer]:
    """Return memory regions of these sizes."""
    return [
        RegionBuffer("memory", f"{i:#x}", bytes_of(seed * 100 + i, size))
        for i, size in enumerate(sizes)
    ]


def sources_of(regions: Sequence[RegionBuffer]) -> list[RegionSource]:
    """Return the same regions, to be read when it is their turn."""

    def source(region: RegionBuffer) -> RegionSource:
        content = region.view()

        def read(offset: int, target: memoryview) -> None:
            target[:] = content[offset : offset + len(target)]

        return RegionSource(region.kind, region.key, region.nbytes, read)

    return [source(region) for region in regions]


def content_of(region: RegionBuffer | RegionSource) -> bytes:
    """Return a region's bytes."""
    if isinstance(region, RegionBuffer):
        return bytes(region.buffer)
    content = bytearray(region.nbytes)
    region.read(0, memoryview(content))
    return bytes(content)


def snapshot_of(
    session_id: str = "conformance",
    seq: int = 1,
    token: int = 1,
    regions: Sequence[RegionBuffer | RegionSource] | None = None,
) -> Snapshot:
    """Return a snapshot without handles; by default of one small region."""
    epoch = Epoch(
        session_id=session_id,
        incarnation="00" * 16,
        epoch_id=f"epoch-{seq}",
        seq=seq,
        generation=1,
        token=token,
        created_at=1.5e9,
        devices=(),
        handles=(),
        allocations=(),
        images=(),
        replies=(),
        deferred_errors=(),
        state={},
    )
    return Snapshot(epoch, regions_of(seq, [1000]) if regions is None else regions)


def full_snapshot() -> Snapshot:
    """Return a snapshot that uses every part of the manifest at its extremes."""
    base = 0x0600_0001_0000
    epoch = Epoch(
        session_id="ü✓/" + "x" * 100,
        incarnation="ff" * 16,
        epoch_id="Z" * 64,
        seq=U64_MAX,
        generation=U64_MAX,
        token=U64_MAX,
        created_at=1234567890.123456,
        devices=(Device(0, "GPU-1", "dévice", U64_MAX, U64_MAX),),
        handles=(
            Handle(base, "module", 1, 2, {"n": None, "f": 0.1, "l": [1, {"ü": "\u2028"}]}),
            Handle(base + 16, "function", U64_MAX, U64_MAX, {"name": "k"}, (base,)),
        ),
        allocations=(Allocation(U64_MAX, U64_MAX, 0, U64_MAX),),
        images=(Image(base, 1),),
        replies=(
            Reply(ReplyKind.OUTCOME, U64_MAX, -(1 << 31), U64_MAX, 2),
            Reply(ReplyKind.ANSWER, 0, 600, 0),
        ),
        deferred_errors=(DeferredError(U64_MAX, 719, "kernel k"),),
        state={"u64": U64_MAX, "nested": {"list": [True, False, None, -1.5]}},
    )
    regions = [
        RegionBuffer("memory", "0x0", bytes_of(1, 5000)),
        RegionBuffer("image", "0x0", b".version 8.0"),
        RegionBuffer("reply", "0", b""),
    ]
    return Snapshot(epoch, regions)


class PickleBomb:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.marker),))


def flipped(content: bytes, offset: int, bit: int = 0) -> bytes:
    """Return ``content`` with one bit turned over."""
    damaged = bytearray(content)
    damaged[offset] ^= 1 << bit
    return bytes(damaged)
