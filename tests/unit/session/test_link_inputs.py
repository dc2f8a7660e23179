"""Inputs of a link come out as they went in, and other bytes are none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlast.session.link_inputs import LinkInput, pack, unpack

NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
INPUTS = st.lists(st.builds(LinkInput, st.integers(0, 7), NAMES, st.binary(max_size=50)))


@given(INPUTS)
def test_what_is_packed_is_unpacked(inputs: list[LinkInput]) -> None:
    assert unpack(pack(inputs)) == inputs


@given(st.binary(max_size=200))
def test_other_bytes_are_inputs_or_none(data: bytes) -> None:
    inputs = unpack(data)
    assert inputs is None or sum(len(part.data) for part in inputs) <= len(data)


@given(INPUTS.filter(bool), st.integers(1, 16))
def test_inputs_that_are_cut_off_are_none(inputs: list[LinkInput], missing: int) -> None:
    data = pack(inputs)
    assert unpack(data[: max(1, len(data) - missing)]) is None or len(inputs) > 1
