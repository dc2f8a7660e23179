"""What a worker is told when it is given a session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outlast.server.channel import Json
from outlast.session.ids import digest, is_anonymous
from outlast.session.rows import SessionRow

if TYPE_CHECKING:
    from outlast.server.gateway import Gateway

#: Workers start no call this long before the lease may end (less with a short lease).
LEASE_MARGIN = 2.0  # seconds


def start_message(gateway: Gateway, row: SessionRow, epoch: Json | None, older: list[int]) -> Json:
    """Return the message that starts a worker.

    Parameters
    ----------
    gateway
        Whose worker.
    row
        The session, claimed for this worker.
    epoch
        Where it begins: a stored epoch or what the keeper has; None for an empty session.
    older
        Seqs of the stored epochs before it, oldest first.
    """
    config = gateway.config
    return {
        "session": row.id,
        "incarnation": row.incarnation.hex(),
        "token": row.token,
        "lock": str(_lock_path(config.state_dir, row.id)),
        "state_dir": str(config.state_dir),
        "device": config.device,
        "provider": config.provider,
        "faults": config.emulated_faults,
        "log_level": config.log_level,
        "heartbeat": config.heartbeat,
        "timeout": config.heartbeat_timeout,
        "checkpoint_interval": config.checkpoint_interval,
        "epoch_deadline": config.epoch_deadline,
        "valid_until": gateway.valid_until,
        "lease_margin": min(LEASE_MARGIN, config.lease_ttl / 5),
        "grace": config.grace,
        "idle_seal": config.idle_seal,
        "keep_for": config.keep_for,
        "linger": config.linger if is_anonymous(row.id) else 0.0,
        "older": older,
        "epoch": epoch,
    }


def _lock_path(state_dir: Path, session_id: str) -> Path:
    return state_dir / "workers" / f"{digest(session_id).hex()[:32]}.lock"
