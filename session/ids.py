"""Identifiers: session ids, incarnations, tokens and virtual handles."""

from __future__ import annotations

import hashlib
import re
import secrets

from outlast.errors import ConfigError
from outlast.session.schema import (
    DEFAULT_POOL_BASE,
    HANDLE_FIRST,
    HANDLE_STEP,
    PRIMARY_CONTEXT_BASE,
)

MAX_SESSION_ID = 128  # characters
_ANONYMOUS = "anonymous-"


def check_session_id(session_id: str) -> str:
    """Return ``session_id`` if it may name a session.

    Raises
    ------
    ConfigError
        It is empty, longer than 128 characters or has unprintable ones.
    """
    if not 1 <= len(session_id) <= MAX_SESSION_ID or not session_id.isprintable():
        raise ConfigError(
            f"a session id has 1 to {MAX_SESSION_ID} printable characters: {session_id[:140]!r}"
        )
    return session_id


def random_session_id() -> str:
    """Return a fresh id for a program that names no session."""
    return _ANONYMOUS + secrets.token_hex(12)


def is_anonymous(session_id: str) -> bool:
    """Return whether an id is one of `random_session_id`: nobody but its client knows its token."""
    return re.fullmatch(_ANONYMOUS + "[0-9a-f]{24}", session_id) is not None


def new_incarnation() -> bytes:
    """Return 128 random bits that name one client process's log."""
    return secrets.token_bytes(16)


def new_secret() -> bytes:
    """Return the 32 bytes that one attachment must show."""
    return secrets.token_bytes(32)


def new_token() -> str:
    """Return a fresh resume token: who has it may adopt the session."""
    return secrets.token_urlsafe(32)


def digest(secret: str | bytes) -> bytes:
    """Return what is kept of a secret: its SHA-256."""
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).digest()


def primary_context(ordinal: int) -> int:
    """Return the constant handle of a device's primary context."""
    return PRIMARY_CONTEXT_BASE + ordinal * HANDLE_STEP


def default_pool(ordinal: int) -> int:
    """Return the constant handle of a device's default memory pool."""
    return DEFAULT_POOL_BASE + ordinal * HANDLE_STEP


class HandleAllocator:
    """Hands out virtual handles in order; none is ever given twice."""

    def __init__(self, first: int = HANDLE_FIRST) -> None:
        self.next = max(first, HANDLE_FIRST)

    def take(self) -> int:
        """Return the next handle."""
        handle = self.next
        self.next = handle + HANDLE_STEP
        return handle
