"""Linking: several PTX texts as one, which is what this device has in the place of a cubin.

Names that a text keeps to itself get new ones where another text has them too; what one text
declares and another defines is declared no more. The rest is left to whoever reads the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outlast.server.drivers.emulated.ptx.problems import ImageError, InvalidPtx

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
#: Directives that end with their line; those about debugging are dropped.
_LINE = re.compile(r"^\s*\.(version|target|address_size|file|loc)\b\s*([^\n]*)$", re.MULTILINE)
_VERSION = re.compile(r"(\d+)\.(\d+)")
_TARGET = re.compile(r"sm_(\d+)")
_LINKING = r"(?P<linking>(?:\.(?:visible|weak|extern|common)\s+)*)"
_FUNCTION = re.compile(
    rf"{_LINKING}\.(?:entry|func)\s*(?:\.noreturn\s*)?(?:\([^)]*\)\s*)?(?P<name>[\w$]+)"
)
_VARIABLE = re.compile(
    rf"{_LINKING}\.(?:global|const|shared)\b[^=;{{]*?"
    r"(?P<name>[A-Za-z_$%][\w$]*)\s*(?:\[[^\]]*\]\s*)*(?=[=;])"
)
#: What a name may consist of; a name is not found inside a longer one.
_WORD = r"[\w$%]"


@dataclass(slots=True)
class _Statement:
    """One declaration or definition of a text."""

    text: str
    name: str = ""
    linking: str = ""
    is_function: bool = False

    @property
    def defines(self) -> bool:
        """Whether it is more than a declaration of what is elsewhere."""
        return self.text.endswith("}") if self.is_function else ".extern" not in self.linking

    @property
    def is_local(self) -> bool:
        """Whether no other text can mean it."""
        return not self.linking.strip()


def join(texts: Sequence[str]) -> str:
    """Return one text that does what several do together.

    Raises
    ------
    ImageError
        Two of them define the same name for all.
    """
    if not texts:
        raise InvalidPtx("there is nothing to link")
    headers = [_header(text) for text in texts]
    version, target = max(h[0] for h in headers), max(h[1] for h in headers)
    parts = [f".version {version[0]}.{version[1]}\n.target sm_{target}\n.address_size 64"]
    modules = [list(_statements(text)) for text in texts]
    shared = [{s.name for s in module if not s.is_local} for module in modules]
    known = {s.name for module in modules for s in module}
    taken: dict[str, _Statement] = {}
    for number, module in enumerate(modules):
        others = set().union(*(names for i, names in enumerate(shared) if i != number))
        _rename_local(module, others | set(taken), known)
        module[:] = _define(module, taken)
    every = [statement for module in modules for statement in module]
    declared = {s.name: s for s in every if s.name and not s.defines}
    # Of what comes behind, or never: whoever reads the text says so.
    parts += [s.text for s in declared.values() if s.is_function or s.name not in taken]
    parts += [s.text for s in every if s.defines or not s.name]
    return "\n".join(parts) + "\n"


def _header(text: str) -> tuple[tuple[int, int], int]:
    """Return a text's PTX version, and the newest architecture it is for."""
    found = {m[1]: m[2] for m in _LINE.finditer(_COMMENT.sub(" ", text))}
    version, target = (
        _VERSION.match(found.get("version", "")),
        _TARGET.match(found.get("target", "")),
    )
    if "version" not in found:
        raise ImageError("a text to link is no PTX: it has no .version directive")
    if version is None or target is None:
        raise InvalidPtx("a text to link has a bad version or target")
    return (int(version[1]), int(version[2])), int(target[1])


def _statements(text: str) -> Iterator[_Statement]:
    """Yield what a text says outside functions, without comments and header."""
    text = _LINE.sub("", _COMMENT.sub(" ", text))
    depth = start = 0
    for found in re.finditer(r"[{};]", text):
        depth += (found[0] == "{") - (found[0] == "}")
        end = found.end()
        if depth or (found[0] == "}" and text[end:].lstrip()[:1] in (";", ",")):
            continue  # inside, or the end of a variable's initial values
        yield from _statement(text[start:end].strip())
        start = end
    if text[start:].strip():
        raise InvalidPtx("a text to link ends inside a statement")


def _statement(text: str) -> Iterator[_Statement]:
    if text.startswith(".section"):
        return
    function = _FUNCTION.match(text)
    found = function or _VARIABLE.match(text)
    if found is None:
        yield _Statement(text)
    else:
        yield _Statement(text, found["name"], found["linking"], function is not None)


def _rename_local(statements: list[_Statement], taken: set[str], known: set[str]) -> None:
    """Give what a text keeps to itself a name that no other text has."""
    for own in [s for s in statements if s.name in taken and s.is_local and s.defines]:
        name, number = own.name, 1
        while f"{name}__{number}" in known:
            number += 1
        new = f"{name}__{number}"
        known.add(new)
        old = re.compile(rf"(?<!{_WORD}){re.escape(name)}(?!{_WORD})")
        for statement in statements:
            statement.text = old.sub(new, statement.text)
            if statement.name == name:
                statement.name = new


def _define(statements: list[_Statement], taken: dict[str, _Statement]) -> list[_Statement]:
    """Note what a text defines; return its statements without what was defined before."""
    left = []
    for statement in statements:
        if statement.name and statement.defines:
            before = taken.setdefault(statement.name, statement)
            if before is not statement:
                if not (".weak" in before.linking and ".weak" in statement.linking):
                    raise InvalidPtx(f"{statement.name} is defined twice")
                continue  # the first of several weak ones is meant by all
        left.append(statement)
    return left
