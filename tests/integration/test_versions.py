"""Clients and servers of different releases part at the first message, with both named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from outlast.errors import VersionMismatch
from outlast.session import wire
from outlast.session.schema import PROTOCOL_VERSION, STREAM_FORMAT, Intent, Kind
from outlast.session.wire import Message


@pytest.fixture
def gateway(server, zmq_context) -> Iterator[zmq.Socket[bytes]]:
    dealer = zmq_context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.rcvtimeo = 5000
    dealer.connect(server.endpoint)
    yield dealer
    dealer.close()


def hello(**changes: Any) -> bytes:
    fields = {
        "protocol": PROTOCOL_VERSION,
        "stream_format": STREAM_FORMAT,
        "cuda_version": 13000,
        "intent": int(Intent.CREATE),
        "wishes": 0,
        "generation": 0,
        "log_head": 1,
        "next_seq": 1,
        "incarnation": b"i" * 16,
        "token": "token",
        "session": "versions",
        "build": "python 9.9",
    }
    return wire.pack_message(Kind.HELLO, **{**fields, **changes})


def answer(gateway: zmq.Socket[bytes], frame: bytes) -> Message:
    gateway.send(frame)
    return wire.parse_message(gateway.recv_multipart())


@pytest.mark.parametrize("version", [PROTOCOL_VERSION + 1, PROTOCOL_VERSION - 1])
def test_another_protocol_version_is_refused_naming_both(gateway, version):
    other = bytearray(hello())
    other[2] = version
    refused = answer(gateway, bytes(other))
    assert refused.kind is Kind.REFUSED
    assert refused["error"] == VersionMismatch.code
    assert f"protocol {version}" in refused["message"]
    assert f"protocol {PROTOCOL_VERSION}" in refused["message"]


def test_another_protocol_version_is_refused_even_if_the_rest_cannot_be_read(gateway):
    refused = answer(gateway, b"OL" + bytes([PROTOCOL_VERSION + 7, Kind.HELLO]) + b"\xff" * 5)
    assert refused["error"] == VersionMismatch.code


def test_a_log_in_an_unknown_stream_format_is_refused_naming_the_builds(gateway):
    refused = answer(gateway, hello(stream_format=STREAM_FORMAT + 1))
    assert refused["error"] == VersionMismatch.code
    assert "python 9.9" in refused["message"]
    assert f"format {STREAM_FORMAT + 1}" in refused["message"]
