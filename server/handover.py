"""Device memory from one worker to the next, through the keeper, without a byte being copied.

The worker that goes seals an epoch without memory and leaves the memory's descriptors with
the keeper; the one that comes maps them at the same addresses. What is handed over is a cache.
If it is lost, the stored epochs and the client's log still have everything.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from outlast.checkpoint_providers import Snapshot
from outlast.checkpoint_providers.sealed import read_sealed, write_sealed
from outlast.errors import CheckpointError, KeeperError
from outlast.server.checkpointer import Checkpointer
from outlast.server.deposits import Deposit
from outlast.server.drivers.base import Driver, SharedMemory
from outlast.server.keeper.client import Claim


def leave(deposit: Deposit, snapshot: Snapshot, driver: Driver) -> None:
    """Leave a session's memory with the keeper for good: no call may be taken behind it.

    Raises
    ------
    KeeperError
        The keeper refuses, or is gone.
    CheckpointError
        The epoch cannot be written, or the device cannot share its memory.
    """
    epoch = write(snapshot)
    try:
        deposit.claim()
        add_memory(deposit, driver)
        # Last: whoever finds a seal finds everything.
        deposit.seal_for_good(snapshot.epoch.seq, epoch)
    finally:
        os.close(epoch)


def write(snapshot: Snapshot, cancelled: threading.Event | None = None) -> int:
    """Write an epoch without memory into a file without a name; return its descriptor.

    Raises
    ------
    CheckpointError
        It cannot be written, or was cancelled.
    """
    try:
        epoch = os.memfd_create("outlast-epoch", os.MFD_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"no file for a sealed epoch: {error}") from error
    try:
        write_sealed(snapshot, epoch, cancelled)
    except BaseException:
        os.close(epoch)
        raise
    return epoch


def add_memory(
    deposit: Deposit, driver: Driver, interrupted: Callable[[], bool] = lambda: False
) -> bool:
    """Have the keeper hold what allocations live in, and nothing else; return whether it does.

    Parameters
    ----------
    interrupted : callable
        Whether to leave the rest for another time.

    Raises
    ------
    KeeperError
        The keeper refuses, or is gone.
    CheckpointError
        The device cannot share its memory.
    """
    for piece in deposit.keep_only(driver.pieces()):
        if interrupted():
            return False
        descriptor = driver.share(piece)
        try:
            deposit.add(piece, descriptor)
        finally:
            os.close(descriptor)
    return True


def take(deposit: Deposit, seq: int, checkpointer: Checkpointer) -> None:
    """Take over the memory that the worker before has left behind call ``seq``.

    Raises
    ------
    KeeperError
        There is none, or its holder lives.
    CheckpointCorrupt, RestoreFailed
        It cannot be used; a new process may try again.
    """

    def restore(claim: Claim) -> None:
        memory = [SharedMemory(c.device, c.address, c.size, c.fd) for c in claim.chunks]
        with read_sealed(claim.manifest) as reader:
            found = reader.manifest.epoch.seq
            if found != seq:
                text = f"the seal is behind call {found} and not behind {seq}"
                raise KeeperError(text, reason="unknown")
            checkpointer.restore_shared(reader, memory)

    deposit.take_over(restore)
