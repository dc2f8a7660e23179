"""Device printf: every conversion as C has it."""

from __future__ import annotations

import struct

import pytest

from outlast.server.drivers.emulated.printing import format_output


def printed(text: str, values: bytes = b"") -> str:
    """Format with the arguments at 0x1000, the format at 0x2000 and a string at 0x3000."""
    memory = {0x1000: values, 0x2000: text.encode() + b"\0", 0x3000: b"word\0"}

    def read(address: int, size: int) -> bytes:
        base = address & ~0xFFF
        offset = address - base
        return memory.get(base, b"")[offset : offset + size]

    return format_output(read, 0x2000, 0x1000)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("plain", b"", "plain"),
        ("100%%", b"", "100%"),
        ("%d|%u", struct.pack("<iI", -1, 0xFFFFFFFF), "-1|4294967295"),
        ("%5d|%-5d|%05d", struct.pack("<iii", 7, 7, 7), "    7|7    |00007"),
        ("%c%c", struct.pack("<ii", 72, 105), "Hi"),
        ("%lld %x", struct.pack("<qI", -(1 << 40), 255), "-1099511627776 ff"),
        ("%d %f", struct.pack("<ixxxxd", 1, 0.5), "1 0.500000"),
        ("%.2e %g", struct.pack("<dd", 1234.5, 0.1), "1.23e+03 0.1"),
        ("%s!", struct.pack("<Q", 0x3000), "word!"),
        ("%-8s|", struct.pack("<Q", 0x3000), "word    |"),
        ("%p", struct.pack("<Q", 0xABC), "0xabc"),
        ("%*d %.*f", struct.pack("<iii4xd", 4, 7, 1, 0.25), "   7 0.2"),
        ("%s", struct.pack("<Q", 0x9000), ""),
        ("%d", b"", "0"),
    ],
)
def test_a_conversion_prints_as_in_c(text: str, values: bytes, expected: str) -> None:
    assert printed(text, values) == expected
