"""Epochs of one worker: cut, save beside the calls, restore.

The cut is made in the executor's thread while the device is idle; what it copied is
hashed and written by a thread of its own, in library calls that release the GIL.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlast.checkpoint_providers import (
    CheckpointProvider,
    EpochReader,
    RegionBuffer,
    RegionSource,
    Snapshot,
    StoredEpoch,
)
from outlast.checkpoint_providers import manifest as m
from outlast.errors import CheckpointError, OutlastError, RestoreFailed
from outlast.server.allocation import Allocation
from outlast.server.calls.contexts import restore_context, restore_peers
from outlast.server.drivers.base import Driver, OwnedRegion, Region, SharedMemory
from outlast.server.executor import Executor
from outlast.server.stillness import Stillness
from outlast.session.handles import Handle, HandleKind
from outlast.session.host import Cut
from outlast.session.schema import HANDLE_STEP, ReplyKind
from outlast.session.wire import Reply

#: Keys of regions that hold pieces of images whose load has not come yet.
STAGED = "staged:"
#: `Region.kind` of what cuMemAlloc gave.
ALLOCATION = "alloc"
#: Bytes copied at once while the session stands still.
COPY_PIECE = 64 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose epochs these are."""

    session_id: str
    incarnation: bytes
    token: int


Done = Callable[["StoredEpoch | OutlastError"], None]


