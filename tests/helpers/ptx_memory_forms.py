"""Forms of PTX instructions that compilers write seldom, as kernels with what they give.

A body runs in 32 threads: ``%r1`` is the thread, ``%o`` the output, ``%d1`` the thread's word of
it, ``%d2`` memory of 4 KiB, of which word *i* holds ``i + 1``, and ``%r9`` what the thread
puts out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.const .align 4 .u32 fixed[4] = {5, 6, 7, 8};
.global .align 4 .u32 plain[4] = {50, 60, 70, 80};
.func (.param .b32 out) doubled(.param .b32 x)
{
    .reg .b32 %r;
    ld.param::func.b32 %r, [x]; add.u32 %r, %r, %r; st.param::func.b32 [out], %r; ret.uni;
}
"""
BEGIN = """
.visible .entry run(.param .u64 out, .param .u64 memory, .param .u32 seven)
{
    .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %d<16>; .reg .b64 %o;
    .reg .f32 %f<8>; .reg .f64 %g<8>; .reg .b128 %q<3>;
    .shared .align 16 .b8 cells[256];
    .local .align 16 .b8 own[64];
    ld.param.u64 %o, [out]; ld.param::entry.u64 %d2, [memory];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %o, %d1; mov.u32 %r9, 0;
"""
END = "\nst.global.u32 [%d1], %r9; ret;\n}\n"


@dataclass(frozen=True)
class Form:
    """A body with the output of each thread."""

    name: str
    body: str
    expected: Callable[[int], int]

    @property
    def text(self) -> str:
        """The whole module."""
        return HEAD + BEGIN + self.body + END


def constant(name: str, body: str, value: int) -> Form:
    return Form(name, body, lambda _: value)


# -- memory ------------------------------------------------------------------

_L1 = ("evict_first", "evict_last", "evict_normal", "evict_unchanged", "no_allocate")
LOADS = [
    *(f"ld.global.{word}" for word in ("ca", "cg", "cs", "lu", "cv", "nc")),
    *(f"ld.global.L1::{word}" for word in _L1),
    *(f"ld.global.L2::{word}" for word in ("64B", "128B", "256B")),
    *("ld.weak.global", "ld.volatile.global", "ld.mmio.relaxed.sys.global"),
    *(f"ld.relaxed.{scope}.global" for scope in ("cta", "gpu", "sys")),
    *(f"ld.acquire.{scope}" for scope in ("cta", "gpu", "sys")),
    *("ld.global.L1::no_allocate.L2::128B", "ldu.global"),
]
STORES = [
    *(f"st.global.{word}" for word in ("wb", "cg", "cs", "wt")),
    *(f"st.global.L1::{word}" for word in _L1),
    *("st.weak.global", "st.volatile.global", "st.mmio.relaxed.sys.global"),
    *(f"st.relaxed.{scope}.global" for scope in ("cta", "gpu", "sys")),
    *(f"st.release.{scope}" for scope in ("cta", "gpu", "sys")),
]


def _loads() -> Form:
    lines = [f"{name}.u32 %r2, [%d2+8]; add.u32 %r9, %r9, %r2;" for name in LOADS]
    return constant("loads", "\n".join(lines), 3 * len(LOADS))


def _stores() -> Form:
    lines = [
        f"mov.u32 %r2, {i + 1}; {name}.u32 [%d2+{2048 + 4 * i}], %r2;"
        f" ld.global.u32 %r3, [%d2+{2048 + 4 * i}]; add.u32 %r9, %r9, %r3;"
        for i, name in enumerate(STORES)
    ]
    return constant("stores", "\n".join(lines), sum(range(1, len(STORES) + 1)))


