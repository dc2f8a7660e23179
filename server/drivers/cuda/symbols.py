"""Names of the variables in an image, which CUDA does not list.

PTX is read as text, a cubin by its symbol table, a fatbin by those of its entries that are
not compressed. What cannot be read has no names: such variables are then no part of a
session's state.
"""

from __future__ import annotations

import re
import struct

_ELF = b"\x7fELF"
_FATBIN = struct.pack("<I", 0xBA55ED50)
_FATBIN_HEADER = struct.Struct("<IHHQ")
#: kind, version, header size, payload size.
_ENTRY_HEADER = struct.Struct("<HHIQ")
_PTX_KIND, _ELF_KIND = 1, 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE, _OBJECT = 2, 1
_HELD = (".nv.global", ".nv.constant3")

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VARIABLE = re.compile(
    r"(?:^|(?<=[\s;}]))(?P<extern>\.extern\s+)?(?:\.(?:visible|weak|common)\s+)?"
    r"\.(?:global|const)\s+(?P<rest>[^;={]*)"
)
_NAME = re.compile(r"([A-Za-z_$%][\w$]*)\s*(?:\[[^\]]*\]\s*)*$")


def variable_names(image: bytes) -> tuple[str, ...]:
    """Return the names of an image's variables in device memory, in order, each once."""
    if image.startswith(_ELF):
        names = _elf_names(image)
    elif image.startswith(_FATBIN):
        names = _fatbin_names(image)
    else:
        names = _ptx_names(image.partition(b"\0")[0].decode(errors="replace"))
    return tuple(dict.fromkeys(names))


def _ptx_names(text: str) -> list[str]:
    text = _COMMENT.sub(" ", text)
    # What is declared inside a function is not a variable of the module.
    names = []
    depth = 0
    position = 0
    outside = []
    for found in re.finditer(r"[{}]", text):
        if not depth:
            outside.append(text[position : found.start()])
        depth = max(0, depth + (1 if found[0] == "{" else -1))
        position = found.end()
    outside.append(text[position:])
    for part in outside:
        for variable in _VARIABLE.finditer(part):
            name = _NAME.search(variable["rest"].strip())
            if name and not variable["extern"]:
                names.append(name[1])
    return names


def _elf_names(image: bytes) -> list[str]:
    try:
        return _read_elf(image)
    except (struct.error, UnicodeDecodeError, IndexError):
        return []


def _read_elf(image: bytes) -> list[str]:
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, strings = struct.unpack_from("<HHH", image, 58)
    sections = [_SECTION.unpack_from(image, table + i * size) for i in range(count)]
    titles = [_text(image, sections[strings][4] + s[0]) for s in sections]
    names = []
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        base = sections[section[6]][4]
        for offset in range(section[4], section[4] + section[5], _SYMBOL.size):
            name, info, _, index, _, length = _SYMBOL.unpack_from(image, offset)
            inside = index < count and titles[index].startswith(_HELD)
            if info & 15 == _OBJECT and length and inside:
                names.append(_text(image, base + name))
    return names


def _fatbin_names(image: bytes) -> list[str]:
    try:
        _, _, start, size = _FATBIN_HEADER.unpack_from(image)
        names = []
        offset, end = start, start + size
        while offset < end:
            kind, _, header, length = _ENTRY_HEADER.unpack_from(image, offset)
            body = image[offset + header : offset + header + length]
            if kind == _ELF_KIND and body.startswith(_ELF):
                names += _elf_names(body)
            elif kind == _PTX_KIND and b".version" in body[:4096]:
                names += _ptx_names(body.partition(b"\0")[0].decode(errors="replace"))
            offset += header + length
            if not header + length:
                break
    except struct.error:
        return []
    return names


def _text(image: bytes, offset: int) -> str:
    return image[offset : image.index(b"\0", offset)].decode()