class Checkpointer:
    """Makes and loads the epochs of one session."""

    def __init__(self, provider: CheckpointProvider, executor: Executor) -> None:
        self.provider = provider
        self.executor = executor
        self.cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def saving(self) -> bool:
        """Whether a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def size(self) -> int:
        """Bytes of the device's memory that belong to the session."""
        return sum(region.size for region in self.executor.driver.regions())

    # -- saving --------------------------------------------------------------------------------

    def snapshot(
        self,
        identity: Identity,
        generation: int,
        cut: Cut,
        copy: bool,
        shared: bool = False,
        still: Stillness | None = None,
        hold: int = 0,
    ) -> Snapshot:
        """Return an epoch of the idle device.

        Parameters
        ----------
        identity, generation
            What the manifest says of its origin.
        cut : Cut
            From the session's state machine, at the same place.
        copy : bool
            Copy memory, so that calls can go on while it is written.
        shared : bool
            Leave the allocations' memory out: it is shared (`Driver.share`).
        still : Stillness, optional
            For how long nothing changes; without ``copy`` and this, until the save is over.
        hold : int
            Without ``copy``: bytes that may be copied all the same.
        """
        ex = self.executor
        buffers: list[RegionBuffer | RegionSource] = [
            _copied(ex.driver, region) if copy else _in_place(ex.driver, region, still)
            for region in ex.driver.regions()
            if not (shared and region.kind == ALLOCATION)
        ]
        handles, images = self._handles(self._add_images(buffers))
        replies = _add_replies(buffers, cut.replies)
        epoch = m.Epoch(
            session_id=identity.session_id,
            incarnation=identity.incarnation.hex(),
            epoch_id=secrets.token_hex(8),
            seq=cut.seq,
            generation=generation,
            token=identity.token,
            created_at=time.time(),
            devices=tuple(
                m.Device(d.ordinal, d.uuid, d.name, d.total_memory, d.arena_base)
                for d in ex.driver.devices()
            ),
            handles=handles,
            allocations=tuple(
                m.Allocation(a.address, a.size, self._device_of(a.context), a.created_seq)
                for a in ex.allocations.values()
            ),
            images=images,
            replies=replies,
            deferred_errors=(),
            state={
                "retains": {str(device): count for device, count in ex.retains.items()},
                "contexts": {str(a.address): a.context for a in ex.allocations.values()},
                "dead": [*sorted(ex.handles.dead)],
                "next_handle": ex.handles.next_id(HANDLE_STEP),
            },
        )
        return Snapshot(epoch, buffers, hold, still.end if still is not None else None)

    def _add_images(self, buffers: list[RegionBuffer | RegionSource]) -> dict[str, int]:
        """Add the images, whole and in pieces; return the places of the whole ones, by digest."""
        places = {}
        for digest, image in self.executor.images.items():
            places[digest] = len(buffers)
            buffers.append(RegionBuffer("image", digest, image))
        for handle, piece in self.executor.staged.items():
            buffers.append(RegionBuffer("image", f"{STAGED}{handle}", bytes(piece)))
        return places

    def save(self, snapshot: Snapshot) -> StoredEpoch:
        """Store an epoch now, in this thread."""
        return self.provider.save(snapshot, self.cancelled)

    def save_beside(self, snapshot: Snapshot, done: Done) -> None:
        """Store an epoch in a thread of its own; ``done`` is called there."""

        def run() -> None:
            # A provider may be anybody's: whatever it does, somebody waits for the end.
            outcome: StoredEpoch | OutlastError = CheckpointError("the provider broke off")
            try:
                outcome = self.save(snapshot)
            except OutlastError as error:
                outcome = error
            finally:
                done(outcome)

        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()

    def _handles(
        self, image_index: dict[str, int]
    ) -> tuple[tuple[m.Handle, ...], tuple[m.Image, ...]]:
        handles = []
        images = []
        for handle in self.executor.handles.ordered():
            recipe = dict(handle.recipe)
            if handle.kind is HandleKind.MODULE:
                info = self.executor.driver.module_info(handle.real)
                recipe["globals"] = {g.name: g.address for g in info.globals}
            if "image" in recipe:
                images.append(m.Image(handle.id, image_index[recipe["image"]]))
            handles.append(
                m.Handle(handle.id, handle.kind, 1, handle.created_seq, recipe, handle.parents)
            )
        return tuple(handles), tuple(images)

    def _device_of(self, context: int) -> int:
        handle = self.executor.handles.get(HandleKind.CONTEXT, context)
        return int(handle.recipe["device"]) if handle is not None else 0

    # -- restoring -----------------------------------------------------------------------------

    def restore(self, location: str, digest: str) -> m.Epoch:
        """Make this (fresh) process hold a stored epoch: addresses, bytes and handles.

        Every byte's hash is checked before it counts; no kernel runs here.

        Raises
        ------
        CheckpointCorrupt
            The stored epoch does not match its hashes.
        RestoreFailed
            An object or an address cannot be had again.
        """
        with self.provider.open(location, digest) as reader:
            return self._restore(reader, None)

    def restore_shared(self, reader: EpochReader, memory: Sequence[SharedMemory]) -> m.Epoch:
        """Make this (fresh) process hold a sealed epoch whose memory is shared.

        Raises
        ------
        CheckpointCorrupt
            The epoch does not match its hashes.
        RestoreFailed
            An object, an address or the memory cannot be had again.
        """
        return self._restore(reader, memory)

    def _restore(self, reader: EpochReader, memory: Sequence[SharedMemory] | None) -> m.Epoch:
        epoch = reader.manifest.epoch
        state: dict[str, Any] = epoch.state
        by_id = {image.handle: image.region for image in epoch.images}
        contexts = [h for h in epoch.handles if h.kind == HandleKind.CONTEXT]
        others = [h for h in epoch.handles if h.kind != HandleKind.CONTEXT]
        for handle in contexts:
            self._restore_handle(reader, handle, state, by_id)
        self._restore_peers()
        # Before modules: their variables get what is left.
        self._restore_allocations(epoch, state, memory)
        for handle in others:
            self._restore_handle(reader, handle, state, by_id)
        self._restore_memory(reader, memory is not None)
        self.executor.handles.dead.update(int(h) for h in state["dead"])
        self.executor.handles.reserve(int(state["next_handle"]) - HANDLE_STEP)
        self._restore_staged(reader)
        self._restore_replies(reader, epoch)
        return epoch

    def _restore_peers(self) -> None:
        """Let contexts use each other's memory, before there is any."""
        for context in list(self.executor.handles.ordered()):
            result = restore_peers(self.executor, context)
            if result:
                raise RestoreFailed(
                    f"context {context.id:#x} cannot use other devices' memory again: "
                    f"error {result}"
                )

    def _restore_handle(
        self, reader: EpochReader, handle: m.Handle, state: dict[str, Any], images: dict[int, int]
    ) -> None:
        ex = self.executor
        kind = HandleKind(handle.kind)
        recipe: dict[str, Any] = dict(handle.recipe)
        made = Handle(handle.id, kind, 0, handle.created_seq, recipe, handle.parents)
        if kind is HandleKind.CONTEXT:
            retains = int(state["retains"].get(str(recipe["device"]), 0))
            result, real = 0, restore_context(ex, made, retains)
        elif kind.is_name:
            result, real = 0, made.id
            if made.id in images:
                ex.images[recipe["image"]] = reader.read(images[made.id])
        else:
            result, real = self._make_again(reader, made, images)
        if result or not real:
            raise RestoreFailed(
                f"{handle.kind} {handle.id:#x} cannot be made again"
                + (f": error {int(result)}" if result else "")
            )
        made.real = int(real)
        ex.handles.add(made)

    def _make_again(
        self, reader: EpochReader, handle: Handle, images: dict[int, int]
    ) -> tuple[int, int]:
        """Make what a context or module owns; return a ``CUresult`` value and the real handle."""
        ex, recipe, owner = self.executor, handle.recipe, handle.parents[0]
        result: int
        real: int
        if handle.kind is HandleKind.FUNCTION:
            module = ex.handles.real[HandleKind.MODULE][owner]
            result, real = ex.cuda.cuModuleGetFunction(module, str(recipe["name"]).encode())
            for attribute, value in recipe.get("attributes", {}).items():
                result = result or ex.cuda.cuFuncSetAttribute(real, int(attribute), int(value))[0]
            return result, real
        ex.cuda.cuCtxSetCurrent(ex.handles.real[HandleKind.CONTEXT][owner])
        if handle.kind is HandleKind.MODULE:
            image = ex.images[recipe["image"]] = reader.read(images[handle.id])
            return ex.driver.load_module_at(image, recipe.pop("globals"))
        if handle.kind is HandleKind.STREAM:
            result, real = ex.cuda.cuStreamCreateWithPriority(recipe["flags"], recipe["priority"])
            return result, real
        result, real = ex.cuda.cuEventCreate(recipe["flags"])
        if not result and recipe.get("recorded"):
            result = ex.cuda.cuEventRecord(real, 0)[0]
        return result, real

    def _restore_allocations(
        self, epoch: m.Epoch, state: dict[str, Any], memory: Sequence[SharedMemory] | None
    ) -> None:
        """Have every allocation at its address: fresh, or in memory that is shared."""
        ex = self.executor
        owned = []
        for allocation in epoch.allocations:
            address, size = allocation.address, allocation.size
            context = int(state["contexts"][str(address)])
            real = ex.handles.real[HandleKind.CONTEXT][context]
            owned.append(OwnedRegion(allocation.device, address, size, real))
            ex.allocations[address] = Allocation(address, size, context, allocation.created_seq)
        if memory is None:
            for region in owned:
                self._allocate_again(region)
        elif result := ex.driver.adopt(memory, owned):
            raise RestoreFailed(f"the shared memory cannot be mapped: error {result}")
        ex.context = -1
        ex.cuda.cuCtxSetCurrent(0)
        ex.context = 0

    def _allocate_again(self, region: OwnedRegion) -> None:
        self.executor.cuda.cuCtxSetCurrent(region.context)
        result = self.executor.driver.allocate_at(region.device, region.address, region.size)
        if result:
            raise RestoreFailed(
                f"{region.size} bytes at {region.address:#x} cannot be had: error {result}",
                address=region.address,
            )

    def _restore_memory(self, reader: EpochReader, shared: bool) -> None:
        driver = self.executor.driver
        if not driver.wait(driver.ticket(), 60.0):
            raise RestoreFailed("the device does not become idle")
        stored = {r.key: r for r in reader.manifest.regions if r.kind == "memory"}
        here = {
            _key(region): region
            for region in driver.regions()
            if not (shared and region.kind == ALLOCATION)
        }
        if set(stored) != set(here):
            raise RestoreFailed("the restored memory map is not the stored one")
        remote = []
        for key, region in here.items():
            target = driver.view(region)
            if target is not None:
                reader.read_into(stored[key], target)
            else:
                remote.append(stored[key])
        # What is written is right, but all of it counts only if nothing behind it is damaged.
        for part, offset, data in reader.parts(remote):
            driver.write(here[part.key], offset, data)

    def _restore_staged(self, reader: EpochReader) -> None:
        for region in reader.manifest.regions:
            if region.kind == "image" and region.key.startswith(STAGED):
                handle = int(region.key.removeprefix(STAGED))
                self.executor.staged[handle] = bytearray(reader.read(region))

    def _restore_replies(self, reader: EpochReader, epoch: m.Epoch) -> None:
        for reply in epoch.replies:
            data = reader.read(reply.payload) if reply.payload is not None else b""
            self.executor.host.reply(
                Reply(reply.kind, reply.number, reply.result, reply.value, data)
            )