def _policies() -> Form:
    lines = [
        f"createpolicy.fractional.L2::{word}.b64 %d3, 1.0;"
        for word in ("evict_first", "evict_last", "evict_normal", "evict_unchanged")
    ]
    lines += [
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d3;",
        "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %d3, [%d2], 64, 128;",
        "createpolicy.cvt.L2.b64 %d3, 0x14f0000000000000;",
        "ld.global.L2::cache_hint.u32 %r2, [%d2+8], %d3;",
        "st.global.L2::cache_hint.u32 [%d2+12], 40, %d3;",
        "ld.global.L2::cache_hint.v2.u32 {%r3, %r4}, [%d2+8], %d3;",
        "atom.global.L2::cache_hint.add.u32 %r5, [%d2+1024], 1, %d3;",
        "red.global.L2::cache_hint.add.u32 [%d2+1024], 1, %d3;",
        "cvta.to.shared.u64 %d4, %d4; mov.u64 %d4, cells;",
        "cp.async.ca.shared::cta.global.L2::cache_hint [%d4], [%d2+8], 4, %d3;",
        "cp.async.cg.shared.global.L2::64B [%d4+16], [%d2+16], 16;",
        "cp.async.cg.shared.global.L2::128B [%d4+32], [%d2+16], 16, 8;",
        "cp.async.ca.shared.global.L2::256B [%d4+48], [%d2+16], 8, 0;",
        "cp.async.wait_all;",
        "ld.shared.u32 %r6, [%d4]; ld.shared.v4.u32 {%r7, %r8, %r10, %r11}, [%d4+16];",
        "add.u32 %r9, %r2, %r4; add.u32 %r9, %r9, %r6; add.u32 %r9, %r9, %r11;",
        "ld.shared::cta.v4.u32 {%r7, %r8, %r10, %r11}, [%d4+32];",
        "add.u32 %r9, %r9, %r8; add.u32 %r9, %r9, %r10; add.u32 %r9, %r9, %r11;",
        "ld.shared.v2.u32 {%r7, %r8}, [%d4+48]; add.u32 %r9, %r9, %r8;",
    ]
    return constant("policies", "\n".join(lines), 3 + 40 + 3 + 8 + 6)


