"""What the keeper holds of each session, and who may have it."""

from __future__ import annotations

import os
import secrets
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from outlast.server.keeper.messages import Json, close_all

PAGE_SIZE = 4096  # bytes
#: Bytes of the page's mark, an unsigned number at its start; 0: the session may have changed.
MARK_SIZE = 8
#: Holders that begin from one seal: whatever ends them all might be in it.
MOST_BEGINNINGS = 3


class Refused(Exception):
    """A request that is not granted; `reason` is one word for programs.

    Parameters
    ----------
    reason : str
        ``fenced``, ``held``, ``unknown`` or ``invalid``.
    text : str
        For people.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Holder:
    """A process that maps a session's memory; a pidfd tells for certain when it is dead."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            self._pidfd = -1  # gone already

    def fileno(self) -> int:
        """Return a descriptor that becomes readable at the process's end; -1 if it ended."""
        return self._pidfd

    @property
    def alive(self) -> bool:
        """Whether any thread of the process still runs."""
        return self._pidfd >= 0 and not select.select([self._pidfd], [], [], 0)[0]

    def close(self) -> None:
        """Close the descriptor."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


@dataclass(slots=True)
class Chunk:
    """One piece of physical memory."""

    device: int
    address: int
    size: int  # bytes
    fd: int

    @property
    def key(self) -> tuple[int, int]:
        """What it is found by."""
        return self.device, self.address

    def describe(self) -> Json:
        """Return what a message says of it."""
        return {"device": self.device, "address": self.address, "size": self.size}


@dataclass(slots=True)
class Holding:
    """All that is held of one session."""

    session: str
    token: int
    page: int
    holder: Holder
    chunks: dict[tuple[int, int], Chunk] = field(default_factory=dict)
    #: Descriptor of the sealed epoch; -1 if none is sealed.
    manifest: int = -1
    #: The last call in it.
    seq: int = 0
    #: What the page says for as long as the memory is as the epoch has it; 0: that is for good.
    mark: int = 0
    #: Holders that have begun from it.
    beginnings: int = 0
    #: When the last holder was seen dead; None while one lives.
    alone_since: float | None = None

    @property
    def total(self) -> int:
        """Bytes of device memory."""
        return sum(chunk.size for chunk in self.chunks.values())

    @property
    def sealed(self) -> bool:
        """Whether there is a sealed epoch and the memory is as that has it."""
        return self.manifest >= 0 and self.mark in (0, self._shown())

    def _shown(self) -> int:
        """Return the mark that the page shows now."""
        return int.from_bytes(os.pread(self.page, MARK_SIZE, 0), "little")

    def show(self, mark: int) -> None:
        """Have the seal hold while the page has a mark, which is put there."""
        self.mark = mark
        os.pwrite(self.page, mark.to_bytes(MARK_SIZE, "little"), 0)

    def set_manifest(self, manifest: int, seq: int, mark: int) -> None:
        """Take a sealed epoch, whose descriptor is ours from now on."""
        self.drop_manifest()
        self.manifest, self.seq, self.mark, self.beginnings = manifest, seq, mark, 0

    def drop_manifest(self) -> None:
        """Forget the sealed epoch."""
        if self.manifest >= 0:
            os.close(self.manifest)
            self.manifest = -1

    def close(self) -> None:
        """Give everything back; memory that nobody else maps is freed by this."""
        self.drop_manifest()
        close_all([chunk.fd for chunk in self.chunks.values()])
        self.chunks.clear()
        os.close(self.page)
        self.holder.close()


class Holdings:
    """Every session's holding.

    Parameters
    ----------
    ttl : float
        Seconds for which memory without a living holder is kept.
    """

    def __init__(self, ttl: float) -> None:
        #: May be changed at any time, also for what is held already.
        self.ttl = ttl
        self._sessions: dict[str, Holding] = {}

    def __iter__(self) -> Iterator[Holding]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def claim(self, session: str, token: int, pid: int) -> Holding:
        """Make a process the holder of a session's memory.

        Raises
        ------
        Refused
            ``fenced``: a higher token has been here. ``held``: the process of a lower token
            lives, and nothing in CUDA would keep it from writing.
        """
        self.expire()
        holding = self._sessions.get(session)
        if holding is None:
            return self._begin(session, token, pid)
        self._check_token(holding, token)
        if holding.holder.pid == pid and holding.holder.alive:
            if holding.token != token:
                raise Refused("invalid", f"process {pid} holds {session!r} under another token")
            return holding
        if holding.holder.alive:
            raise Refused("held", f"process {holding.holder.pid} still holds {session!r}")
        if holding.token == token:
            raise Refused("fenced", f"token {token} of {session!r} has been used")
        if holding.beginnings >= MOST_BEGINNINGS:
            self._drop(holding)
            return self._begin(session, token, pid)
        holding.beginnings += 1
        if holding.sealed and not holding.mark:
            # It was good for as long as nobody could change anything.
            holding.show(secrets.randbits(63) | 1)
        holding.holder.close()
        holding.holder, holding.token, holding.alone_since = Holder(pid), token, None
        return holding

    def _begin(self, session: str, token: int, pid: int) -> Holding:
        page = os.memfd_create("outlast-page", os.MFD_CLOEXEC)
        os.ftruncate(page, PAGE_SIZE)
        holding = self._sessions[session] = Holding(session, token, page, Holder(pid))
        return holding

    def held_by(self, session: str, token: int, pid: int) -> Holding:
        """Return the holding that this process holds under this token.

        Raises
        ------
        Refused
            It does not.
        """
        holding = self._sessions.get(session)
        if holding is None:
            raise Refused("unknown", f"nothing is held of {session!r}")
        self._check_token(holding, token)
        if holding.token != token or holding.holder.pid != pid:
            raise Refused("fenced", f"process {pid} does not hold {session!r}")
        return holding

    def end(self, session: str, token: int) -> bool:
        """Give a session's memory back; return whether there was any.

        Raises
        ------
        Refused
            ``fenced``: a higher token has been here.
        """
        holding = self._sessions.get(session)
        if holding is None:
            return False
        self._check_token(holding, token)
        self._drop(holding)
        return True

    def expire(self) -> None:
        """Give back what nobody can use, and what has had no living holder for too long.

        Memory whose holder died while it may have been changing is of no use to anybody.
        """
        now = time.monotonic()
        for holding in self:
            if holding.holder.alive:
                holding.alone_since = None
            elif not holding.sealed:
                self._drop(holding)
            elif holding.alone_since is None:
                holding.alone_since = now
            elif now - holding.alone_since >= self.ttl:
                self._drop(holding)

    def _drop(self, holding: Holding) -> None:
        del self._sessions[holding.session]
        holding.close()

    def describe(self) -> list[Json]:
        """Return what is held, for programs and people."""
        self.expire()
        now = time.monotonic()
        return [
            {
                "session": holding.session,
                "token": holding.token,
                "bytes": holding.total,
                "chunks": len(holding.chunks),
                "sealed": holding.sealed,
                "outdated": holding.manifest >= 0 and not holding.sealed,
                "seq": holding.seq,
                "holder": holding.holder.pid if holding.holder.alive else 0,
                "left": None
                if holding.alone_since is None
                else max(0.0, self.ttl - (now - holding.alone_since)),
            }
            for holding in self
        ]

    def close(self) -> None:
        """Give everything back."""
        for holding in self:
            with suppress(OSError):
                holding.close()
        self._sessions.clear()

    @staticmethod
    def _check_token(holding: Holding, token: int) -> None:
        if token < holding.token:
            text = f"token {token} of {holding.session!r} is over; {holding.token} has it"
            raise Refused("fenced", text)