def _add_replies(
    buffers: list[RegionBuffer | RegionSource], owed: Sequence[Reply]
) -> tuple[m.Reply, ...]:
    """Add the bytes of the replies that are owed; return what the manifest says of them."""
    replies = []
    for reply in owed:
        payload = None
        if reply.kind == ReplyKind.OUTCOME and len(reply.data):
            payload = len(buffers)
            buffers.append(RegionBuffer("reply", str(reply.number), reply.data))
        replies.append(m.Reply(reply.kind, reply.number, reply.result, reply.value, payload))
    return tuple(replies)


def _key(region: Region) -> str:
    return f"{region.device}:{region.address:#x}:{region.kind}"


def _copied(driver: Driver, region: Region) -> RegionBuffer:
    """Return a copy of a region."""
    target = memoryview(np.empty(region.size, np.uint8).data)
    for start in range(0, region.size, COPY_PIECE):
        # In pieces, so that the pulse thread gets the GIL in between.
        driver.read(region, start, target[start : start + COPY_PIECE])
    return RegionBuffer("memory", _key(region), target)


def _in_place(
    driver: Driver, region: Region, still: Stillness | None
) -> RegionBuffer | RegionSource:
    """Return a region that changes no more while it is saved."""
    view = driver.view(region) if still is None else None
    if view is not None:
        return RegionBuffer("memory", _key(region), view)
    read = driver.reader(region)
    read = still.guard(read) if still is not None else read
    return RegionSource("memory", _key(region), region.size, read)
