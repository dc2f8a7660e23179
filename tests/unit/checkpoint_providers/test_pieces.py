"""Regions on their way to a store and back: in what order, in how much memory, until when."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from outlast.checkpoint_providers import pieces
from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.checkpoint_providers.reader import EpochReader
from outlast.checkpoint_providers.samples import bytes_of, regions_of, snapshot_of, sources_of
from outlast.checkpoint_providers.snapshot import RegionBuffer, RegionSource, Snapshot
from outlast.errors import CheckpointCancelled, CheckpointCorrupt, CheckpointError

PIECE = 1 << 20  # bytes: as much as a writer takes at once, and no less
DEADLINE = 30.0  # seconds


@dataclass
class Memory:
    """What was taken of memory."""

    sizes: list[int] = field(default_factory=list)


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Pieces are small here, and every block of memory is noted."""
    noted = Memory()
    real = pieces.memory

    def memory(size: int) -> memoryview:
        noted.sizes.append(size)
        return real(size)

    monkeypatch.setattr(pieces, "PIECE", PIECE)
    monkeypatch.setattr(pieces, "memory", memory)
    return noted


class Device:
    """Regions that tell what is read of them."""

    def __init__(self, *sizes: int) -> None:
        self.buffers = regions_of(3, sizes)
        self.reads: list[tuple[str, int, int]] = []
        #: Called before each read.
        self.before: Callable[[], None] = lambda: None

    def snapshot(self, **options: object) -> Snapshot:
        """Return a snapshot that reads the regions."""
        regions = [self._noted(source) for source in sources_of(self.buffers)]
        return replace(snapshot_of(regions=regions), **options)  # type: ignore[arg-type]

    def _noted(self, source: RegionSource) -> RegionSource:
        def read(offset: int, target: memoryview) -> None:
            self.before()
            self.reads.append((source.key, offset, len(target)))
            source.read(offset, target)

        return replace(source, read=read)


def stored(snapshot: Snapshot) -> bytes:
    provider = MemoryProvider()
    return bytes(provider.files(provider.save(snapshot).location)["data.bin"])


def content(device: Device) -> bytes:
    return b"".join(bytes(buffer.buffer) for buffer in device.buffers)


