"""Fatbins are read as their makers meant them, and no bytes whatever do harm."""

from __future__ import annotations

import struct

import pytest
import zstandard
from helpers.fatbins import ELF, LZ4, PTX, ZSTD, entry, fatbin, sample, text
from hypothesis import given
from hypothesis import strategies as st

from outlast.images import BadImage
from outlast.server.drivers.fatbin import MAX_PAYLOAD, best_text, entries

TEXT = text(80)
WHOLE = [(ELF, 75), (PTX, 75), (PTX, 80), (PTX, 90)]


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("none", WHOLE),
        ("speed", WHOLE),
        ("size", WHOLE),
        ("all-speed", [(ELF, 75), (PTX, 80)]),
        ("cubin", [(ELF, 75)]),
    ],
)
def test_what_the_compilers_tools_have_made_is_read(name: str, held: list[tuple[int, int]]) -> None:
    found = entries(sample(name))
    assert [(e.kind, e.arch) for e in found] == held
    for e in found:
        contents = e.unpack()
        assert len(contents) == e.size
        if e.kind == ELF:
            assert contents.startswith(b"\x7fELF")
        else:
            assert b".target sm_%d" % e.arch in contents
            assert b"mul.lo.u32" in contents


@pytest.mark.parametrize("flags", [0, LZ4, ZSTD])
def test_what_was_packed_comes_out_as_it_was(flags: int) -> None:
    (found,) = entries(fatbin(entry(PTX, 80, TEXT, flags)))
    assert found.unpack().rstrip(b"\0") == TEXT.rstrip(b"\0")


@pytest.mark.parametrize(
    ("arch", "chosen"), [(70, None), (75, 75), (80, 80), (89, 80), (90, 90), (120, 90)]
)
def test_the_newest_text_that_a_device_runs_is_chosen(arch: int, chosen: int | None) -> None:
    best = best_text(entries(sample("size")), arch)
    assert (best.arch if best else None) == chosen


def test_entries_of_other_kinds_are_passed_over() -> None:
    found = entries(fatbin(entry(16, 90, b"lto"), entry(PTX, 75, TEXT), entry(64, 75, b"x")))
    best = best_text(found, 80)
    assert best is not None
    assert (best.kind, best.arch) == (PTX, 75)


@pytest.mark.parametrize("flags", [LZ4, ZSTD])
@pytest.mark.parametrize("size", [0, len(TEXT) - 1, len(TEXT) + 1, MAX_PAYLOAD, 1 << 60])
def test_an_entry_of_another_length_than_it_says_is_refused(flags: int, size: int) -> None:
    (found,) = entries(fatbin(entry(PTX, 80, TEXT, flags, size=size)))
    with pytest.raises(BadImage):
        found.unpack()


def test_a_small_frame_that_unpacks_to_very_much_stays_small() -> None:
    bomb = entry(PTX, 80, bytes(64 << 20), ZSTD, size=100)
    assert len(bomb) < 16 << 10
    with pytest.raises(BadImage, match="or more, not 100"):
        entries(fatbin(bomb))[0].unpack()


def test_a_frame_that_says_it_is_huge_gets_no_memory_for_it() -> None:
    # The header of a frame with a content size of 2**62 and no blocks.
    frame = struct.pack("<IBBQ", zstandard.MAGIC_NUMBER, 0xC0, 0x50, 1 << 62)
    packed = entry(PTX, 80, frame)[:64]
    fields = list(struct.unpack("<HHIQIIHHIIIQQQ", packed))
    fields[4], fields[11], fields[13] = len(frame), ZSTD, 100
    image = fatbin(struct.pack("<HHIQIIHHIIIQQQ", *fields) + frame + bytes(2))
    with pytest.raises(BadImage):
        entries(image)[0].unpack()


@pytest.mark.parametrize("header", [0, 8, 63, 1 << 31])
def test_an_entry_whose_header_has_an_impossible_length_is_refused(header: int) -> None:
    with pytest.raises(BadImage, match="does not fit"):
        entries(fatbin(entry(PTX, 80, TEXT, header=header)))


def test_a_fatbin_that_is_cut_off_anywhere_is_refused() -> None:
    whole = sample("speed")
    for length in range(len(whole)):
        with pytest.raises(BadImage):
            entries(whole[:length])


@given(
    name=st.sampled_from(["none", "speed", "size", "all-speed", "cubin"]),
    changes=st.lists(st.tuples(st.integers(0, 4800), st.integers(0, 255)), max_size=8),
    cut=st.integers(0, 64),
)
def test_whatever_is_changed_in_a_fatbin_it_is_read_or_refused(
    name: str, changes: list[tuple[int, int]], cut: int
) -> None:
    image = bytearray(sample(name))
    for place, value in changes:
        image[place % len(image)] = value
    refusal = ""
    try:
        for found in entries(bytes(image[: len(image) - cut])):
            assert len(found.unpack()) == found.size
    except BadImage as error:
        refusal = str(error)
    assert "\n" not in refusal


@given(st.binary(max_size=300))
def test_no_bytes_behind_a_header_do_harm(body: bytes) -> None:
    refusal = ""
    try:
        for found in entries(fatbin(body)):
            assert len(found.unpack()) == found.size
    except BadImage as error:
        refusal = str(error)
    assert "\n" not in refusal
