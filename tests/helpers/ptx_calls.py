"""Kernels with calls of every kind, written in PTX."""

from __future__ import annotations

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"

#: ``f(x)`` in every way that a call can be made: ``fib`` calls itself twice, ``even`` and ``odd``
#: each other, ``sum_all`` with a barrier and a warp operation at each level.
RECURSION = (
    HEADER
    + """
.func (.reg .b32 out) even(.reg .b32 n);
.func (.param .b32 result) fib(.param .b32 n)
{
    .reg .b32 %r<6>; .reg .pred %p;
    ld.param.b32 %r1, [n];
    mov.b32 %r4, %r1;
    setp.lt.u32 %p, %r1, 2;
    @%p bra END;
    {
        .param .b32 given; .param .b32 taken;
        sub.u32 %r2, %r1, 1;
        st.param.b32 [given], %r2;
        call (taken), fib, (given);
        ld.param.b32 %r3, [taken];
        sub.u32 %r2, %r1, 2;
        st.param.b32 [given], %r2;
        call (taken), fib, (given);
        ld.param.b32 %r4, [taken];
        add.u32 %r4, %r4, %r3;
    }
END:
    st.param.b32 [result], %r4;
    ret;
}
.func (.reg .b32 out) odd(.reg .b32 n)
{
    .reg .b32 %r<3>; .reg .pred %p;
    setp.eq.u32 %p, n, 0;
    mov.b32 out, 0;
    @%p ret;
    sub.u32 %r1, n, 1;
    call (out), even, (%r1);
    ret;
}
.func (.reg .b32 out) even(.reg .b32 n)
{
    .reg .b32 %r<3>; .reg .pred %p;
    setp.eq.u32 %p, n, 0;
    mov.b32 out, 1;
    @%p ret;
    sub.u32 %r1, n, 1;
    call (out), odd, (%r1);
    ret;
}
.func (.reg .b32 out) sum_all(.reg .b32 n, .reg .b32 mine)
{
    .reg .b32 %r<8>; .reg .pred %p;
    .local .align 4 .b8 kept[8];
    mov.b32 out, 0;
    setp.eq.u32 %p, n, 0;
    @%p ret;
    st.local.u32 [kept+4], n;
    add.u32 %r1, mine, n;
    shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffffffff;
    bar.sync 0;
    sub.u32 %r3, n, 1;
    call (%r4), sum_all, (%r3, mine);
    ld.local.u32 %r5, [kept+4];
    add.u32 out, %r4, %r2;
    mad.lo.u32 out, %r5, 1000, out;
    ret;
}
.visible .entry run(.param .u64 out)
{
    .reg .b32 %r<12>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 16; add.u64 %d1, %d1, %d2;
    .param .b32 given; .param .b32 taken;
    rem.u32 %r2, %r1, 9;
    st.param.b32 [given], %r2;
    call.uni (taken), fib, (given);
    ld.param.b32 %r3, [taken];
    call (%r4), odd, (%r1);
    call (%r5), even, (%r1);
    call (%r6), sum_all, (6, %r1);
    st.global.v4.u32 [%d1], {%r3, %r4, %r5, %r6};
    ret;
}
.func forever(.reg .b32 n)
{
    .reg .b32 %r1;
    add.u32 %r1, n, 1;
    call forever, (%r1);
    ret;
}
.visible .entry endless(.param .u64 out) { call forever, (1); ret; }
"""
)

CHOICE = (
    HEADER
    + """
.func (.reg .b32 out) up(.reg .b32 x) { add.u32 out, x, 1; ret; }
.func (.reg .b32 out) down(.reg .b32 x) { bar.sync 0; sub.u32 out, x, 1; ret; }
.func (.reg .b32 out) same(.reg .b32 x) { mov.b32 out, x; ret; }
.alias likewise, same;
.visible .entry run(.param .u64 out)
{
    .reg .b32 %r<6>; .reg .b64 %d<6>; .reg .pred %p<3>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;
    mov.u64 %d3, up; mov.u64 %d4, down; mov.u64 %d5, likewise;
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p1, %r2, 0;
    setp.eq.u32 %p2, %r1, 9;
    selp.b64 %d3, %d3, %d4, %p1;
    selp.b64 %d3, %d5, %d3, %p2;
    targets: .calltargets up, down, same;
    call (%r3), %d3, (%r1), targets;
    call (%r3), likewise, (%r3);
    st.global.u32 [%d1], %r3;
    ret;
}
"""
)
