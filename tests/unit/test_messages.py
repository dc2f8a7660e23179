"""The memory of messages stays warm."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys

import pytest
import zmq

from outlast.messages import LOCAL_SEND_BUFFER, stay_in_cache


@pytest.mark.parametrize(
    ("endpoint", "bounded"),
    [
        ("tcp://127.0.0.1", True),
        ("tcp://localhost:14833", True),
        ("tcp://[::1]:14833", True),
        ("tcp://10.0.0.7:14833", False),
        ("tcp://0.0.0.0:14833", False),
    ],
)
def test_only_what_stays_on_this_machine_has_a_short_way(endpoint: str, bounded: bool) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        before = dealer.sndbuf
        stay_in_cache(dealer, endpoint)
        assert dealer.sndbuf == (LOCAL_SEND_BUFFER if bounded else before)
    with socket.socket() as link:
        before = link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        stay_in_cache(link, endpoint)
        now = link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert (now >= LOCAL_SEND_BUFFER) if bounded else (now == before)


FREED_AND_TAKEN_AGAIN = """
import resource, sys
from outlast.messages import keep_freed_memory
keep_freed_memory()
keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    frames = [bytes([1]) * (1 << 20) for _ in range(16)]
use()
before = faults()
use()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others keep what they like")
def test_memory_of_frames_that_are_gone_serves_the_next_ones() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    out = subprocess.run(
        [sys.executable, "-c", FREED_AND_TAKEN_AGAIN],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    # Fresh memory would take 4096.
    assert int(out.stdout) < 1024
