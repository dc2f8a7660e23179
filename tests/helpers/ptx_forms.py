"""Seldom forms of control, comparisons and barriers, with those of `ptx_memory_forms`."""

from __future__ import annotations

from helpers.ptx_memory_forms import ATOMICS, MEMORY, Form, constant


def _combined(t: int) -> int:
    first = t > 20
    second, third = t < 25 and first, t >= 25 and first
    fourth = t == 3 or second
    fifth = (t != 4) != (not fourth)
    values = [t < 9 and fifth, t >= 9 or third, (t > 9) != fifth, t <= 2, t >= 30, t <= 1]
    return sum(value << i for i, value in enumerate(values))


def _distances() -> int:
    x, y = 0x01FF0302, 0x02010105

    def parts(value: int, width: int, signed: bool = False) -> list[int]:
        found = [value >> i & ((1 << width) - 1) for i in range(0, 32, width)]
        return [p - (1 << width) if signed and p >> (width - 1) else p for p in found]

    def distances(width: int, signed: bool = False) -> list[int]:
        pairs = zip(parts(x, width, signed), parts(y, width, signed), strict=True)
        return [abs(a - b) for a, b in pairs]

    halves = distances(16)
    signed = sum(d << 8 * i for i, d in enumerate(distances(8, True)))
    total = 1 + sum(halves) + (halves[0] | halves[1] << 16) + 1 + sum(distances(8)) + signed
    return total & 0xFFFFFFFF


