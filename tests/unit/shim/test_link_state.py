"""A link collects its inputs here; its image comes whole and stays until the link's end."""

from __future__ import annotations

import ctypes

import pytest
from helpers.fake_link import image

from outlast.session import link_inputs
from outlast.session.operations import Op
from outlast.session.schema import MAX_FRAME
from outlast.shim import driver

PTX = driver.CUjitInputType.CU_JIT_INPUT_PTX


@pytest.fixture
def state(context):
    result, handle = driver.cuLinkCreate(0, [], [])
    assert result == 0
    return handle


def add(state, data, name=b"part", kind=PTX):
    return driver.cuLinkAddData(state, kind, data, len(data), name, 0, [], [])


def test_inputs_travel_at_the_end_in_their_order(link, state, tmp_path):
    path = tmp_path / "third"
    path.write_bytes(b"three")
    held = ctypes.create_string_buffer(b"two")
    assert add(state, b"one") == (0,)
    assert driver.cuLinkAddData(state, 1, ctypes.addressof(held), 3, None, 0, [], []) == (0,)
    assert driver.cuLinkAddFile(state, PTX, str(path), 0, [], []) == (0,)
    assert link.ops().count(Op.LINK) == 0
    result, address, size = driver.cuLinkComplete(state)
    assert (result, ctypes.string_at(address, size)) == (0, b"one+two+three")
    inputs = link_inputs.unpack(link.of(Op.LINK)[0][2])
    assert [(i.kind, i.name) for i in inputs] == [(1, "part"), (1, ""), (1, str(path))]


def test_an_image_is_read_once_and_whole_and_forgotten_there(link, state):
    long = bytes(range(256)) * (MAX_FRAME // 128)
    assert add(state, long) == (0,)
    first = driver.cuLinkComplete(state)
    assert ctypes.string_at(*first[1:]) == long
    assert [call[1][3:] for call in link.of(Op.LINK_READ)] == [
        (0, MAX_FRAME),
        (MAX_FRAME, MAX_FRAME),
    ]
    assert len(link.of(Op.LINK_DESTROY)) == 1
    before = len(link.calls)
    assert driver.cuLinkComplete(state) == first
    assert len(link.calls) == before


def test_an_image_may_be_text_and_is_loaded_from_its_address(link, state):
    text = image(("k", []))
    assert add(state, text) == (0,)
    _, address, size = driver.cuLinkComplete(state)
    assert size == len(text)
    assert driver.cuModuleLoadData(address)[0] == 0
    assert link.of(Op.MODULE_LOAD)[0][2] == text


def test_a_link_that_fails_may_be_tried_again_and_one_that_ended_is_unknown(link, state):
    link.fail_next[Op.LINK] = 218
    assert driver.cuLinkComplete(state) == (218, None, None)
    assert add(state, b"x") == (0,)
    assert driver.cuLinkComplete(state)[0] == 0
    assert add(state, b"y") == (400,)
    assert driver.cuLinkDestroy(state) == (0,)
    assert driver.cuLinkComplete(state) == (400, None, None)
    assert driver.cuLinkDestroy(state) == (400,)


def test_a_link_ends_with_its_context(link, context):
    ours = driver.cuCtxCreate(None, 0, 0)[1]
    state = driver.cuLinkCreate(0, [], [])[1]
    assert driver.cuCtxDestroy(ours) == (0,)
    assert driver.cuLinkComplete(state) == (400, None, None)


@pytest.mark.parametrize(("kind", "size"), [(99, 1), (-1, 1), (1, 0), (1, -1), (1, 2)])
def test_an_input_that_is_none_is_refused(link, state, kind, size):
    assert driver.cuLinkAddData(state, kind, b"x", size, b"", 0, [], []) == (1,)
    assert driver.cuLinkAddFile(state, PTX, b"/nowhere", 0, [], []) == (301,)