@pytest.mark.parametrize("seed", range(20))
def test_regions_of_any_sizes_come_whole_and_in_order(seed: int) -> None:
    choose = random.Random(seed)
    near = [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7]
    sizes = [choose.choice([*near, choose.randrange(PIECE)]) for _ in range(choose.randrange(12))]
    device = Device(*sizes)
    snapshot = device.snapshot(hold=choose.choice([0, 0, PIECE // 2, 2 * PIECE]))
    inside = [choose.random() < 0.3 for _ in sizes]
    regions = [
        buffer if here else source
        for here, buffer, source in zip(inside, device.buffers, snapshot.regions, strict=True)
    ]

    assert stored(replace(snapshot, regions=regions)) == content(device)
    # Each byte once, in order.
    places = [int(key, 16) for key, _, _ in device.reads]
    assert places == sorted(places)
    for index, here in enumerate(inside):
        read = [(o, n) for key, o, n in device.reads if key == f"{index:#x}"]
        assert sum(n for _, n in read) == (0 if here else sizes[index])
        assert [o for o, _ in read] == [sum(n for _, n in read[:i]) for i in range(len(read))]


def test_no_memory_is_taken_but_a_few_pieces(taken: Memory) -> None:
    device = Device(20 * PIECE, 5, 7 * PIECE + 1)

    assert stored(device.snapshot()) == content(device)

    assert taken.sizes == [PIECE] * 3
    assert max(size for _, _, size in device.reads) <= PIECE


def test_regions_in_memory_are_stored_from_where_they_are(taken: Memory) -> None:
    regions = [RegionBuffer("memory", "0x0", bytes_of(1, 5 * PIECE))]

    assert stored(snapshot_of(regions=regions)) == bytes_of(1, 5 * PIECE)
    assert taken.sizes == []


def test_the_next_piece_is_read_while_one_is_written() -> None:
    device = Device(3 * PIECE)
    begun = threading.Event()
    device.before = lambda: begun.set() if len(device.reads) == 1 else None
    provider = MemoryProvider()
    seen: list[bool] = []
    # The first piece waits to be written until the second one is being read.
    provider.stage_hook = lambda point: seen.append(begun.wait(DEADLINE)) if point.offset else None

    provider.save(device.snapshot())

    assert all(seen)


def test_it_is_told_when_the_device_is_needed_no_more() -> None:
    device = Device(2 * PIECE, 0, PIECE // 2)
    told: list[int] = []
    snapshot = device.snapshot(done=lambda: told.append(len(device.reads)))
    after = RegionBuffer("reply", "r", bytes_of(9, 4 * PIECE))

    stored(replace(snapshot, regions=[*snapshot.regions, after]))

    assert told == [len(device.reads)]


@pytest.mark.parametrize("sizes", [(), (0,), (0, 0)])
def test_that_is_told_too_if_there_is_nothing_to_read(sizes: tuple[int, ...]) -> None:
    told: list[int] = []
    snapshot = Device(0, *sizes).snapshot(done=lambda: told.append(1))

    assert stored(snapshot) == b""
    assert told == [1]


def test_what_may_be_held_is_read_at_once_behind_the_rest(taken: Memory) -> None:
    device = Device(4 * PIECE, PIECE + 5)
    written: list[int] = []
    reads_when_told: list[int] = []
    snapshot = device.snapshot(hold=3 * PIECE, done=lambda: reads_when_told.append(len(written)))
    provider = MemoryProvider()
    provider.stage_hook = lambda point: written.append(point.offset) if point.offset else None

    location = provider.save(snapshot).location

    assert bytes(provider.files(location)["data.bin"]) == content(device)
    assert taken.sizes == [PIECE] * 3 + [2 * PIECE + 5]
    assert max(size for _, _, size in device.reads) <= PIECE
    # Three pieces were read before, so no more than two of them can have been written.
    (early,) = reads_when_told
    assert early <= 3


def test_a_device_that_fails_fails_the_save_and_leaves_nothing() -> None:
    device = Device(6 * PIECE)

    def fail() -> None:
        if len(device.reads) == 3:
            raise CheckpointError("memory at 0x1000 cannot be copied: error 719")

    device.before = fail
    provider = MemoryProvider()

    with pytest.raises(CheckpointError, match="error 719"):
        provider.save(device.snapshot())
    assert provider.list("conformance") == []
    assert len(device.reads) == 3


def test_a_save_that_is_cancelled_reads_no_further() -> None:
    device = Device(50 * PIECE)
    cancelled = threading.Event()
    device.before = lambda: cancelled.set() if len(device.reads) == 4 else None

    with pytest.raises(CheckpointCancelled):
        MemoryProvider().save(device.snapshot(hold=40 * PIECE), cancelled)
    assert len(device.reads) < 15


def opened(*sizes: int) -> tuple[EpochReader, list[RegionBuffer]]:
    provider = MemoryProvider()
    buffers = regions_of(5, sizes)
    reader = provider.open(provider.save(snapshot_of(regions=buffers)).location)
    return reader, buffers


def test_a_stored_region_comes_back_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.checkpoint_providers.reader.PIECE", 8 << 20)
    reader, buffers = opened(3, 20 << 20, 0, 5 << 20)
    found = [bytearray(buffer.nbytes) for buffer in buffers]
    for region, offset, part in reader.parts(reader.manifest.regions):
        assert len(part) <= 8 << 20
        found[int(region.key, 16)][offset : offset + len(part)] = part

    assert found == [buffer.buffer for buffer in buffers]


def test_no_byte_of_a_damaged_chunk_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.checkpoint_providers.reader.PIECE", 8 << 20)
    provider = MemoryProvider()
    (buffer,) = regions_of(5, [40 << 20])
    location = provider.save(snapshot_of(regions=[buffer])).location
    provider.files(location)["data.bin"][33 << 20] ^= 4  # type: ignore[index]
    came = []

    def restore(reader: EpochReader) -> None:
        for _, offset, part in reader.parts(reader.manifest.regions):
            assert part == buffer.view()[offset : offset + len(part)]
            came.append(len(part))

    with provider.open(location) as reader, pytest.raises(CheckpointCorrupt, match="chunk 8"):
        restore(reader)
    assert sum(came) == 32 << 20
