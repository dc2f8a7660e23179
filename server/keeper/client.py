"""A connection to the keeper, starting one where there is none."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import KeeperError
from outlast.server import unix_sockets
from outlast.server.keeper.holdings import Chunk
from outlast.server.keeper.messages import SOCKET_NAME, BadMessage, Json, close_all, receive, send

#: How long an answer may take: the keeper never waits for anything.
TIMEOUT = 5.0  # seconds
#: How soon a keeper that was just started is tried again.
RETRY = 0.002  # seconds
#: How long a keeper without anything to keep waits for somebody to come.
IDLE = 10.0  # seconds


@dataclass(slots=True)
class Claim:
    """What a new holder gets; the descriptors are the caller's to close."""

    #: The session's shared page.
    page: int
    #: The sealed epoch; -1 if none is sealed.
    manifest: int
    #: Device memory, in the order in which it was added.
    chunks: list[Chunk]
    #: The keeper looks at the page's mark; one of an older version does not.
    marks: bool

    def close(self) -> None:
        """Close the descriptors."""
        close_all([self.page, self.manifest, *(chunk.fd for chunk in self.chunks)])


class Keeper:
    """The keeper of one state folder.

    Parameters
    ----------
    state : Path
        The server's state folder.
    timeout : float
        Seconds that an answer may take.
    """

    def __init__(self, state: Path, timeout: float = TIMEOUT) -> None:
        self._path = state / SOCKET_NAME
        self._timeout = timeout
        self._socket: socket.socket | None = None

    def start(self, ttl: float) -> None:
        """Have a keeper run that keeps memory for so many seconds, and stay connected to it.

        Raises
        ------
        KeeperError
            None can be started or reached.
        """
        starter = self.launch(ttl)
        if starter is not None:
            try:
                self.connect(TIMEOUT)
            finally:
                if starter.poll() is None:
                    starter.kill()  # it has detached the keeper by now, or never will
                starter.wait()

    def launch(self, ttl: float) -> subprocess.Popen[bytes] | None:
        """Do as `start`, but wait for nothing: `connect` succeeds once the keeper is there.

        Returns
        -------
        subprocess.Popen or None
            The process that starts it and ends then; None if this is connected to one that ran.

        Raises
        ------
        KeeperError
            None can be started.
        """
        try:
            self._connect()
            self._set_ttl(ttl)
            return None
        except (OSError, KeeperError):
            self.close()
        return self._spawn(ttl)

    def claim(self, session: str, token: int) -> Claim:
        """Become the holder of a session's memory.

        Raises
        ------
        KeeperError
            ``held`` while the former holder lives, ``fenced`` if a higher token has been here.
        """
        answer, fds = self._ask({"op": "claim", "session": session, "token": token})
        try:
            page, index, *rest = fds
            manifest = rest.pop(0) if answer["sealed"] else -1
            with open(os.dup(index), "rb") as file:
                file.seek(0)
                listed = json.load(file)
            chunks = [Chunk(**where, fd=fd) for where, fd in zip(listed, rest, strict=True)]
        except (KeyError, TypeError, ValueError) as error:
            close_all(fds)
            raise KeeperError(f"the keeper's answer is wrong: {error}", reason="invalid") from error
        os.close(index)
        return Claim(page, manifest, chunks, bool(answer.get("marks")))

    def add(self, session: str, token: int, chunk: tuple[int, int, int], fd: int) -> None:
        """Hand over a chunk, ``(device, address, size)``; the keeper has its own descriptor."""
        device, address, size = chunk
        where = {"device": device, "address": address, "size": size}
        self._tell({"op": "add", "session": session, "token": token, **where}, [fd])

    def drop(self, session: str, token: int, device: int, address: int) -> None:
        """Have a chunk given back."""
        where = {"device": device, "address": address}
        self._tell({"op": "drop", "session": session, "token": token, **where})

    def seal(self, session: str, token: int, seq: int, epoch: int) -> None:
        """Say that the memory is at rest behind call ``seq``, as a sealed epoch describes it."""
        self._tell({"op": "seal", "session": session, "token": token, "seq": seq}, [epoch])

    def rest(self, session: str, token: int, seq: int, mark: int, epoch: int) -> None:
        """Say the same for as long as the session's page begins with a mark, which is not 0."""
        message = {"op": "rest", "session": session, "token": token, "seq": seq, "mark": mark}
        self._tell(message, [epoch])

    def unseal(self, session: str, token: int) -> None:
        """Say that the memory changes again."""
        self._tell({"op": "unseal", "session": session, "token": token})

    def end(self, session: str, token: int) -> bool:
        """Give a session's memory back; return whether there was any."""
        answer, _ = self._ask({"op": "end", "session": session, "token": token})
        return bool(answer["held"])

    def holdings(self) -> list[Json]:
        """Return what is held of every session."""
        found: list[Json] = []
        while True:
            answer, _ = self._ask({"op": "list", "start": len(found)})
            found += answer["holdings"]
            if not answer["holdings"] or len(found) >= answer["all"]:
                return found

    def connect(self, patience: float = 0.0) -> None:
        """Connect to a running keeper, or one that is there within ``patience`` seconds.

        Raises
        ------
        KeeperError
            None runs.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                self._connect()
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    text = f"no keeper runs at {self._path}"
                    raise KeeperError(text, reason="unreachable") from error
            time.sleep(RETRY)

    @property
    def connected(self) -> bool:
        """Whether there is a connection, and the keeper has not ended."""
        # It sends nothing by itself: what could be read is the end.
        return self._socket is not None and not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        """Close the connection; the keeper goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        if self._socket is not None:
            return
        self._socket = unix_sockets.connect(self._path, socket.SOCK_SEQPACKET, self._timeout)

    def _spawn(self, ttl: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "outlast.server.keeper", "--socket"]
        command += [str(self._path.absolute()), "--ttl", str(ttl), "--idle", str(IDLE)]
        try:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            text = f"the keeper cannot be started: {error}"
            raise KeeperError(text, reason="unreachable") from error

    def _set_ttl(self, ttl: float) -> None:
        """Tell a keeper that may have been started by another server, with another setting."""
        try:
            self._tell({"op": "keep", "seconds": ttl})
        except KeeperError as error:
            if error.reason != "invalid":  # one of an older version, which keeps its own
                raise

    def _tell(self, message: Json, fds: Sequence[int] = ()) -> None:
        _, out = self._ask(message, fds)
        close_all(out)

    def _ask(self, message: Json, fds: Sequence[int] = ()) -> tuple[Json, list[int]]:
        self.connect()
        assert self._socket is not None
        try:
            send(self._socket, message, fds)
            received = receive(self._socket)
        except (OSError, BadMessage) as error:
            self.close()
            raise KeeperError(f"the keeper does not answer: {error}", reason="broken") from error
        if received is None:
            self.close()
            raise KeeperError("the keeper has ended", reason="broken")
        answer, out = received
        if "error" in answer:
            close_all(out)
            raise KeeperError(str(answer.get("text")), reason=str(answer["error"]))
        return answer, out
