"""Processes whose memory the system lays out alike every time.

Where CUDA puts the variables of a module depends on it, and programs keep such addresses.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

#: Environment of such processes: memory that each thread takes on its own comes to lie wherever
#: it is that thread's turn.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

_ADDR_NO_RANDOMIZE = 0x0040000
_ASK = 0xFFFFFFFF


@contextmanager
def fixed_layout() -> Iterator[None]:
    """Let processes that this thread starts meanwhile have no random addresses.

    Where the system forbids it (containers may), they are started as usual: a restore compares
    addresses anyway.
    """
    personality = ctypes.CDLL(None, use_errno=True).personality
    personality.argtypes = [ctypes.c_ulong]
    before = personality(_ASK)
    if before < 0 or personality(before | _ADDR_NO_RANDOMIZE) < 0:
        log.warning(
            "workers get random addresses (%s); a session whose program uses variables of a module "
            "may be refused by a restore",
            os.strerror(ctypes.get_errno()),
            extra={"action": "random_addresses"},
        )
        yield
        return
    try:
        yield
    finally:
        personality(before)
