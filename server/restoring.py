"""Where a new worker's session comes from: a stored epoch, or what the last worker left."""

from __future__ import annotations

import logging

from outlast.server import handover
from outlast.server.channel import Json
from outlast.server.checkpointer import Checkpointer
from outlast.server.deposits import Deposit
from outlast.session.host import HostSession

log = logging.getLogger(__name__)


def restore(start: Json, deposit: Deposit, checkpointer: Checkpointer, host: HostSession) -> int:
    """Make this (fresh) process hold the session; return the seq of its newest stored epoch.

    Parameters
    ----------
    start
        The gateway's message, with the epoch to begin from.

    Raises
    ------
    OutlastError
        The epoch cannot be used.
    """
    epoch: Json = start["epoch"]
    older: list[int] = start["older"]
    seq = stored = int(epoch["seq"])
    if epoch["kept"]:
        handover.take(deposit, seq, checkpointer)
        stored = older[-1] if older else 0
    else:
        checkpointer.restore(epoch["location"], epoch["digest"])
    host.restored(seq, older, stored=not epoch["kept"])
    details = {"session": start["session"], "epoch": seq, "kept": epoch["kept"]}
    log.info("session restored", extra={"action": "restored", **details})
    return stored
