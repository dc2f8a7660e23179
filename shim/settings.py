"""What the link needs to know, apart from where it came from."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.config import ClientConfig


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Endpoint and times of a link."""

    server: str
    relay: bool = False
    connect_timeout: float = 10.0  # seconds
    reconnect_timeout: float = 300.0  # seconds
    heartbeat: float = 1.0  # seconds
    heartbeat_timeout: float = 5.0  # seconds
    #: Bytes that the log keeps to where fresh memory is slow; 0: it keeps to its limit.
    careful_limit: int = 0
    stream_credits: int = 512

    @classmethod
    def of(cls, config: ClientConfig) -> LinkSettings:
        """Return the link's part of a client's settings."""
        return cls(
            server=config.server,
            relay=config.relay,
            connect_timeout=config.connect_timeout,
            reconnect_timeout=config.reconnect_timeout,
            heartbeat=config.heartbeat,
            heartbeat_timeout=config.heartbeat_timeout,
            careful_limit=config.careful_limit,
            stream_credits=config.stream_credits,
        )
