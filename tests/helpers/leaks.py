"""Finds what tests leave behind: threads, child processes, file descriptors, ZeroMQ contexts.

A `Snapshot` taken before is compared with the state after, again and again until a deadline,
because threads and sockets take a moment to go. What is left is named.
"""

from __future__ import annotations

import gc
import multiprocessing.resource_tracker
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import garbage

PROC = Path("/proc")
#: How long leftovers get to disappear by themselves.
DEADLINE = 5.0  # seconds

#: Threads that libraries keep for the life of the process, by name.
LIBRARY_THREADS = re.compile(r"pytest_timeout|pydevd|tqdm_monitor|TMonitor|hypothesis", re.ASCII)
#: Children that the standard library keeps for the life of the process.
LIBRARY_CHILDREN = re.compile(r"multiprocessing[.](resource_tracker|forkserver)", re.ASCII)
#: Files that libraries keep open.
LIBRARY_FILES = re.compile(r"/dev/(null|u?random|pts/|nvidia)|[.]hypothesis/|[.]so([.]\d+)*$")


@dataclass(frozen=True)
class Snapshot:
    """What this process holds at one moment; each offender's key maps to its name."""

    held: dict[tuple[str, object], str] = field(default_factory=dict)

    @classmethod
    def take(cls) -> Snapshot:
        """Look at this process now."""
        held: dict[tuple[str, object], str] = {}
        for scan in (_threads, _children, _descriptors, _contexts):
            held.update(scan())
        return cls(held)

    def since(self, baseline: Snapshot) -> list[str]:
        """Name what is held now and was not at ``baseline``."""
        return sorted(name for key, name in self.held.items() if key not in baseline.held)


#: Things made under `lasting`: they may outlive a module, but not the session.
_lasting: dict[tuple[str, object], str] = {}


@contextmanager
def lasting() -> Iterator[None]:
    """Allow what is made inside to live until the end of the session.

    For session-wide fixtures, such as a database server that many modules share.
    """
    before = Snapshot.take()
    try:
        yield
    finally:
        after = Snapshot.take()
        _lasting.update({k: v for k, v in after.held.items() if k not in before.held})


def start_library_threads() -> None:
    """Start what pyzmq keeps for the life of the process once a large frame was sent."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as to, context.socket(zmq.PAIR) as at:
        at.bind("inproc://large")
        to.connect("inproc://large")
        to.send(bytes(1 << 20), copy=False)
        at.recv()
    # Its context's reaper thread is known by a name that it takes only when it first runs.
    while garbage.gc.refs or (sys.platform == "linux" and not any(_contexts())):
        time.sleep(0.001)


def leftovers(
    baseline: Snapshot, *, session: bool = False, deadline: float = DEADLINE
) -> list[str]:
    """Wait until nothing is left that ``baseline`` had not; name the rest at the deadline."""
    allowed = baseline if session else Snapshot(baseline.held | _lasting)
    end = time.monotonic() + deadline
    rest = Snapshot.take().since(allowed)
    while rest and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
        rest = Snapshot.take().since(allowed)
    return rest


def run_within(seconds: float, action: Callable[[], object], name: str) -> None:
    """Run ``action`` in a thread and fail, naming it, when it does not end in time."""
    thread = threading.Thread(target=action, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"{name} did not end within {seconds} s"


def _threads() -> Iterator[tuple[tuple[str, object], str]]:
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not LIBRARY_THREADS.search(thread.name):
            yield ("thread", thread), f"thread {thread.name!r}"


def _children() -> Iterator[tuple[tuple[str, object], str]]:
    if sys.platform != "linux":
        return
    for listing in PROC.glob("self/task/*/children"):
        for pid in _read(listing).split():
            command = _read(PROC / pid / "cmdline").replace("\0", " ").strip()
            if not LIBRARY_CHILDREN.search(command):
                shown = command or f"({_read(PROC / pid / 'comm').strip()}, not waited for)"
                yield ("child", pid), f"child process {pid}: {shown[:200]}"


def _descriptors() -> Iterator[tuple[tuple[str, object], str]]:
    if sys.platform != "linux":
        return
    tracker = getattr(multiprocessing.resource_tracker._resource_tracker, "_fd", None)
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except FileNotFoundError:
            continue  # the descriptor that listed the folder
        if int(entry) != tracker and not LIBRARY_FILES.search(target):
            yield ("descriptor", (entry, target)), f"descriptor {entry}: {target}"


def _contexts() -> Iterator[tuple[tuple[str, object], str]]:
    """Find ZeroMQ contexts by the reaper thread that each one has."""
    if sys.platform != "linux":
        return
    for task in PROC.glob("self/task/*"):
        if _read(task / "comm").startswith("ZMQbg/Reaper"):
            yield ("context", task.name), f"ZeroMQ context (its reaper is thread {task.name})"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
