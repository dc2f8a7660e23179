"""What an adopted session holds, however much it is, arrives whole and in short frames."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.client_session import SECRET, new_session

from outlast.errors import ProtocolError
from outlast.session import inventory, wire
from outlast.session.host import HostSession
from outlast.session.ids import digest
from outlast.session.schema import HANDLE_FIRST, HANDLE_STEP, MAX_FRAME, Intent


def holding(handles: int) -> dict[str, Any]:
    rows = [
        {
            "id": HANDLE_FIRST + index * HANDLE_STEP,
            "kind": "event",
            "parents": [1],
            "recipe": {"flags": 0},
        }
        for index in range(handles)
    ]
    return {"next_handle": HANDLE_FIRST + handles * HANDLE_STEP, "handles": rows}


@pytest.mark.parametrize("handles", [0, 5_000, 6_000, 120_000])
def test_an_adopter_gets_the_whole_inventory(handles: int):
    session = new_session(Intent.ADOPT)
    host = HostSession()
    host.applied = 7
    host.fence(1, digest(SECRET))
    host.attach(b"peer", wire.parse_message([session.attach(1, SECRET)]))
    holds = holding(handles)

    frames = host.attached(holds)
    session.attached(wire.parse_message(frames))

    assert session.inventory == holds
    assert session.first_handle == holds["next_handle"]
    assert max(map(len, frames)) <= MAX_FRAME


def test_a_short_inventory_is_in_the_header_alone():
    holds = holding(10)
    assert inventory.pack(holds) == (holds, [])


@pytest.mark.parametrize(
    "frames", [[b"{"], [b"\xff"], [b"[]"], [b"[" * 100_000]], ids=["cut", "text", "list", "deep"]
)
def test_an_inventory_that_cannot_be_read_is_refused(frames: list[bytes]):
    host = HostSession()
    host.fence(1, digest(SECRET))
    message = wire.parse_message([*host.attached({}), *frames])
    with pytest.raises(ProtocolError, match="inventory of a session"):
        inventory.unpack(message)
