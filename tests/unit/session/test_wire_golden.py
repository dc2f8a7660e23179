"""Frames of the first release: layouts and numbers never change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import wire_examples

from outlast.session import wire
from outlast.session.operations import OPS, Op
from outlast.session.schema import MESSAGES, Kind

GOLDEN: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "wire_v1.json").read_text()
)


@pytest.mark.parametrize("section", GOLDEN)
def test_frames_are_laid_out_as_in_the_first_release(section: str) -> None:
    now = wire_examples.frames()[section]
    changed = {name for name, frame in GOLDEN[section].items() if now.get(name) != frame}
    assert not changed, "layouts and numbers are for ever: add fields or operations instead"


@pytest.mark.parametrize("section", GOLDEN)
def test_every_layout_has_a_golden_frame(section: str) -> None:
    missing = {
        name: frame
        for name, frame in wire_examples.frames()[section].items()
        if name not in GOLDEN[section]
    }
    assert not missing, f"add to tests/golden/wire_v1.json, section {section!r}: {missing}"


@pytest.mark.parametrize("name", GOLDEN["messages"])
def test_a_golden_message_is_still_understood(name: str) -> None:
    message = wire.parse_message([bytes.fromhex(GOLDEN["messages"][name])])
    assert message.fields == wire_examples.field_values(MESSAGES[Kind[name]].fields)


@pytest.mark.parametrize("name", GOLDEN["records"])
def test_a_golden_record_is_still_understood(name: str) -> None:
    [(codec, args, data)] = wire.CallStream(bytes.fromhex(GOLDEN["records"][name]))
    expected = list(wire_examples.field_values(OPS[Op[name]].fields).values())
    got = [*args, *([] if data is None else [bytes(data)])]
    assert codec.op is Op[name]
    assert got == expected


def test_numbers_of_operations_are_never_shared() -> None:
    numbers = [number for name, number in GOLDEN["numbers"].items() if name.startswith("Op.")]
    assert len(set(numbers)) == len(numbers)
