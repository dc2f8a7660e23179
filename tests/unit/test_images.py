"""Images are found at addresses, as long as they are, and what is no memory is not touched."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import struct
from collections.abc import Iterator

import pytest
from helpers.fatbins import InMemory, sample, text, wrapper

from outlast import images
from outlast.images import BadImage

PAGE = mmap.PAGESIZE
#: Canonical, and never mapped.
NOWHERE = 0x10_0000


@contextlib.contextmanager
def page_before_a_hole() -> Iterator[tuple[ctypes.Array[ctypes.c_char], int]]:
    """Give a page, and the address behind it, where no memory is."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    both, private = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = libc.mmap(None, 2 * PAGE, both, private, -1, 0)
    assert libc.munmap(base + PAGE, PAGE) == 0
    try:
        yield (ctypes.c_char * PAGE).from_address(base), base + PAGE
    finally:
        assert libc.munmap(base, PAGE) == 0


def cubin() -> bytes:
    """Return the machine code in a fatbin of nothing else."""
    return sample("cubin")[16 + 64 :]


@pytest.mark.parametrize("name", ["none", "speed", "size", "cubin"])
def test_a_fatbin_at_an_address_is_as_long_as_it_says(name: str) -> None:
    held = InMemory(sample(name) + b"behind")
    assert images.at_address(held.address) == sample(name)


def test_machine_code_at_an_address_ends_with_its_last_table() -> None:
    assert images.at_address(InMemory(cubin() + b"behind").address) == cubin()


def test_text_ends_at_its_zero_wherever_pages_end() -> None:
    for length in (1, 100, PAGE - 1, PAGE, 3 * PAGE, 200_000):
        body = (b"// " + b"x" * length)[:length]
        assert images.at_address(InMemory(body + b"\0rest").address) == body


def test_a_wrapper_is_followed_given_by_address_or_as_bytes() -> None:
    held = InMemory(sample("size"))
    outer = InMemory(wrapper(held.address))
    assert images.at_address(outer.address) == sample("size")
    assert images.complete(wrapper(held.address)) == sample("size")


def test_a_wrapper_may_lead_to_text() -> None:
    held = InMemory(text(80))
    assert images.complete(wrapper(held.address)) == text(80)[:-1]


@pytest.mark.parametrize("address", [0, 1, NOWHERE, 1 << 47, (1 << 63) - 1, (1 << 64) - 4])
def test_an_address_without_memory_is_refused(address: int) -> None:
    with pytest.raises(BadImage, match="no memory at 0x"):
        images.at_address(address)
    with pytest.raises(BadImage, match="no memory at 0x"):
        images.complete(wrapper(address))


def test_wrappers_do_not_lead_to_wrappers() -> None:
    inner = InMemory(wrapper(NOWHERE))
    with pytest.raises(BadImage, match="another wrapper"):
        images.complete(wrapper(inner.address))
    itself = InMemory(bytes(24))
    itself.put(wrapper(itself.address))
    with pytest.raises(BadImage, match="another wrapper"):
        images.at_address(itself.address)


def test_an_image_in_front_of_a_hole_is_read_up_to_it() -> None:
    fatbin = sample("cubin")
    with page_before_a_hole() as (page, end):
        page[-len(fatbin) :] = fatbin
        assert images.at_address(end - len(fatbin)) == fatbin
        page[-len(fatbin) + 8 : -len(fatbin) + 16] = struct.pack("<Q", 1 << 20)
        with pytest.raises(BadImage, match="no memory at"):
            images.at_address(end - len(fatbin))
        page[-4:] = b"// x"
        with pytest.raises(BadImage, match="does not end"):
            images.at_address(end - 4)


@pytest.mark.parametrize("image", [sample("size"), sample("none"), cubin()])
def test_bytes_that_end_too_early_are_refused(image: bytes) -> None:
    assert images.complete(image) == image
    assert images.complete(image + b"behind") == image + b"behind"
    for length in range(4, len(image), 37):
        with pytest.raises(BadImage):
            images.complete(image[:length])
    with pytest.raises(BadImage):
        images.complete(wrapper(NOWHERE)[:12])


@pytest.mark.parametrize("size", [1 << 31, 1 << 63, (1 << 64) - 1])
def test_an_impossible_length_is_refused(size: int) -> None:
    image = bytearray(sample("none"))
    image[8:16] = struct.pack("<Q", size)
    with pytest.raises(BadImage, match="are the most"):
        images.complete(bytes(image))
    code = bytearray(cubin())
    code[40:48] = struct.pack("<Q", size)
    with pytest.raises(BadImage, match="are the most"):
        images.complete(bytes(code))
