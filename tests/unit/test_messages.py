"""Messages off a socket: short frames as bytes, payloads where libzmq has them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from outlast.messages import LOCAL_SEND_BUFFER, receive, stay_in_cache

Pair = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        zmq.Context() as context,
        context.socket(zmq.PAIR) as one,
        context.socket(zmq.PAIR) as other,
    ):
        one.linger = other.linger = 0
        one.bind("inproc://pair")
        other.connect("inproc://pair")
        yield one, other


def test_the_first_frames_are_bytes_and_payloads_are_views(pair: Pair) -> None:
    sent = [b"peer", b"header", b"p" * 1000, b"", b"q" * (1 << 20)]
    for short in (1, 2):
        pair[0].send_multipart(sent)
        frames = receive(pair[1], short=short)
        assert [type(frame) for frame in frames] == [bytes] * short + [memoryview] * (5 - short)
        assert [bytes(frame) for frame in frames] == sent


def test_a_view_outlives_the_messages_behind_it(pair: Pair) -> None:
    pair[0].send_multipart([b"one", b"1" * 4096])
    _, payload = receive(pair[1])
    for _ in range(100):
        pair[0].send_multipart([b"more", b"2" * 4096])
        receive(pair[1])
    assert bytes(payload) == b"1" * 4096


def test_no_message_is_an_error_and_not_a_wait(pair: Pair) -> None:
    with pytest.raises(zmq.Again):
        receive(pair[1], zmq.NOBLOCK)


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
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        before = socket.sndbuf
        stay_in_cache(socket, endpoint)
        assert socket.sndbuf == (LOCAL_SEND_BUFFER if bounded else before)


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
