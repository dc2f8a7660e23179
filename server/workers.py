"""Worker processes as the gateway sees them: start, requests, death."""

from __future__ import annotations

import logging
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from outlast.errors import OutlastError, RestoreFailed, by_code
from outlast.server.channel import Channel, Json, channel_pair
from outlast.server.departures import Process, reap
from outlast.server.flow import Resume, Step
from outlast.server.layout import ENVIRONMENT, fixed_layout

log = logging.getLogger(__name__)

#: Signals that say: the process did this to itself.
CRASH_SIGNALS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGSYS,
}
#: Exit code of a worker whose replay gave another outcome than the recorded one: trying again
#: from the stored epoch may help.
DIVERGED = 75  # EX_TEMPFAIL


class WorkerProcess:
    """One worker process; idle until it is given a session.

    Parameters
    ----------
    channel : Channel
        To the process.
    process : Process
        The process; a foreign one was started by another gateway.
    page : mmap
        Shared with it: the call in hand.
    """

    def __init__(self, channel: Channel, process: Process, page: mmap.mmap) -> None:
        self.channel = channel
        self.process = process
        self._page = page
        self._issued = memoryview(self._page).cast("Q")
        self.session = ""
        self.ready = False
        #: Its device is ready, or what is missing is known.
        self.warm = False
        self.lack: OutlastError | None = None
        self.endpoints: list[str] = []
        self.devices: list[Json] = []
        #: Called with every message that is no reply.
        self.on_message: Callable[[Json], None] = lambda message: None
        self._requests: dict[int, Resume] = {}
        self._next = 1
        self._started: Resume | None = None

    @classmethod
    def spawn(cls, device: str) -> WorkerProcess:
        """Start a worker process.

        Parameters
        ----------
        device : str
            Kind of device it is to have ready: ``cuda`` or ``emulated``.

        Raises
        ------
        RestoreFailed
            The system gives no process, descriptor or memory for it.
        """
        with ExitStack() as undo:
            try:
                channel, theirs = channel_pair()
                undo.callback(channel.close)
                with _closed_after(theirs):
                    page, process = _spawn(theirs, device)
            except OSError as error:
                raise RestoreFailed(f"no worker process can be started: {error}") from error
            undo.pop_all()
        return cls(channel, process, page)

    def succeed(self, session: str, endpoints: list[str], devices: list[Json]) -> None:
        """Take in what a worker that was started by another gateway is at."""
        self.session, self.endpoints, self.devices = session, endpoints, devices
        self.ready = True

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def in_hand(self) -> tuple[int, str]:
        """The last call issued: seq and name; the name is empty if it had returned."""
        from outlast.session.operations import Op  # late: a server's first worker starts before it

        seq, op = self._issued[0], self._issued[1]
        try:
            return seq, Op(op).name if op else ""
        except ValueError:
            # What a process wrote that then crashed is not to be trusted.
            return seq, f"operation {op}"

    def start(self, message: Json) -> Step:
        """Return the step that gives the worker its session and waits until it is ready."""

        def step(resume: Resume) -> None:
            self.session = message["session"]
            self._started = resume
            if not self.channel.send({"kind": "start", **message}):
                self.died()

        return step

    def request(self, kind: str, **fields: Any) -> Step:
        """Return the step that asks the worker something and waits for its reply."""

        def step(resume: Resume) -> None:
            number = self._next
            self._next += 1
            self._requests[number] = resume
            if not self.channel.send({"kind": kind, "id": number, **fields}):
                self.died()

        return step

    def send(self, kind: str, **fields: Any) -> None:
        """Tell the worker something."""
        self.channel.send({"kind": kind, **fields})

    def receive(self) -> bool:
        """Handle the messages that are there; return False once the worker is gone."""
        while self.channel.ready():
            message = self.channel.receive()
            if message is None:
                return False
            self._on_message(message)
        return True

    def died(self) -> None:
        """Fail whatever waits for the worker."""
        error = RestoreFailed(f"the worker of session {self.session!r} ended")
        waiting = [*self._requests.values()]
        self._requests.clear()
        if self._started is not None:
            waiting.append(self._started)
            self._started = None
        self.ready = False
        for resume in waiting:
            resume(None, error)

    def dismiss(self) -> Process:
        """Have the process end; return it, to be waited for."""
        self.channel.send({"kind": "begone"})
        if not self.ready:
            self.process.kill()  # it holds nothing yet, and may be deep in a restore
        return self.abandon()

    def abandon(self) -> Process:
        """Let go of the process, which goes on and waits for another gateway."""
        self.channel.close()
        self._issued.release()
        self._page.close()
        return self.process

    def close(self) -> None:
        """End the process and wait for it."""
        reap(self.dismiss())

    def _on_message(self, message: Json) -> None:
        kind = message["kind"]
        if kind == "reply":
            resume = self._requests.pop(message["to"], None)
            if resume is not None:
                resume(message, _error(message))
        elif kind == "ready":
            self.ready = True
            self.endpoints = message["endpoints"]
            self.devices = message["devices"]
            self._settle_start(message, None)
        elif kind == "warm":
            self.warm = True
            self.lack = _error(message)
        elif kind == "restore_failed":
            self._settle_start(None, _error({**message, "error": message["message"]}))
        else:
            self.on_message(message)

    def _settle_start(self, message: Json | None, error: OutlastError | None) -> None:
        resume, self._started = self._started, None
        if resume is not None:
            resume(message, error)


