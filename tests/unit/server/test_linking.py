"""What was linked is in the session until the client has read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers import ptx
from helpers.fatbins import sample
from helpers.life import Life

from outlast.checkpoint_providers.memory import MemoryProvider
from outlast.errors import ReplayDiverged
from outlast.server.calls.linking import link_read
from outlast.server.drivers.emulated import EmulatedDriver
from outlast.session import link_inputs, wire
from outlast.session.link_inputs import LinkInput
from outlast.session.operations import Op
from outlast.session.schema import HANDLE_FIRST, HANDLE_STEP, MAX_FRAME, ReplyKind
from outlast.session.wire import Reply

LINKED = HANDLE_FIRST + 100 * HANDLE_STEP
INPUTS = [LinkInput(1, "tape", ptx.TAPE.encode()), LinkInput(2, "fatbin", sample("size"))]


def linking(inputs: list[LinkInput], handle: int = LINKED) -> bytes:
    return wire.pack_record(Op.LINK, handle, data=link_inputs.pack(inputs))


def outcome_of(life: Life) -> Reply:
    frames = life.host.take_replies(idle=False)
    return list(wire.iter_replies(wire.parse_message(frames).frames[0]))[-1]


def read(life: Life, value: int, offset: int = 0, size: int = MAX_FRAME) -> tuple[int, bytes]:
    answer = link_read(life.executor, (1, LINKED, value, offset, size))
    return answer[0], bytes(answer[1])


@pytest.fixture
def make() -> Iterator[Any]:
    provider = MemoryProvider()
    drivers: list[EmulatedDriver] = []

    def make() -> Life:
        for driver in drivers:
            driver.close()
        drivers.append(EmulatedDriver(memory=64 << 20))
        return Life(provider, drivers[-1])

    yield make
    for driver in drivers:
        driver.close()


def test_a_linked_image_is_read_in_parts_and_comes_back_with_its_session(make: Any) -> None:
    life = make()
    life.begin()
    life.host.peer = b"client"
    life.do(linking(INPUTS))
    answer = outcome_of(life)
    assert (answer.kind, answer.result) == (ReplyKind.OUTCOME, 0)
    (size,) = wire.unpack_reply(Op.LINK, answer.data)
    result, image = read(life, answer.value)
    assert (result, len(image)) == (0, size)
    assert b"append" in image
    assert b"which" in image
    assert read(life, answer.value, 10, 20) == (0, image[10:30])
    assert read(life, answer.value, size) == (0, b"")
    assert read(life, answer.value + 1) == (999, b"")
    assert read(life, answer.value, 0, MAX_FRAME + 1) == (1, b"")
    life.host.acknowledge(life.host.applied)
    stored = life.save()

    again = make()
    again.restore(stored)
    assert read(again, answer.value) == (0, image)
    again.do(wire.pack_record(Op.LINK_DESTROY, LINKED))
    assert read(again, answer.value)[0] == 400
    assert len(again.executor.images) == 1


def test_a_replay_links_again_and_a_part_of_another_image_is_not_given(make: Any) -> None:
    life = make()
    life.begin()
    life.host.peer = b"client"
    life.do(linking(INPUTS))
    answer = outcome_of(life)
    (life := make()).begin()
    imposed = wire.pack_record(Op.OUTCOME, life.host.applied + 1, 0, answer.value)
    life.executor.run(life.host.applied + 1, 1, 0, imposed + linking(INPUTS), [])
    assert read(life, answer.value)[0] == 0
    (life := make()).begin()
    imposed = wire.pack_record(Op.OUTCOME, life.host.applied + 1, 0, answer.value)
    life.executor.run(life.host.applied + 1, 1, 0, imposed + linking(INPUTS[:1]), [])
    assert read(life, answer.value)[0] == 999


def test_a_link_that_fails_leaves_nothing_and_cannot_be_imposed(make: Any) -> None:
    life = make()
    life.begin()
    life.host.peer = b"client"
    garbage = wire.pack_record(Op.LINK, LINKED, data=b"no inputs")
    for record, code in ((garbage, 1), (linking([LinkInput(0, "cubin", b"\x7fELF")]), 209)):
        life.do(record)
        assert outcome_of(life).result == code
        assert read(life, 0)[0] == 400
        imposed = wire.pack_record(Op.OUTCOME, life.host.applied + 1, 0, 5)
        with pytest.raises(ReplayDiverged, match="cannot be made again"):
            life.executor.run(life.host.applied + 1, 1, 0, imposed + record, [])
