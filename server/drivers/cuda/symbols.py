"""Names of the variables in an image, which CUDA does not list.

PTX is read as text, a cubin by its symbol table, a fatbin entry by entry. What cannot be read
has no names: such variables are then no part of a session's state.
"""

from __future__ import annotations

import logging
import re
import struct

from outlast import images
from outlast.server.drivers import fatbin

log = logging.getLogger(__name__)

#: Most that is unpacked of one fatbin: they have the same variables for each architecture.
MAX_UNPACKED = 1 << 30  # bytes

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
    if image.startswith(images.ELF):
        names = _elf_names(image)
    elif image.startswith(images.FATBIN):
        names = _fatbin_names(image)
    else:
        names = _text_names(image)
    return tuple(dict.fromkeys(names))


def _text_names(image: bytes) -> list[str]:
    text = _COMMENT.sub(" ", image.partition(b"\0")[0].decode(errors="replace"))
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
    names: list[str] = []
    room = MAX_UNPACKED
    try:
        for entry in fatbin.entries(image):
            if entry.kind in (fatbin.Kind.PTX, fatbin.Kind.ELF) and entry.size <= room:
                room -= entry.size
                contents = entry.unpack()
                names += (
                    _elf_names(contents) if entry.kind == fatbin.Kind.ELF else _text_names(contents)
                )
    except images.BadImage as error:
        # The driver has loaded it all the same: it looks only at what is for its GPU.
        log.warning("a fatbin cannot be read to its end: %s", error)
    return names


def _text(image: bytes, offset: int) -> str:
    return image[offset : image.index(b"\0", offset)].decode()
