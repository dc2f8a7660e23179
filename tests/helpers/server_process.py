"""A session server in processes of its own, to be stopped, killed and started again."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

DEADLINE = 30.0  # seconds
#: The device of servers that are told none.
DEVICE = os.environ.get("TESTED_DEVICE", "emulated")
#: Where a session comes from must not depend on how long a test lets it stand idle.
SETTINGS = {"OUTLAST_DEVICE": DEVICE, "OUTLAST_IDLE_SEAL": "0"}


def assert_eventually(
    condition: Callable[[], object], what: str, timeout: float = DEADLINE
) -> None:
    """Wait until a condition holds; fail naming it after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.01)


class ServerProcess:
    """``outlast serve`` on a state folder.

    Parameters
    ----------
    state : Path
        State folder; it survives restarts.
    arguments : sequence of str
        More command line.
    environment : dict, optional
        Variables on top of this process's.
    """

    def __init__(
        self,
        state: Path,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.state = state
        self.arguments = list(arguments)
        self.environment = environment or {}
        self.endpoint = "tcp://127.0.0.1:0"
        self.log = state.parent / f"{state.name}.log"
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id of the gateway."""
        assert self.process is not None
        return self.process.pid

    def follower(self, *arguments: str) -> ServerProcess:
        """Return a server that is to take this one's place, not started yet."""
        take_over = () if "--take-over" in arguments else ("--take-over",)
        follower = ServerProcess(
            self.state, [*self.arguments, *take_over, *arguments], self.environment
        )
        follower.endpoint = self.endpoint
        return follower

    def replace(self, *arguments: str) -> int:
        """Have a follower take this one's place and be it; return the exit code of the old."""
        old, children = self.process, self._children()
        assert old is not None
        follower = self.follower(*arguments).start()
        code = old.wait(DEADLINE)
        self._close()
        if "gateway" not in arguments:
            wait_gone(children)
        self.process = follower.process
        return code

    def spawn(self) -> subprocess.Popen[str]:
        """Start the process without waiting until it is ready."""
        command = [sys.executable, "-m", "outlast", "serve", "--bind", self.endpoint]
        command += ["--state", str(self.state), *self.arguments]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **SETTINGS, **self.environment},
                start_new_session=True,
            )
        return self.process

    def start(self) -> ServerProcess:
        """Start the server, on the same port as before, and wait until it is ready."""
        process = self.spawn()
        assert process.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        stdout = process.stdout
        reader = threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True)
        reader.start()
        try:
            line = lines.get(timeout=DEADLINE)
        except queue.Empty:
            self.kill()
            raise AssertionError(f"no ready line; log:\n{self.log_text()}") from None
        reader.join(DEADLINE)
        assert line.startswith("ready tcp://"), f"{line!r}; log:\n{self.log_text()}"
        self.endpoint = line.split()[1]
        return self

    def workers(self) -> list[int]:
        """Return the pids of all workers, the spare one included."""
        return sorted({*self._children(), *self.session_workers()})

    def session_workers(self) -> list[int]:
        """Return the pids of the workers that hold a session's lock."""
        holders = []
        for lock in (self.state / "workers").glob("*.lock"):
            text = lock.read_text()
            if text.isdigit() and _is_worker(int(text)):
                holders.append(int(text))
        return holders

    def _children(self) -> list[int]:
        if self.process is None:
            return []
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        try:
            return [int(pid) for pid in path.read_text().split()]
        except FileNotFoundError:
            return []

    def terminate(self, timeout: float = DEADLINE) -> int:
        """Send SIGTERM and return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = DEADLINE) -> int:
        """Wait for the end and return the exit code."""
        assert self.process is not None
        children = self.workers()
        code = self.process.wait(timeout)
        self._close()
        wait_gone(children)
        return code

    def kill(self, workers_too: bool = True) -> None:
        """SIGKILL the gateway and all workers; without them, those of sessions go on."""
        workers = self.workers()
        if self.process is not None:
            kill(self.pid)
            self.process.wait(DEADLINE)
            self._close()
        for pid in workers if workers_too else ():
            kill(pid)
        # One that was being started may have its session only now.
        assert_eventually(
            lambda: not {p for p in workers if _runs(p)} - {*self._staying(workers_too)},
            f"processes {workers} end",
        )

    def _staying(self, workers_too: bool) -> list[int]:
        return [] if workers_too else self.session_workers()

    def leave(self, timeout: float = DEADLINE) -> int:
        """Have the gateway end without its workers, and return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGUSR1)
        code = self.process.wait(timeout)
        self._close()
        return code

    def kill_workers(self) -> None:
        """SIGKILL the workers that have a session."""
        for pid in self.session_workers():
            kill(pid)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the workers of sessions for the length of a block: they do and answer nothing."""
        workers = self.session_workers()
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def log_text(self) -> str:
        """Return everything the server has logged so far."""
        return self.log.read_text() if self.log.exists() else ""

    def _close(self) -> None:
        assert self.process is not None
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None


def kill(pid: int) -> None:
    """SIGKILL a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_gone(pids: Sequence[int], timeout: float = DEADLINE) -> None:
    """Wait until no process of these pids runs."""
    assert_eventually(
        lambda: not [pid for pid in pids if _runs(pid)], f"processes {pids} end", timeout
    )


def _is_worker(pid: int) -> bool:
    """Return whether a process is a worker that runs (and not another that got its number)."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
    return b"outlast.server.worker" in command and _runs(pid)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
