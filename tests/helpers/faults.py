"""Faults that can befall a session server, and what brings the server back after each.

Every fault leaves a running server behind, on the same state folder and port.
"""

from __future__ import annotations

import enum
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from helpers.server_process import ServerProcess, kill

#: How long a fault waits for the moment it needs; without one nothing is done.
PATIENCE = 3.0  # seconds
POLL = 0.0005  # seconds
#: Exit code of a server that could not save every session.
NOT_SAVED = 3


class Fault(enum.StrEnum):
    """What happens to the server."""

    #: SIGTERM; the server saves every session and ends; it is started again.
    RESTART = "restart"
    #: SIGKILL to the session's worker alone.
    KILL_WORKER = "kill_worker"
    #: SIGKILL to the gateway; it is started again while its workers may still be there.
    KILL_GATEWAY = "kill_gateway"
    #: SIGKILL to every process.
    KILL_ALL = "kill_all"
    #: SIGTERM, and SIGKILL while the sessions are being saved.
    KILL_DRAINING = "kill_draining"
    #: SIGTERM twice: the second one cuts the saving short.
    HASTEN = "hasten"
    #: A restart, and SIGKILL while the session is restored or replayed.
    KILL_RESTORING = "kill_restoring"
    #: SIGUSR1: the gateway ends without its workers; it is started again.
    LEAVE = "leave"
    #: SIGUSR2: device memory waits with the keeper for the server that is started then.
    HAND_OVER = "hand_over"
    #: SIGUSR2, and SIGKILL while memory is being handed over.
    KILL_HANDING_OVER = "kill_handing_over"
    #: Another server takes its place, which begins when all is ready there.
    TAKE_OVER = "take_over"
    #: SIGKILL to that other one, before it tells the server to make way, or after.
    KILL_TAKING_OVER = "kill_taking_over"
    #: SIGKILL while an epoch is being written.
    KILL_SAVING = "kill_saving"
    #: SIGKILL to every process, and a bit of the newest epoch flips before the restart.
    ROT = "rot"


def inject(fault: Fault, server: ServerProcess, chance: random.Random) -> bool:
    """Let a fault happen; return False if its moment did not come.

    Parameters
    ----------
    chance : random.Random
        Decides the details.
    """
    return _INJECT[fault](server, chance)


def stop(server: ServerProcess) -> None:
    """SIGTERM a server; fail unless it saved every session.

    A worker killed just before is found dead only then: its session cannot be saved.
    """
    before = len(server.log_text())
    code = server.terminate()
    killed = "worker died (code -9)" in server.log_text()[before:]
    assert code == 0 or (code == NOT_SAVED and killed), f"SIGTERM: exit code {code}"


def _restart(server: ServerProcess, chance: random.Random) -> bool:
    stop(server)
    server.start()
    return True


def _hasten(server: ServerProcess, chance: random.Random) -> bool:
    os.kill(server.pid, signal.SIGTERM)
    time.sleep(chance.uniform(0.0, 0.03))
    code = server.terminate()
    server.start()
    assert code in (0, NOT_SAVED), f"SIGTERM twice: exit code {code}"
    return True


def _kill_worker(server: ServerProcess, chance: random.Random) -> bool:
    workers = server.session_workers()
    for pid in workers:
        kill(pid)
    return bool(workers)


def _kill_gateway(server: ServerProcess, chance: random.Random) -> bool:
    server.kill(workers_too=False)
    server.start()
    return True


def _kill_all(server: ServerProcess, chance: random.Random) -> bool:
    server.kill()
    server.start()
    return True


def _kill_draining(server: ServerProcess, chance: random.Random) -> bool:
    os.kill(server.pid, signal.SIGTERM)
    time.sleep(chance.uniform(0.0, 0.06))
    if chance.random() < 0.3:
        server.kill_workers()
        code = server.wait()
        server.start()
        assert code in (0, NOT_SAVED), f"SIGTERM, workers killed: exit code {code}"
        return True
    return _kill_something(server, chance)


def _leave(server: ServerProcess, chance: random.Random) -> bool:
    code = server.leave()
    server.start()
    assert code == 0, f"SIGUSR1: exit code {code}"
    return True


def _hand_over(server: ServerProcess, chance: random.Random) -> bool:
    os.kill(server.pid, signal.SIGUSR2)
    code = server.wait()
    server.start()
    assert code in (0, NOT_SAVED), f"SIGUSR2: exit code {code}"
    return True


def _kill_handing_over(server: ServerProcess, chance: random.Random) -> bool:
    os.kill(server.pid, signal.SIGUSR2)
    time.sleep(chance.uniform(0.0, 0.4))
    return _kill_something(server, chance)


def _take_over(server: ServerProcess, chance: random.Random) -> bool:
    code = server.replace()
    assert code in (0, NOT_SAVED), f"--take-over: exit code {code}"
    return True


def _kill_taking_over(server: ServerProcess, chance: random.Random) -> bool:
    follower = server.follower()
    process = follower.spawn()
    time.sleep(chance.uniform(0.0, 2.0))
    process.kill()
    process.wait(PATIENCE)
    if process.stdout is not None:
        process.stdout.close()
    # Whether the server was told to make way already: it is now.
    return _hand_over(server, chance)


def _kill_restoring(server: ServerProcess, chance: random.Random) -> bool:
    server.kill()
    server.start()
    if not _await(lambda: bool(server.session_workers())):
        return False
    time.sleep(chance.uniform(0.0, 0.15))
    if chance.random() < 0.5:
        return _kill_worker(server, chance)
    return _kill_something(server, chance)


def _kill_saving(server: ServerProcess, chance: random.Random) -> bool:
    hit = _await(lambda: _is_saving(server.state / "checkpoints"))
    if chance.random() < 0.5:
        return _kill_worker(server, chance) and hit
    return _kill_something(server, chance) and hit


def _kill_something(server: ServerProcess, chance: random.Random) -> bool:
    kind = _kill_all if chance.random() < 0.6 else _kill_gateway
    return kind(server, chance)


def _rot(server: ServerProcess, chance: random.Random) -> bool:
    server.kill()
    epochs = [p for p in (server.state / "checkpoints").glob("*/*/*") if p.name[0] != "."]
    newest = max(epochs, key=lambda folder: (folder.parent.name, folder.name), default=None)
    if newest is not None:
        flip_bit(newest / "data.bin", chance)
    server.start()
    return newest is not None


def flip_bit(path: Path, chance: random.Random) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _is_saving(checkpoints: Path) -> bool:
    """Return whether a hidden folder is there, in which an epoch is written."""
    for session in _entries(checkpoints):
        for token in _entries(session.path):
            if any(entry.name.startswith(".") for entry in _entries(token.path)):
                return True
    return False


def _entries(path: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _await(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


_INJECT: dict[Fault, Callable[[ServerProcess, random.Random], bool]] = {
    Fault.RESTART: _restart,
    Fault.HASTEN: _hasten,
    Fault.KILL_WORKER: _kill_worker,
    Fault.KILL_GATEWAY: _kill_gateway,
    Fault.KILL_ALL: _kill_all,
    Fault.KILL_DRAINING: _kill_draining,
    Fault.KILL_RESTORING: _kill_restoring,
    Fault.LEAVE: _leave,
    Fault.HAND_OVER: _hand_over,
    Fault.KILL_HANDING_OVER: _kill_handing_over,
    Fault.TAKE_OVER: _take_over,
    Fault.KILL_TAKING_OVER: _kill_taking_over,
    Fault.KILL_SAVING: _kill_saving,
    Fault.ROT: _rot,
}