def _transposed(t: int) -> int:
    """Of a matrix of halves whose words are numbered; the upper half of each is zero."""
    row, column = t // 4, t % 4 * 2
    values = [r * 4 + row // 2 if row % 2 == 0 else 0 for r in (column, column + 1)]
    return values[0] | values[1] << 16


FORMS = [
    *MEMORY,
    *ATOMICS,
    Form(
        "jump table",
        """
        and.b32 %r2, %r1, 1;
        table: .branchtargets A, B;
        brx.idx %r2, table;
        A: mov.u32 %r9, 10; bra.uni END;
        B: mov.u32 %r9, 20;
        END:
        """,
        lambda t: 20 if t & 1 else 10,
    ),
    Form(
        "exit",
        "st.global.u32 [%d1], 4; setp.lt.u32 %p1, %r1, 7; @%p1 exit; mov.u32 %r9, 5;",
        lambda t: 4 if t < 7 else 5,
    ),
    Form(
        "comparisons that combine",
        """
        setp.gt.u32 %p1, %r1, 20; setp.lt.and.u32 %p2|%p3, %r1, 25, %p1;
        setp.eq.or.u32 %p4, %r1, 3, %p2; setp.ne.xor.u32 %p5, %r1, 4, !%p4;
        set.lo.and.u32.u32 %r2, %r1, 9, %p5; set.hs.or.u32.u32 %r3, %r1, 9, %p3;
        set.hi.xor.u32.u32 %r4, %r1, 9, %p5; set.ls.u32.u32 %r5, %r1, 2;
        set.ge.s32.s32 %r6, %r1, 30; set.le.s32.s32 %r7, %r1, 1;
        and.b32 %r2, %r2, 1; and.b32 %r3, %r3, 2; and.b32 %r4, %r4, 4; and.b32 %r5, %r5, 8;
        and.b32 %r6, %r6, 16; and.b32 %r7, %r7, 32;
        or.b32 %r9, %r2, %r3; or.b32 %r9, %r9, %r4; or.b32 %r9, %r9, %r5;
        or.b32 %r9, %r9, %r6; or.b32 %r9, %r9, %r7;
        """,
        _combined,
    ),
    Form(
        "comparisons of floats",
        """
        cvt.rn.f32.u32 %f1, %r1; mov.f32 %f2, 0f41200000; mov.f32 %f3, 0f7FC00000;
        set.equ.u32.f32 %r2, %f1, %f2; set.neu.u32.f32 %r3, %f1, %f3;
        set.ltu.u32.f32 %r4, %f1, %f3; set.geu.u32.f32 %r5, %f1, %f2;
        set.num.u32.f32 %r6, %f1, %f3; set.nan.u32.f32 %r7, %f1, %f3;
        set.le.u32.f32 %r8, %f1, %f2; set.ge.u32.f32 %r10, %f1, %f2; set.hi.u32.u32 %r11, %r1, 3;
        and.b32 %r2, %r2, 1; and.b32 %r3, %r3, 2; and.b32 %r4, %r4, 4; and.b32 %r5, %r5, 8;
        and.b32 %r6, %r6, 16; and.b32 %r7, %r7, 32; and.b32 %r8, %r8, 64; and.b32 %r10, %r10, 128;
        and.b32 %r11, %r11, 256; or.b32 %r9, %r11, %r2;
        or.b32 %r9, %r9, %r3; or.b32 %r9, %r9, %r4; or.b32 %r9, %r9, %r5; or.b32 %r9, %r9, %r6;
        or.b32 %r9, %r9, %r7; or.b32 %r9, %r9, %r8; or.b32 %r9, %r9, %r10;
        """,
        lambda t: (
            (t == 10)
            + 2
            + 4
            + 8 * (t >= 10)
            + 32
            + 64 * (t <= 10)
            + 128 * (t >= 10)
            + 256 * (t > 3)
        ),
    ),
    constant(
        "approximations",
        """
        mov.f32 %f1, 0f00000000; cos.approx.f32 %f2, %f1; sin.approx.ftz.f32 %f3, %f1;
        cos.approx.ftz.f32 %f4, %f1; tanh.approx.f32 %f5, %f1; add.f32 %f2, %f2, %f3;
        add.f32 %f2, %f2, %f4; add.f32 %f2, %f2, %f5; mov.f32 %f3, 0f41000000;
        div.full.ftz.f32 %f3, %f3, %f2; slct.ftz.f32.f32 %f3, %f3, %f1, %f2;
        mad.rz.ftz.f32 %f3, %f3, %f2, %f2; mad.rm.f32 %f3, %f3, %f2, %f2;
        mad.rp.sat.f32 %f1, %f3, %f2, %f2; mad.rn.f32 %f3, %f3, %f2, %f1;
        cvt.rni.u32.f32 %r9, %f3;
        """,
        45,  # ((8 / 2) * 2 + 2) * 2 + 2 = 22, saturated 1; 22 * 2 + 1
    ),
    Form(
        "bytes and halves",
        """
        mov.b32 %r2, 0x01FF0302; mov.b32 %r3, 0x02010105; mov.b32 %r4, 1;
        vabsdiff2.u32.u32.u32.add %r5, %r2, %r3, %r4; vabsdiff2.u32.u32.u32 %r6, %r2, %r3, %r4;
        vabsdiff4.u32.u32.u32.add %r7, %r2, %r3, %r4; vabsdiff4.u32.s32.s32 %r8, %r2, %r3, %r4;
        add.u32 %r9, %r5, %r6; add.u32 %r9, %r9, %r7; add.u32 %r9, %r9, %r8;
        """,
        lambda t: _distances(),
    ),
    Form(
        "votes and reductions",
        """
        setp.lt.u32 %p1, %r1, 40; vote.sync.uni.pred %p2, %p1, 0xffffffff;
        redux.sync.min.u32 %r2, %r1, 0xffffffff; redux.sync.or.b32 %r3, %r1, 0xffffffff;
        selp.u32 %r9, 1000, 2000, %p2; add.u32 %r9, %r9, %r2; add.u32 %r9, %r9, %r3;
        """,
        lambda t: 1000 + 31,
    ),
    constant(
        "barriers",
        """
        bar.cta.sync 0; barrier.cta.sync.aligned 1; barrier.cta.sync 2, 32;
        bar.warp.sync 0xffffffff;
        setp.lt.u32 %p1, %r1, 5;
        bar.cta.red.popc.u32 %r2, 3, %p1; barrier.cta.red.popc.aligned.u32 %r3, 4, %p1;
        barrier.red.and.pred %p2, 5, 32, %p1; barrier.red.or.pred %p3, 5, 32, %p1;
        bar.arrive 6, 64; bar.cta.arrive 7, 64; bar.sync 6, 64; barrier.arrive 8, 64;
        selp.u32 %r4, 100, 200, %p2; selp.u32 %r5, 1000, 2000, %p3;
        add.u32 %r9, %r2, %r3; add.u32 %r9, %r9, %r4; add.u32 %r9, %r9, %r5;
        """,
        5 + 5 + 200 + 1000,
    ),
    Form(
        "matrices",
        """
        mov.u32 %r2, cells; mad.lo.u32 %r3, %r1, 4, %r2; st.shared.u32 [%r3], %r1;
        and.b32 %r4, %r1, 7; mad.lo.u32 %r2, %r4, 16, %r2;
        ldmatrix.sync.aligned.m8n8.x1.shared::cta.b16 {%r5}, [%r2];
        movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r5;
        """,
        _transposed,
    ),
    constant(
        "a tile of shared memory",
        """
        mov.u32 %r2, cells; mad.lo.u32 %r3, %r1, 8, %r2; st.shared.f64 [%r3], 0d4008000000000000;
        bar.warp.sync 0xffffffff; mov.u32 %r4, 4;
        wmma.load.a.sync.aligned.row.m8n8k4.shared::cta.f64 {%g1}, [%r2], %r4;
        cvt.rni.u32.f64 %r9, %g1;
        """,
        3,
    ),
    Form(
        "launches that depend on others",
        "griddepcontrol.wait; mov.u32 %r9, %r1; griddepcontrol.launch_dependents;",
        lambda t: t,
    ),
    constant("a stop for a debugger", "setp.gt.u32 %p1, %r1, 99; @%p1 brkpt; mov.u32 %r9, 2;", 2),
    Form(
        "special registers",
        """
        mov.u64 %d3, %clock64; mov.u32 %r2, %clock; mov.u32 %r2, %clock_hi;
        mov.u64 %d4, %globaltimer;
        mov.u32 %r2, %globaltimer_lo; mov.u32 %r3, %globaltimer_hi; mov.u64 %d5, %globaltimer;
        setp.ge.u64 %p1, %d5, %d4; selp.u32 %r9, 1, 0, %p1;
        mov.u32 %r2, %smid; mov.u32 %r3, %nsmid; setp.lt.u32 %p1, %r2, %r3;
        selp.u32 %r2, 2, 0, %p1; add.u32 %r9, %r9, %r2;
        mov.u32 %r2, %warpid; mov.u32 %r3, %nwarpid; setp.lt.u32 %p1, %r2, %r3;
        selp.u32 %r2, 4, 0, %p1; add.u32 %r9, %r9, %r2;
        mov.u64 %d3, %gridid; mov.u32 %r2, %pm0; mov.u64 %d3, %pm1_64;
        mov.u64 %d3, %current_graph_exec; mov.u32 %r2, %total_smem_size;
        setp.ge.u32 %p1, %r2, 256; selp.u32 %r2, 8, 0, %p1; add.u32 %r9, %r9, %r2;
        mov.u32 %r2, %lanemask_eq; mov.u32 %r3, %lanemask_le; mov.u32 %r4, %lanemask_lt;
        mov.u32 %r5, %lanemask_ge; mov.u32 %r6, %lanemask_gt;
        or.b32 %r7, %r4, %r2; setp.eq.u32 %p1, %r7, %r3; or.b32 %r7, %r6, %r2;
        setp.eq.and.u32 %p1, %r7, %r5, %p1; and.b32 %r7, %r3, %r5;
        setp.eq.and.u32 %p1, %r7, %r2, %p1;
        selp.u32 %r2, 16, 0, %p1; add.u32 %r9, %r9, %r2; mov.u32 %r2, %reserved_smem_offset_begin;
        mov.u32 %r2, %dynamic_smem_size; add.u32 %r9, %r9, %r2; mov.u32 %r2, WARP_SZ;
        add.u32 %r9, %r9, %r2;
        """,
        lambda t: 1 + 2 + 4 + 8 + 16 + 32,
    ),
]
