"""Run the keeper: ``python -m outlast.server.keeper --socket PATH``.

It detaches itself from whoever started it; a second keeper of the same socket ends at once.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import resource
import signal
import socket
import sys
from pathlib import Path

from outlast.server import unix_sockets
from outlast.server.keeper.service import Service


def main() -> int:
    """Serve until there is nothing to keep."""
    parser = argparse.ArgumentParser(prog="outlast-keeper")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--ttl", type=float, required=True)
    parser.add_argument("--idle", type=float, required=True)
    options = parser.parse_args()
    _detach()
    _raise_descriptor_limit()
    lock = os.open(options.socket.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    listener = unix_sockets.listen(options.socket, socket.SOCK_SEQPACKET)
    ours = _place(options.socket)
    Service(listener, options.ttl, options.idle, lambda: _place(options.socket) == ours).run()
    return 0


def _detach() -> None:
    """Leave the parent, its session and its descriptors: nothing of theirs ends this process."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, 1 << 20)


def _place(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from one that was put in its place; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _raise_descriptor_limit() -> None:
    """Every chunk of device memory takes a descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