MEMORY = [
    _loads(),
    _stores(),
    _policies(),
    constant(
        "vectors of ldu and parameters",
        """
        ldu.global.v2.u32 {%r2, %r3}, [%d2]; ldu.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d2+16];
        add.u32 %r9, %r2, %r3; add.u32 %r9, %r9, %r7;
        ld.param.u32 %r2, [seven]; add.u32 %r9, %r9, %r2;
        mov.u64 %d3, seven; ld.param.u32 %r2, [%d3]; add.u32 %r9, %r9, %r2;
        cvta.param.u64 %d3, %d3; ld.u32 %r2, [%d3]; add.u32 %r9, %r9, %r2;
        .param .b32 given; .param .b32 taken;
        st.param.b32 [given], %r9;
        call.uni (taken), doubled, (given);
        ld.param.b32 %r9, [taken];
        """,
        2 * (1 + 2 + 8 + 3 * 7),
    ),
    Form(
        "subscripts",
        """
        and.b32 %r2, %r1, 3;
        ld.const.u32 %r3, fixed[%r2]; ld.const.u32 %r4, fixed[2]; ld.global.u32 %r5, plain[1];
        mov.u64 %d3, plain[3]; ld.global.u32 %r6, [%d3];
        add.u32 %r9, %r3, %r4; add.u32 %r9, %r9, %r5; add.u32 %r9, %r9, %r6;
        """,
        lambda t: 5 + t % 4 + 7 + 60 + 80,
    ),
    constant(
        "spaces",
        """
        mov.u64 %d3, cells; cvta.shared::cta.u64 %d3, %d3;
        mov.u64 %d4, own; cvta.local.u64 %d4, %d4;
        mov.u64 %d5, fixed; cvta.const.u64 %d5, %d5;
        mov.u64 %d6, seven; cvta.param::entry.u64 %d6, %d6;
        isspacep.shared %p1, %d3; isspacep.shared::cta %p2, %d4; isspacep.local %p3, %d4;
        isspacep.const %p4, %d5; isspacep.global %p5, %d5; isspacep.param %p6, %d6;
        isspacep.param::entry %p7, %d2; isspacep.global %p0, %d2;
        selp.u32 %r2, 1, 0, %p1; or.b32 %r9, %r9, %r2;
        selp.u32 %r2, 2, 0, %p2; or.b32 %r9, %r9, %r2;
        selp.u32 %r2, 4, 0, %p3; or.b32 %r9, %r9, %r2;
        selp.u32 %r2, 8, 0, %p4; or.b32 %r9, %r9, %r2;
        selp.u32 %r2, 16, 0, %p5; or.b32 %r9, %r9, %r2;
        selp.u32 %r2, 32, 0, %p6; or.b32 %r9, %r9, %r2;
        selp.u32 %r2, 64, 0, %p7; or.b32 %r9, %r9, %r2;
        selp.u32 %r2, 128, 0, %p0; or.b32 %r9, %r9, %r2;
        cvta.to.const.u64 %d5, %d5; ld.const.u32 %r2, [%d5];
        cvta.to.local.u64 %d4, %d4; st.local.u32 [%d4], %r2; ld.local.u32 %r3, [own];
        cvta.to.shared.u64 %d3, %d3; cvta.to.global.u64 %d2, %d2;
        st.shared::cta.u32 [%d3], %r3; ld.shared.u32 %r3, [cells];
        mad.lo.u32 %r9, %r3, 1000, %r9;
        """,
        5000 + 1 + 4 + 8 + 32 + 128,
    ),
    constant(
        "hints that need nothing",
        """
        prefetch.global.L1 [%d2]; prefetch.global.L2 [%d2]; prefetch.local.L1 [%d2];
        prefetch.global.L2::evict_last [%d2]; prefetch.global.L2::evict_normal [%d2];
        prefetchu.L1 [%d2]; applypriority.global.L2::evict_normal [%d2], 128;
        discard.global.L2 [%d2+3968], 128;
        fence.sc.cta; fence.sc.gpu; fence.acq_rel.sys;
        fence.proxy.alias; membar.cta; membar.gl; membar.sys;
        nanosleep.u32 20; pmevent 1; pmevent.mask 3;
        mov.u32 %r9, 3;
        """,
        3,
    ),
    constant(
        "registers of 128 bits",
        """
        mov.b64 %d3, 11; mov.b64 %d4, 22;
        mov.b128 %q1, {%d3, %d4};
        st.global.b128 [%d2+2048], %q1; ld.global.b128 %q2, [%d2+2048];
        mov.b128 {%d5, %d6}, %q2;
        cvt.u32.u64 %r2, %d5; cvt.u32.u64 %r3, %d6; mad.lo.u32 %r9, %r2, 100, %r3;
        """,
        1122,
    ),
]


# -- atomics -----------------------------------------------------------------

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, x: old + x,
    "and": lambda old, x: old & x,
    "or": lambda old, x: old | x,
    "xor": lambda old, x: old ^ x,
    "inc": lambda old, x: 0 if old >= x else old + 1,
    "dec": lambda old, x: x if old == 0 or old > x else old - 1,
    "min": min,
    "max": max,
    "exch": lambda old, x: x,
}


def _atomics(opcode: str, order: str, space: str) -> Form:
    """Return a form that does every operation once for each lane, on words of its own."""
    lines = ["mov.u64 %d3, cells;" if space.startswith("shared") else "mov.u64 %d3, %d2;"]
    lines += ["bar.sync 0;", "setp.eq.u32 %p1, %r1, 9;"]
    total = 0
    types = {"inc": "u32", "dec": "u32", "and": "b32", "or": "b32", "xor": "b32", "exch": "b32"}
    dot = f".{space}" if space else ""
    for i, (name, function) in enumerate(_OPERATIONS.items()):
        if opcode == "red" and name == "exch":
            continue
        place = f"[%d3+{8 * i}]"
        kind = types.get(name, "u32")
        # One thread, so that what it makes of 6 and 3 is known.
        lines.append(f"@%p1 st{dot}.u32 {place}, 6;")
        full = f"{opcode}{order}{dot}.{name}.{kind}"
        lines.append(f"@%p1 {full} {'%r2, ' if opcode == 'atom' else ''}{place}, 3;")
        lines.append(f"@%p1 ld{dot}.u32 %r3, {place};")
        lines.append("@%p1 add.u32 %r9, %r9, %r3;")
        total += function(6, 3)
        if opcode == "atom":
            lines.append("@%p1 add.u32 %r9, %r9, %r2;")
            total += 6
    return Form(full, "\n".join(lines), lambda t: total if t == 9 else 0)


