"""A server that is the first process of its container, as an image's entry point is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.kernels import Counter, begin
from helpers.links import driving
from helpers.server_process import assert_eventually

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def can_unshare() -> bool:
    """Return whether this user may make a PID namespace."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


@pytest.mark.skipif(not can_unshare(), reason="no PID namespaces here (needs root and unshare)")
def test_sigterm_saves_the_sessions_of_a_server_that_is_process_one(tmp_path: Path) -> None:
    """E11 (h): the kernel gives process 1 no default action for a signal."""
    command = [*NAMESPACE, sys.executable, "-m", "outlast", "serve", "--device", "emulated"]
    command += ["--bind", "tcp://127.0.0.1:0", "--state", str(tmp_path / "state")]
    log = (tmp_path / "log").open("w")
    container = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert container.stdout is not None
        endpoint = container.stdout.readline().split()[1]
        with driving(endpoint, tmp_path / "client", session="in-a-container"):
            begin()
            Counter().increment()
            assert_eventually(lambda: child_of(container.pid), "the server runs")
            os.kill(child_of(container.pid), signal.SIGTERM)
            assert container.wait(20) == 0
        assert "session saved" in (tmp_path / "log").read_text()
    finally:
        container.kill()
        container.wait(10)
        if container.stdout is not None:
            container.stdout.close()
        log.close()
