"""Names of variables in images."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from helpers.fatbins import ELF, LZ4, ZSTD, entry, fatbin, sample

from outlast.server.drivers.cuda.symbols import variable_names

PTX = b"""
.version 8.0
.target sm_80
.address_size 64
// .global .u32 commented;
/* .global .u32 commented_too; */
.visible .global .align 8 .u64 counter = 5;
.global .align 4 .b8 table[1024];
.visible .const .align 16 .b8 weights[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
.weak .global .attribute(.managed) .u32 last;
.extern .global .u32 elsewhere;
.shared .align 4 .b8 scratch[64];
.visible .entry kernel(.param .u64 p)
{
    .reg .u64 %rd<2>;
    .global .u32 inside;
    ld.param.u64 %rd1, [p];
    ld.global.u32 %r1, [counter];
    ret;
}
.global .f32 behind;
"""
NAMES = ("counter", "table", "weights", "last", "behind")


def elf(symbols: list[tuple[str, int, str, int]]) -> bytes:
    """Return an object file; symbols are (name, type, section, size)."""
    titles = ["", ".shstrtab", ".strtab", ".symtab", ".nv.global", ".nv.constant3", ".text.k"]
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in symbols)
    headings = b"".join(title.encode() + b"\0" for title in titles)
    table = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name, kind, section, size in symbols:
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        table += struct.pack("<IBBHQQ", place, 16 | kind, 0, titles.index(section), 0, size)
    bodies = {1: headings, 2: names, 3: table}
    data, sections = b"", b""
    for index, title in enumerate(titles):
        body = bodies.get(index, b"")
        place = headings.index(title.encode() + b"\0") if title else 0
        kind = {1: 3, 2: 3, 3: 2}.get(index, 1 if index else 0)
        fields = (place, kind, 0, 0, 64 + len(data), len(body), 2 if index == 3 else 0, 0, 8, 24)
        sections += struct.pack("<IIQQQQIIQQ", *fields)
        data += body
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQ", 2, 190, 1, 0, 0, 64 + len(data))
    head += struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, len(titles), 1)
    return head + data + sections


CUBIN = elf(
    [
        ("counter", 1, ".nv.global", 8),
        ("weights", 1, ".nv.constant3", 16),
        ("kernel", 2, ".text.k", 128),
        ("empty", 1, ".nv.global", 0),
    ]
)


def test_variables_of_ptx_text_are_those_outside_functions() -> None:
    assert variable_names(PTX) == NAMES


def test_text_behind_the_end_of_ptx_does_not_count() -> None:
    assert variable_names(PTX + b"\0.global .u32 rest;") == NAMES


def test_variables_of_a_cubin_are_its_objects_in_device_memory() -> None:
    assert variable_names(CUBIN) == ("counter", "weights")


@pytest.mark.parametrize("packed", [0, LZ4, ZSTD])
def test_variables_of_a_fatbin_are_those_of_its_entries_once_each(packed: int) -> None:
    image = fatbin(
        entry(ELF, 80, CUBIN), entry(1, 80, b".version 8.0\n" + PTX, packed), entry(ELF, 90, b"?")
    )
    assert variable_names(image) == ("counter", "weights", "table", "last", "behind")


@pytest.mark.parametrize("length", range(0, len(CUBIN), 7))
def test_image_that_ends_early_has_no_more_names_than_the_whole(length: int) -> None:
    assert set(variable_names(CUBIN[:length])) <= {"counter", "weights"}
    assert set(variable_names(fatbin(entry(ELF, 80, CUBIN))[:length])) <= {"counter", "weights"}


def test_checked_in_kernels_have_no_variables() -> None:
    root = Path(__file__).resolve().parents[4]
    assert variable_names((root / "examples/resume_training/kernels.ptx").read_bytes()) == ()


@pytest.mark.parametrize("name", ["none", "speed", "size", "all-speed", "cubin"])
def test_variables_of_what_the_compilers_tools_have_made_are_found(name: str) -> None:
    assert variable_names(sample(name)) == ("scale",)


def test_a_damaged_entry_hides_only_what_is_behind_it() -> None:
    damaged = entry(1, 80, PTX, ZSTD, size=5)
    assert variable_names(fatbin(entry(ELF, 80, CUBIN), damaged)) == ("counter", "weights")
