"""What the gateway decides about a HELLO: a pure function of the session's row."""

from __future__ import annotations

import enum
import hmac
from dataclasses import dataclass, field

from outlast.errors import (
    AuthenticationFailed,
    OutlastError,
    SessionBusy,
    SessionFailed,
    SessionFenced,
    SessionNotFound,
)
from outlast.session.ids import digest
from outlast.session.schema import Intent


class Decision(enum.Enum):
    """What a HELLO leads to."""

    CREATE = "create"
    RESUME = "resume"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True)
class Hello:
    """The part of a HELLO that the decision rests on."""

    session_id: str
    incarnation: bytes
    token: str = field(repr=False)
    intent: Intent


@dataclass(frozen=True, slots=True)
class Known:
    """What the journal knows of a session."""

    incarnation: bytes
    token_hash: bytes
    state: str = "active"
    reason: str = ""


def decide(hello: Hello, known: Known | None) -> Decision | OutlastError:
    """Return what to do about ``hello``, or the error that refuses it.

    A session is never created for a client that says it resumes one.
    """
    name = hello.session_id
    if known is None or known.state == "ended":
        if hello.intent is Intent.CREATE:
            return Decision.CREATE
        return SessionNotFound(f"this server has no session {name!r}")
    if known.state == "parked":
        return SessionFailed(f"session {name!r} is parked: {known.reason}")
    if hmac.compare_digest(known.incarnation, hello.incarnation):
        # CREATE again: its WELCOME was lost. ADOPT again: likewise.
        return Decision.RESUME
    if hello.intent is Intent.RESUME:
        return SessionFenced(f"session {name!r} now belongs to another client")
    authentic = hmac.compare_digest(known.token_hash, digest(hello.token))
    if hello.intent is Intent.CREATE:
        return SessionBusy(
            f"session {name!r} exists and belongs to another client; to take it over, start "
            "with the LUPINE_SERVER and LUPINE_STATE_DIR that its resume token is kept for, or set "
            "LUPINE_RESUME_TOKEN"
        )
    if not authentic:
        return AuthenticationFailed(f"the resume token for session {name!r} is wrong")
    return Decision.ADOPT
