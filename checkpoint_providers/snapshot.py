"""What goes into a provider and what it says it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outlast.checkpoint_providers.locations import Location
from outlast.checkpoint_providers.manifest import Epoch, Manifest, Region, lay_out
from outlast.errors import CheckpointError

#: Takes the bytes that are done and all bytes; called from the saving thread.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class RegionBuffer:
    """Bytes to store, which must not change until the save is over."""

    #: ``memory``, ``image`` or ``reply``.
    kind: str
    #: Name, unique within the kind.
    key: str
    buffer: memoryview | bytes | bytearray

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return memoryview(self.buffer).nbytes

    def view(self) -> memoryview:
        """Return the bytes, flat and in place.

        Raises
        ------
        CheckpointError
            The buffer has gaps.
        """
        view = memoryview(self.buffer)
        if not view.c_contiguous:
            raise CheckpointError(f"the buffer of region {self.key!r} is not contiguous")
        return view.cast("B") if view.nbytes else memoryview(b"")


#: Fills a view with bytes of a region from an offset on.
Read = Callable[[int, memoryview], None]


@dataclass(frozen=True, slots=True)
class RegionSource:
    """Bytes to store that are read when it is their turn, once and in order.

    They must not change before `Snapshot.done` is called, or the save is over.
    """

    #: As of `RegionBuffer`.
    kind: str
    key: str
    nbytes: int
    #: Called by a thread of the save; what it raises ends the save.
    read: Read


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An epoch with its bytes, in the order in which the manifest numbers the regions."""

    epoch: Epoch
    regions: Sequence[RegionBuffer | RegionSource]
    #: Bytes of sources that may be held in memory at once: so many are read before their turn.
    hold: int = 0
    #: Called, by a thread of the save, once all sources are read.
    done: Callable[[], None] | None = None

    @property
    def location(self) -> Location:
        """Where the epoch belongs within a provider."""
        epoch = self.epoch
        return Location.of(epoch.session_id, epoch.token, epoch.seq, epoch.epoch_id)

    @property
    def size(self) -> int:
        """Bytes of all regions."""
        return sum(region.nbytes for region in self.regions)

    def lay_out(self) -> tuple[Region, ...]:
        """Return the places of the regions in the data file."""
        return lay_out([(r.kind, r.key, r.nbytes) for r in self.regions])


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """A published epoch."""

    #: Opaque name below the provider; it stays valid when the provider's root is moved.
    location: str
    epoch_id: str
    seq: int
    token: int
    #: Bytes it takes, manifest included.
    size: int
    #: Digest of the manifest, which covers every byte of the epoch.
    digest: str

    @classmethod
    def of(cls, location: Location, manifest: Manifest, manifest_size: int) -> StoredEpoch:
        """Return the entry of a manifest that stands at ``location``."""
        return cls(
            location=str(location),
            epoch_id=location.epoch_id,
            seq=location.seq,
            token=location.token,
            size=manifest.data_size + manifest_size,
            digest=manifest.digest,
        )
