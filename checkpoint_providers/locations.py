"""Where an epoch lies within a provider: ``<session>/<token>/<seq>-<epoch id>``.

The fencing token is part of the name, so that a writer that was replaced without noticing
cannot collide with its successor. The session is named by a hash: any id fits, none
collides, and names of files give no id away. Names sort in the order of the epochs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from blake3 import blake3

from outlast.errors import CheckpointError
from outlast.session.ids import check_session_id

_EPOCH_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Numbers have twenty digits, as many as 2**64 - 1.
_LOCATION = re.compile(r"([0-9a-f]{32})/([0-9]{20})/([0-9]{20})-([A-Za-z0-9_-]{1,64})")
_U64_END = 1 << 64


def check_epoch_id(epoch_id: str) -> str:
    """Return ``epoch_id`` if it may name an epoch.

    Raises
    ------
    CheckpointError
        It is not 1 to 64 ASCII letters, digits, ``-`` and ``_``.
    """
    if not _EPOCH_ID.fullmatch(epoch_id):
        raise CheckpointError(
            f"an epoch id has 1 to 64 letters, digits, '-' and '_': {epoch_id[:80]!r}"
        )
    return epoch_id


def session_directory(session_id: str) -> str:
    """Return the name that stands for a session in locations."""
    return blake3(check_session_id(session_id).encode()).hexdigest(length=16)


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A parsed location. Within a session, later epochs compare greater."""

    session: str
    token: int
    seq: int
    epoch_id: str

    @classmethod
    def of(cls, session_id: str, token: int, seq: int, epoch_id: str) -> Location:
        """Return where an epoch belongs."""
        return cls(session_directory(session_id), token, seq, check_epoch_id(epoch_id))

    @classmethod
    def parse(cls, text: str) -> Location:
        """Return the location that ``text`` spells.

        Raises
        ------
        CheckpointError
            It is not one that a provider gave out; absolute paths and ``..`` never are.
        """
        match = _LOCATION.fullmatch(text)
        if match is None or int(match[2]) >= _U64_END or int(match[3]) >= _U64_END:
            raise CheckpointError(f"not a location of a stored epoch: {text[:200]!r}")
        return cls(match[1], int(match[2]), int(match[3]), match[4])

    @property
    def token_directory(self) -> str:
        """Name of the writer's directory below the session's."""
        return f"{self.token:020d}"

    @property
    def name(self) -> str:
        """Name of the epoch below its writer's directory."""
        return f"{self.seq:020d}-{self.epoch_id}"

    def __str__(self) -> str:
        return f"{self.session}/{self.token_directory}/{self.name}"
