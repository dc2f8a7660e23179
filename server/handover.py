"""Device memory from one worker to the next, through the keeper, without a byte being copied.

The worker that goes seals an epoch without memory and leaves the memory's descriptors with
the keeper; the one that comes maps them at the same addresses. A seal proves that nothing was
done after it: the worker takes no call behind it. What is handed over is a cache. If it is
lost, the stored epochs and the client's log still have everything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from outlast.checkpoint_providers import Snapshot
from outlast.checkpoint_providers.sealed import read_sealed, write_sealed
from outlast.errors import KeeperError
from outlast.server.checkpointer import Checkpointer
from outlast.server.drivers.base import SharedMemory
from outlast.server.keeper.client import Keeper


def seal(
    keeper: Keeper, session: str, token: int, snapshot: Snapshot, memory: Sequence[SharedMemory]
) -> None:
    """Leave a session's memory with the keeper.

    Raises
    ------
    KeeperError
        The keeper refuses, or is gone.
    CheckpointError
        The epoch cannot be written.
    """
    with ExitStack() as opened:
        for part in memory:
            opened.callback(os.close, part.descriptor)
        epoch = os.memfd_create("outlast-epoch", os.MFD_CLOEXEC)
        opened.callback(os.close, epoch)
        write_sealed(snapshot, epoch)
        keeper.claim(session, token).close()
        for part in memory:
            where = part.device, part.address, part.size
            keeper.add(session, token, where, part.descriptor)
        # Last: whoever finds a seal finds everything.
        keeper.seal(session, token, snapshot.epoch.seq, epoch)


def take(keeper: Keeper, session: str, token: int, checkpointer: Checkpointer) -> int:
    """Take over the memory that the worker before has left, and return its last call.

    Raises
    ------
    KeeperError
        There is none, or its holder lives.
    CheckpointCorrupt, RestoreFailed
        It cannot be used; a new process may try again.
    """
    claim = keeper.claim(session, token)
    try:
        if claim.manifest < 0:
            raise KeeperError(f"nothing is sealed of session {session!r}", reason="unknown")
        memory = [SharedMemory(c.device, c.address, c.size, c.fd) for c in claim.chunks]
        with read_sealed(claim.manifest) as reader:
            epoch = checkpointer.restore_shared(reader, memory)
    finally:
        claim.close()
    # This process has it now. With the keeper's descriptors it could never be freed.
    keeper.end(session, token)
    return epoch.seq
