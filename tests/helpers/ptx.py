"""Small kernels as PTX text: they load and compile in milliseconds."""

from __future__ import annotations

HEAD = """
.version 7.0
.target sm_80
.address_size 64
"""

#: ``append(u64 *target, u32 digit)``: ``*target = *target * 10 + digit``, so that a lost, repeated
#: or reordered launch shows. ``nothing()`` does nothing.
TAPE = (
    HEAD
    + """
.visible .entry append(.param .u64 target, .param .u32 digit)
{
    .reg .u64 %rd<5>;
    .reg .u32 %r<2>;
    ld.param.u64 %rd1, [target];
    ld.param.u32 %r1, [digit];
    ld.global.u64 %rd2, [%rd1];
    mul.lo.u64 %rd3, %rd2, 10;
    cvt.u64.u32 %rd4, %r1;
    add.u64 %rd3, %rd3, %rd4;
    st.global.u64 [%rd1], %rd3;
    ret;
}
.visible .entry nothing()
{
    ret;
}
"""
)

#: ``slow(u32 *target, u32 value, u64 duration)`` stores the value after so many nanoseconds.
SLOW = (
    HEAD
    + """
.visible .entry slow(.param .u64 target, .param .u32 value, .param .u64 duration)
{
    .reg .pred %p<2>;
    .reg .u64 %rd<6>;
    .reg .u32 %r<2>;
    ld.param.u64 %rd1, [target];
    ld.param.u32 %r1, [value];
    ld.param.u64 %rd2, [duration];
    mov.u64 %rd3, %globaltimer;
AGAIN:
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, %rd2;
    @%p1 bra AGAIN;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
)

#: ``k(u32 *target)`` stores 7.
SHORT_LAYOUT = (
    HEAD
    + """
.visible .entry k(.param .u64 target)
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    ld.param.u64 %rd1, [target];
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
)

#: ``k(u32 *target, u64 number, f32 factor)`` stores ``number * factor``.
LONG_LAYOUT = (
    HEAD
    + """
.visible .entry k(.param .u64 target, .param .u64 number, .param .f32 factor)
{
    .reg .u64 %rd<3>;
    .reg .u32 %r<2>;
    .reg .f32 %f<3>;
    ld.param.u64 %rd1, [target];
    ld.param.u64 %rd2, [number];
    ld.param.f32 %f1, [factor];
    cvt.rn.f32.u64 %f2, %rd2;
    mul.f32 %f2, %f2, %f1;
    cvt.rzi.u32.f32 %r1, %f2;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
)

#: ``total(Node *node, u64 *out)`` adds up ``{Node *next; u64 value}`` along a list; ``offset`` is
#: a variable of the module, added to the sum.
LIST = (
    HEAD
    + """
.visible .global .align 8 .u64 offset = 5;
.visible .entry total(.param .u64 node, .param .u64 out)
{
    .reg .pred %p<2>;
    .reg .u64 %rd<7>;
    ld.param.u64 %rd1, [node];
    ld.param.u64 %rd2, [out];
    mov.u64 %rd3, offset;
    ld.global.u64 %rd4, [%rd3];
AGAIN:
    setp.eq.u64 %p1, %rd1, 0;
    @%p1 bra DONE;
    ld.global.u64 %rd5, [%rd1+8];
    add.u64 %rd4, %rd4, %rd5;
    ld.global.u64 %rd1, [%rd1];
    bra AGAIN;
DONE:
    st.global.u64 [%rd2], %rd4;
    ret;
}
"""
)

#: ``trap()`` poisons its context.
TRAP = HEAD + ".visible .entry trap_now()\n{\n    trap;\n    ret;\n}\n"

#: ``stray_now()`` stores where no memory is.
STRAY = (
    HEAD
    + """
.visible .entry stray_now()
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    mov.u64 %rd1, 4096;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
)
