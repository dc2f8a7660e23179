"""Every error Outlast raises, with the code that names it on the wire.

An error carries typed fields; its text says what failed, where, and what to do.
``code`` travels in REFUSED messages and maps one to one to a class (`by_code`).
"""

from __future__ import annotations

from typing import ClassVar


class OutlastError(Exception):
    """Something in Outlast failed."""

    #: Number on the wire; 0 means the error never travels.
    code: ClassVar[int] = 0
    #: Whether trying the same thing again later can succeed.
    retryable: ClassVar[bool] = False
    #: What a CUDA call returns when this error ends it (a ``CUresult`` value).
    cu_result: ClassVar[int] = 999

    def __init__(self, message: str | None = None, **fields: object) -> None:
        super().__init__(message or (self.__doc__ or "").strip().splitlines()[0])
        #: Typed details, by name.
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)


class ConfigError(OutlastError, ValueError):
    """A setting has a value that cannot be used."""


class ProtocolError(OutlastError, ValueError):
    """A frame does not follow the protocol."""

    code = 1


class VersionMismatch(OutlastError):
    """Client and server speak different versions of the protocol."""

    code = 2
    cu_result = 803  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH


class AuthenticationFailed(OutlastError, PermissionError):
    """The peer did not show the secret it needs."""

    code = 3


class SessionNotFound(OutlastError, LookupError):
    """The server has no session of this name."""

    code = 4


class SessionBusy(OutlastError):
    """The session belongs to another live client."""

    code = 5
    retryable = True
    cu_result = 46  # CUDA_ERROR_DEVICE_UNAVAILABLE


class SessionFenced(OutlastError):
    """A newer client or server has taken this session over."""

    code = 6


class ServerDraining(OutlastError):
    """The server is shutting down and takes no new work."""

    code = 7
    retryable = True
    cu_result = 46


class SessionFailed(OutlastError):
    """The session is parked: one call kills its worker again and again, or cannot be replayed."""

    code = 8
    cu_result = 719  # CUDA_ERROR_LAUNCH_FAILED


class SessionLost(OutlastError):
    """The session cannot be continued: calls between its newest checkpoint and the log are gone."""

    code = 9


class RestoreFailed(OutlastError):
    """The session could not be restored; its checkpoints are kept and it may be tried again."""

    code = 10
    retryable = True
    cu_result = 46


class JournalUnavailable(OutlastError):
    """The journal's database does not answer."""

    code = 11
    retryable = True
    cu_result = 46


class ServerUnreachable(OutlastError, ConnectionError):
    """No session server answers at the endpoint."""

    cu_result = 46


class LinkTimeout(OutlastError, TimeoutError):
    """A call got no answer within its deadline."""

    cu_result = 46


class LinkClosed(OutlastError, ConnectionError):
    """The link was closed while a call waited on it."""

    cu_result = 4  # CUDA_ERROR_DEINITIALIZED


class LogFull(OutlastError):
    """The client's log reached its hard limit because no checkpoint succeeds."""

    cu_result = 2  # CUDA_ERROR_OUT_OF_MEMORY


class ReplayDiverged(OutlastError):
    """Replaying the log gave another outcome than the recorded one."""


class CheckpointError(OutlastError):
    """A checkpoint could not be written or read."""


class CheckpointCorrupt(CheckpointError):
    """A stored checkpoint does not match its hashes."""


class CheckpointCancelled(CheckpointError):
    """The save was cancelled; nothing of it was stored."""


class KeeperError(OutlastError):
    """The keeper of device memory refuses, or cannot be reached; `reason` is one word."""

    reason: str = ""


class TakeOverFailed(OutlastError):
    """A server could not take the place of the one that runs."""


class ProviderNotFound(OutlastError, LookupError):
    """No checkpoint provider has this name."""


class JournalNewer(OutlastError):
    """The journal was written by a newer version of Outlast."""


class JournalCorrupt(OutlastError):
    """The journal's database cannot be read."""


class TokenSuperseded(OutlastError):
    """Another server holds a newer fencing token for this session."""


class LeaseLost(OutlastError):
    """The server's own lease has ended; it must register again before it takes a session."""

    retryable = True


class JournalValueError(OutlastError, ValueError):
    """A value does not fit its column in the journal."""


def by_code(code: int) -> type[OutlastError]:
    """Return the error class that has ``code`` on the wire."""
    return _BY_CODE.get(code, OutlastError)


def _concrete(base: type[OutlastError]) -> list[type[OutlastError]]:
    return [c for sub in base.__subclasses__() for c in (sub, *_concrete(sub))]


_BY_CODE = {cls.code: cls for cls in _concrete(OutlastError) if cls.code}
