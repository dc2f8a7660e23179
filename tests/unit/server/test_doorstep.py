"""How a new gateway hears who waits at a worker's doorstep."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from outlast.server.doorstep import hear, introduce

INTRODUCTION: dict[str, Any] = {
    "session": "train",
    "token": 3,
    "endpoints": ["tcp://127.0.0.1:1"],
    "devices": [{}],
    "version": "1.0",
    "device": "emulated",
    "provider": "directory",
}


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def page(size: int = mmap.PAGESIZE) -> int:
    descriptor = os.memfd_create("page", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor


def said(connection: socket.socket, data: bytes, size: int = mmap.PAGESIZE) -> None:
    """Say ``data`` as an introduction, with a page of ``size`` bytes."""
    descriptor = page(size)
    socket.send_fds(connection, [struct.pack("<I", len(data))], [descriptor])
    connection.sendall(data)
    os.close(descriptor)


def test_what_a_worker_says_is_heard(ends: tuple[socket.socket, socket.socket]) -> None:
    descriptor = page()
    introduce(ends[0], INTRODUCTION, descriptor)
    heard, received = hear(ends[1])
    assert heard == INTRODUCTION
    assert os.fstat(received).st_ino == os.fstat(descriptor).st_ino
    os.close(received)
    os.close(descriptor)


@pytest.mark.parametrize("name", INTRODUCTION)
@pytest.mark.parametrize("value", [None, 1.5])
def test_one_that_says_too_little_is_not_taken_for_a_worker(
    ends: tuple[socket.socket, socket.socket], name: str, value: float | None
) -> None:
    said(ends[0], json.dumps({**INTRODUCTION, name: value}).encode())
    with pytest.raises(OSError, match=f"without a usable '{name}'"):
        hear(ends[1])


@pytest.mark.parametrize("data", [b"[]", b"{}", b"5", b"\xff\xfe", b"{", b""])
def test_nor_is_one_that_says_something_else(
    ends: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    said(ends[0], data)
    with pytest.raises(OSError, match=r"\w"):
        hear(ends[1])


def test_nor_is_one_whose_page_is_too_small(ends: tuple[socket.socket, socket.socket]) -> None:
    said(ends[0], json.dumps(INTRODUCTION).encode(), size=8)
    with pytest.raises(OSError, match="too small"):
        hear(ends[1])
