"""PTX text -> tree; whatever the text, the only way to fail is an ImageError."""

from __future__ import annotations

import re
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.server.drivers.emulated.loader import read_program
from outlast.server.drivers.emulated.ptx.nodes import Address, Immediate, Instruction, Register
from outlast.server.drivers.emulated.ptx.parser import parse
from outlast.server.drivers.emulated.ptx.problems import ImageError, InvalidPtx, UnsupportedVersion

KERNELS = Path(__file__).parents[2] / "kernels"
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
SMALL = (
    HEADER
    + re.search(
        r"\.visible \.entry matmul.*?\n}\n", (KERNELS / "common.ptx").read_text(), re.DOTALL
    ).group()
)  # type: ignore[union-attr]
WORDS = re.findall(r"[%$.\w]+|\S", SMALL)


def body_of(text: str) -> list[Instruction]:
    function = parse(f"{HEADER}.entry k(.param .u64 x)\n{{ {text} }}").functions["k"]
    return [step for step in function.body or () if isinstance(step, Instruction)]


def test_a_pointees_alignment_is_not_the_parameters() -> None:
    text = ".entry k(.param .u64 .ptr .global .align 1 a, .param .align 4 .b8 s[36]) {}"
    first, second = parse(HEADER + text).functions["k"].parameters
    assert (first.align, first.size) == (8, 8)
    assert (second.align, second.size) == (4, 36)


def test_names_of_inner_scopes_are_kept_apart() -> None:
    outer, inner, again = body_of(
        ".reg .b32 %r<2>; mov.u32 %r1, 1; { .reg .b32 %r<2>; mov.u32 %r1, 2; } mov.u32 %r1, 3;"
    )
    assert outer.operands[0] == again.operands[0] == Register("%r1")
    assert inner.operands[0] not in (outer.operands[0], Register("%r1"))


def test_numbers_of_every_notation() -> None:
    numbers = {
        "0x1F": Immediate(31),
        "0b101": Immediate(5),
        "017": Immediate(15),
        "-7": Immediate(-7),
        "3U": Immediate(3),
        "0f3F800000": Immediate(0x3F800000, "f32"),
        "-0f3F800000": Immediate(0xBF800000, "f32"),
        "0d3FF0000000000000": Immediate(0x3FF0000000000000, "f64"),
        "1.5": Immediate(0x3FF8000000000000, "f64"),
    }
    for text, value in numbers.items():
        (move,) = body_of(f"mov.b32 %r1, {text};")
        assert move.operands[1] == value


def test_guards_addresses_and_lines() -> None:
    (load,) = body_of(".reg .pred %p; .reg .b64 %d;\n\n@!%p ld.global.u32 %r1, [%d+-8];")
    assert (load.guard, load.negated, load.line) == (Register("%p"), True, 7)
    assert load.operands[1] == Address(Register("%d"), -8)


def test_comments_and_debug_directives_are_skipped() -> None:
    text = '.file 1 "x.cu"\n/* a\n b */ mov.u32 %r1, 2; // c\n.loc 1 2 3\nret;'
    assert [step.text for step in body_of(text)] == ["mov.u32", "ret"]


def test_the_newest_version_is_read_and_the_next_is_not() -> None:
    assert parse(".version 9.9\n.target sm_120").version == (9, 9)
    with pytest.raises(UnsupportedVersion):
        parse(".version 10.0\n.target sm_120")


@pytest.mark.parametrize("text", ["L: L: ret;", "mov.u32 %r1, @;", "add.s32 %r1, %r2 %r3;", "{"])
def test_broken_statements_are_invalid(text: str) -> None:
    with pytest.raises(InvalidPtx):
        body_of(text)


@settings(max_examples=120)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["drop", "double", "swap", "replace"]),
            st.integers(0, len(WORDS) - 1),
            st.integers(0, len(WORDS) - 1),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_damaged_text_is_refused_or_still_makes_valid_code(
    damages: list[tuple[str, int, int]],
) -> None:
    words = list(WORDS)
    for kind, place, other in damages:
        place %= len(words)
        if kind == "drop":
            del words[place]
        elif kind == "double":
            words.insert(place, words[place])
        elif kind == "swap":
            other %= len(words)
            words[place], words[other] = words[other], words[place]
        else:
            words[place] = WORDS[other]
    try:
        program = read_program(" ".join(words))
    except ImageError:
        return
    for kernel in program.kernels:
        llvm.parse_assembly(kernel.lowered.ir).verify()


@given(st.text(max_size=80))
def test_any_text_is_an_image_error(text: str) -> None:
    # On a line of its own, so that no text makes the instruction a part of itself.
    with pytest.raises(ImageError):
        read_program(HEADER + ".entry k() {" + text + "\n; frobnicate; }")


@pytest.mark.parametrize(
    "text",
    [
        "nanosleep frobnicate;",
        "exit %r1;",
        ".pragma frobnicate;",
        ".loc frobnicate",
        "{" * 2000,
        "mov.b32 %r1, " + "{" * 2000,
        "mov.b32 %r1, " + "-" * 2000 + "1;",
        "mov.b32 %r1, " + "9" * 5000 + ";",
        ".reg .b32 %r<999999999>;",
        ".local .align 0 .b8 x[4];",
        ".shared .b8 x[99999999];",
        ".local .b8 x[-4];",
    ],
)
def test_text_that_is_no_program_is_refused_at_once(text: str) -> None:
    with pytest.raises(ImageError):
        read_program(HEADER + ".entry k() { .reg .b32 %r1; " + text + " }")