@contextmanager
def _closed_after(fd: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(fd)


def _spawn(channel: int, device: str) -> tuple[mmap.mmap, subprocess.Popen[bytes]]:
    """Start the process with its end of the channel and the shared page."""
    fd = os.memfd_create("outlast-issued", os.MFD_CLOEXEC)
    with _closed_after(fd):
        os.ftruncate(fd, mmap.PAGESIZE)
        page = mmap.mmap(fd, mmap.PAGESIZE)
        command = [sys.executable, "-m", "outlast.server.worker"]
        command += ["--channel", str(channel), "--issued", str(fd), "--device", device]
        # CUDA's own addresses come back only where memory is laid out as before.
        fixed = device == "cuda"
        layout = fixed_layout() if fixed else nullcontext()
        with _group_signals_held(), layout:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(channel, fd),
                env={**os.environ, **ENVIRONMENT} if fixed else None,
            )
    return page, process


@contextmanager
def _group_signals_held() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back; a process started meanwhile never gets them.

    They go to the whole group, and a worker that is still starting does not ignore them yet.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _error(message: Json) -> OutlastError | None:
    if not message.get("error"):
        return None
    # What has no code on the wire (a store that does not answer, say) may well go away.
    error = by_code(message.get("code", 0))
    if error is OutlastError:
        error = RestoreFailed
    return error(message["error"], corrupt=message.get("corrupt", False))


def crashed(code: int) -> bool:
    """Return whether a process that ended with this code did it to itself."""
    return code > 0 or -code in CRASH_SIGNALS


class CrashCount:
    """Deaths of one session's workers: the same call again and again parks the session."""

    #: Deaths at the same call, and deaths without any progress, that park a session.
    SAME_CALL = 2
    NO_PROGRESS = 3
    #: Replays that diverge alike park it too, but not before so many seconds: it may have been
    #: memory that somebody else had for a while.
    DIVERGED = 3
    DIVERGED_FOR = 30.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deaths: list[tuple[int, str]] = []
        self._progress = 0
        #: How the last replay diverged, how often in a row, and since when.
        self._diverged: tuple[int, str] | None = None
        self._times = 0
        self._since = 0.0

    def __bool__(self) -> bool:
        return bool(self._deaths) or self._diverged is not None

    def progressed(self, seq: int) -> None:
        """Forget the deaths: an epoch has moved on."""
        if seq > self._progress:
            self._progress = seq
            self._deaths.clear()
            self._diverged = None

    def diverged(self, seq: int, how: str) -> str:
        """Note a replay that went another way; return why the session is to be parked, if so."""
        if self._diverged != (seq, how):
            self._diverged = seq, how
            self._times, self._since = 0, self._clock()
        self._times += 1
        if self._times < self.DIVERGED or self._clock() - self._since < self.DIVERGED_FOR:
            return ""
        return f"call {seq} cannot be replayed, {self._times} times alike: {how}"

    def died(self, seq: int, op: str, code: int, ready: bool = True) -> str:
        """Note a death; return why the session is to be parked, or nothing.

        A death by SIGKILL between calls is somebody else's doing and does not count, nor
        does an exit before the worker was ``ready``: its client is told at once.
        """
        own_doing = crashed(code) and code != DIVERGED and (ready or code < 0)
        if not own_doing and not op:
            return ""
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._deaths.append((seq, op))
        same = [d for d in self._deaths if d[0] == seq]
        crashes = len(self._deaths) if own_doing else 0
        if len(same) >= self.SAME_CALL or crashes >= self.NO_PROGRESS:
            return f"call {seq} ({op or 'running on the device'}) ended its worker by {how}"
        return ""
