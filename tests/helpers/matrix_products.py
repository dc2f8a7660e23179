"""Matrix products of a warp, as kernels that load the fragments of each lane."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """An ``mma``; a type is of numpy, or ``bf16``, ``tf32``, ``s4``, ``u4``."""

    shape: tuple[int, int]
    types: str
    suffix: str = ""

    @property
    def opcode(self) -> str:
        m, k = self.shape
        return f"mma.sync.aligned.m{m}n8k{k}.row.col{self.suffix}.{self.types}"


PRODUCTS = [
    *(Product((16, k), t) for k in (8, 16) for t in ("f32.f16.f16.f32", "f16.f16.f16.f16")),
    *(Product((16, k), "f32.bf16.bf16.f32") for k in (8, 16)),
    *(Product((16, k), "f32.tf32.tf32.f32") for k in (4, 8)),
    Product((8, 4), "f64.f64.f64.f64"),
    *(Product(s, "s32.s8.u8.s32") for s in ((8, 16), (16, 16), (16, 32))),
    Product((16, 32), "s32.u8.s8.s32", ".satfinite"),
    *(Product(s, "s32.s4.u4.s32") for s in ((8, 32), (16, 32), (16, 64))),
    Product((16, 64), "s32.u4.s4.s32", ".satfinite"),
]
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4}


def kernel_text() -> str:
    """Return a module with one kernel ``k<i>(a, b, c, d)`` for each product."""
    parts = [".version 8.0\n.target sm_80\n.address_size 64"]
    for number, product in enumerate(PRODUCTS):
        m, k = product.shape
        result, kind = product.types.split(".")[:2]
        width = max(BITS[kind], 32)
        sizes = [m * k * BITS[kind] // (32 * width), 8 * k * BITS[kind] // (32 * width)]
        outputs = m // 8 * (1 if result == "f16" else 2)
        letter = "d" if width == 64 else "r"
        output = "d" if result == "f64" else "r"
        lines = []
        names = []
        used = 1
        for place, (count, which) in enumerate(
            [(sizes[0], letter), (sizes[1], letter), (outputs, output)]
        ):
            size = 8 if which == "d" else 4
            lines += [
                f"ld.param.u64 %x1, [p{place}]; mul.wide.u32 %x2, %t, {count * size};",
                "add.u64 %x1, %x1, %x2;",
            ]
            group = [f"%{which}{used + i}" for i in range(count)]
            used += count
            bits = 64 if which == "d" else 32
            lines += [f"ld.global.b{bits} {r}, [%x1+{i * size}];" for i, r in enumerate(group)]
            names.append(group)
        braced = ["{" + ", ".join(group) + "}" for group in names]
        targets = [f"%{output}{used + i}" for i in range(outputs)]
        size = 8 if output == "d" else 4
        # Twice: what comes second must not disturb what comes first.
        lines += [
            f"{product.opcode} {{{', '.join(targets)}}}, {', '.join(braced)};",
            f"{product.opcode} {braced[2]}, {braced[0]}, {braced[1]}, {braced[2]};",
            f"ld.param.u64 %x1, [p3]; mul.wide.u32 %x2, %t, {2 * outputs * size};",
            "add.u64 %x1, %x1, %x2;",
        ]
        for i, register in enumerate([*targets, *names[2]]):
            lines.append(f"st.global.b{8 * size} [%x1+{i * size}], {register};")
        parts.append(
            f".visible .entry k{number}(.param .u64 p0, .param .u64 p1, .param .u64 p2,"
            " .param .u64 p3)\n{ .reg .b32 %r<24>; .reg .b64 %d<24>; .reg .b64 %x<3>; .reg .b32 %t;"
            " mov.u32 %t, %tid.x;\n" + "\n".join(lines) + "\nret; }"
        )
    return "\n".join(parts)