ATOMICS = [
    _atomics("atom", ".relaxed.cta", "shared"),
    _atomics("atom", ".acquire.gpu", "global"),
    _atomics("atom", ".acq_rel.sys", "shared::cta"),
    _atomics("atom", ".release.gpu", ""),
    _atomics("red", ".relaxed.gpu", "global"),
    _atomics("red", ".release.sys", "shared"),
    _atomics("red", ".relaxed.cta", "shared::cta"),
    Form(
        "wide and signed atomics",
        """
        setp.eq.u32 %p1, %r1, 0;
        @!%p1 bra END;
        st.global.u64 [%d2], 1; atom.global.min.s64 %d3, [%d2], -5;
        atom.global.max.u64 %d4, [%d2], 3;
        atom.global.cas.b64 %d5, [%d2], -5, 77; atom.global.exch.b64 %d6, [%d2], 88;
        atom.global.and.b64 %d7, [%d2], 24; atom.global.or.b64 %d8, [%d2], 3;
        atom.global.xor.b64 %d9, [%d2], 1; atom.global.add.u64 %d10, [%d2], 100;
        ld.global.u64 %d11, [%d2]; cvt.u32.u64 %r2, %d11; cvt.u32.u64 %r3, %d6;
        mad.lo.u32 %r9, %r2, 1000, %r3;
        st.global.u32 [%d2], -7; red.global.max.s32 [%d2], -9; red.global.min.s32 [%d2], -3;
        ld.global.s32 %r2, [%d2]; add.s32 %r9, %r9, %r2;
        st.global.f32 [%d2], 0f3F800000; red.global.add.f32 [%d2], 0f40000000;
        atom.global.add.f32 %f1, [%d2], 0f40800000; cvt.rni.u32.f32 %r2, %f1;
        mad.lo.u32 %r9, %r2, 1000000, %r9;
        st.global.f64 [%d2], 0d3FF0000000000000; red.global.add.f64 [%d2], 0d4000000000000000;
        atom.global.add.f64 %g1, [%d2], 0d4010000000000000; cvt.rni.u32.f64 %r2, %g1;
        mad.lo.u32 %r9, %r2, 1000000, %r9;
        END:
        """,
        lambda t: 0 if t else ((88 & 24 | 3) ^ 1) * 1000 + 100_000 + 77 - 7 + 6_000_000 - 0,
    ),
    Form(
        "atomics of small floats",
        """
        setp.eq.u32 %p1, %r1, 0;
        @!%p1 bra END;
        st.global.u32 [%d2], 0x3C003C00; mov.b16 %h1, 0x4000; mov.b32 %r2, 0x42004000;
        atom.global.add.noftz.f16 %h2, [%d2], %h1; atom.global.add.noftz.f16x2 %r3, [%d2], %r2;
        red.global.add.noftz.f16x2 [%d2], %r2; red.global.add.noftz.f16 [%d2], %h1;
        ld.global.u32 %r9, [%d2];
        st.global.u32 [%d2], 0x3F803F80; mov.b16 %h1, 0x4000; mov.b32 %r2, 0x40404000;
        atom.global.add.noftz.bf16 %h2, [%d2], %h1; atom.global.add.noftz.bf16x2 %r3, [%d2], %r2;
        ld.global.u32 %r4, [%d2]; xor.b32 %r9, %r9, %r4;
        END:
        """,
        # 1 + 2 + 2 + 2 + 2 and 1 + 3 + 3 in half; 1 + 2 + 2 and 1 + 3 in bfloat16
        lambda t: 0 if t else (0x47004880 ^ 0x408040A0),
    ),
]
