"""Who uses a state folder: no process is signalled that the kernel does not name as the holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import TakeOverFailed
from outlast.server.incumbent import Incumbent, holds
from outlast.server.locks import LifetimeLock

HOLDER = """
import sys
from pathlib import Path
from outlast.server.locks import LifetimeLock
lock = LifetimeLock(Path(sys.argv[1]))
assert lock.try_acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.lock"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock; SIGUSR2 would end it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.fixture
def lock(path: Path) -> Iterator[LifetimeLock]:
    lock = LifetimeLock(path)
    yield lock
    lock.release()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_the_holder_is_told_and_its_end_is_seen(
    holder: subprocess.Popen[str], lock: LifetimeLock
) -> None:
    incumbent = Incumbent(lock)
    assert incumbent.pid == holder.pid
    assert not incumbent.wait(0.0)
    incumbent.tell(signal.SIGUSR2)
    assert incumbent.wait(30.0)
    assert holder.wait() == -signal.SIGUSR2
    incumbent.tell(signal.SIGUSR2)  # gone is as good as told
    incumbent.close()
    assert lock.try_acquire()


@pytest.mark.parametrize("text", ["", "0", "nonsense", "999999999"])
def test_a_lock_that_names_nobody_is_nobody_to_be_told(
    holder: subprocess.Popen[str], lock: LifetimeLock, path: Path, text: str
) -> None:
    path.write_text(text)
    with pytest.raises(TakeOverFailed, match="cannot be told"):
        Incumbent(lock)
    assert holder.poll() is None


def test_a_stranger_with_the_number_in_the_file_is_left_alone(
    holder: subprocess.Popen[str],
    lock: LifetimeLock,
    path: Path,
    stranger: subprocess.Popen[bytes],
) -> None:
    """The number of an earlier server, given to another process since."""
    path.write_text(str(stranger.pid))
    with pytest.raises(TakeOverFailed, match=f"process {stranger.pid} cannot be told"):
        Incumbent(lock)
    assert stranger.poll() is None
    assert holder.poll() is None


def test_who_only_has_the_file_open_does_not_hold_it(
    holder: subprocess.Popen[str], lock: LifetimeLock, path: Path
) -> None:
    assert not holds(os.getpid(), path)
    assert holds(holder.pid, path)
    assert not holds(holder.pid, path.with_name("other"))
