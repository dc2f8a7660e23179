"""Operands of instructions."""

from __future__ import annotations

import struct

from outlast.server.drivers.emulated.ptx.nodes import (
    Address,
    Function,
    Immediate,
    Module,
    Not,
    Operand,
    Register,
    Symbol,
    Vector,
)
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx, UnsupportedPtx
from outlast.server.drivers.emulated.ptx.tokens import Token, TokenStream, integer_value

#: Of operands in operands, and of blocks in blocks.
MAX_NESTING = 64


class OperandParser:
    """Parses operands in the scope of a function."""

    def __init__(self, text: str) -> None:
        self.tokens = TokenStream(text)
        #: Name in the source -> unique name in the function.
        self.scope: dict[str, str] = {}
        self.function: Function | None = None
        self._result = Module()
        self._depth = 0

    def _operand(self) -> Operand:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise InvalidPtx("operands are nested too deeply", self.tokens.current.line)
        found = self._one_operand()
        self._depth -= 1
        return found

    def _one_operand(self) -> Operand:
        token = self.tokens.take()
        if token.text == "{":
            return Vector(tuple(self._list("}")))
        if token.text == "[":
            return self._address(token.line)
        if token.text == "!":
            return Not(self._operand())
        if token.text == "-":
            return self._negative(token.line)
        if token.kind == "float":
            return Immediate(int(token.text[2:], 16), "f32" if token.text[1] in "fF" else "f64")
        if token.kind == "decimal":
            bits: int = struct.unpack("<Q", struct.pack("<d", float(token.text)))[0]
            return Immediate(bits, "f64")
        if token.kind == "integer":
            return Immediate(integer_value(token))
        if token.kind == "name":
            return self._named(token)
        raise InvalidPtx(f"bad operand {token.text!r}", token.line)

    def _list(self, closing: str) -> list[Operand]:
        found: list[Operand] = []
        while not self.tokens.accept(closing):
            found.append(self._operand())
            if not self.tokens.accept(",") and self.tokens.current.text != closing:
                raise InvalidPtx("expected ',' between operands", self.tokens.current.line)
        return found

    def _negative(self, line: int) -> Immediate:
        value = self._operand()
        if not isinstance(value, Immediate):
            raise InvalidPtx("'-' before something that is no number", line)
        if value.format is None:
            return Immediate(-value.value)
        return Immediate(value.value ^ (1 << (31 if value.format == "f32" else 63)), value.format)

    def _address(self, line: int) -> Address:
        base = self._operand()
        offset = 0
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset
        if self.tokens.accept("+") or self.tokens.current.text == "-":
            offset += self.tokens.integer()
        if self.tokens.current.text == ",":
            raise UnsupportedPtx("an address of several operands", line)
        self.tokens.expect("]")
        if isinstance(base, Immediate):
            return Address(None, base.value + offset)
        if not isinstance(base, Register | Symbol):
            raise InvalidPtx("an address needs a register or a variable", line)
        return Address(base, offset)

    def _named(self, token: Token) -> Operand:
        text = token.text
        name = self._component(text)
        unique = self.scope.get(name, name)
        if self.function is not None and unique in self.function.registers:
            return Register(unique)
        if text.startswith("%"):
            return Register(text)
        if text == "WARP_SZ":
            return Immediate(32)
        if text == "generic" and self.tokens.accept("("):
            inner = self._operand()
            self.tokens.expect(")")
            if not isinstance(inner, Symbol):
                raise InvalidPtx("generic() of something that is no variable", token.line)
            return Symbol(inner.name, inner.offset + self._plus())
        return self._symbol(unique, token.line)

    def _component(self, text: str) -> str:
        """Drop ``.x`` from a vector register; special registers keep theirs."""
        head = text.split(".", 1)[0]
        return head if text not in self.scope and head in self.scope else text

    def _symbol(self, name: str, line: int) -> Operand:
        if not self.tokens.accept("["):
            return Symbol(name, self._plus())
        scale = self._element_size(name, line)
        index = None
        offset = 0
        if self.tokens.current.kind == "name":
            register = self._operand()
            if not isinstance(register, Register):
                raise InvalidPtx("a subscript is neither number nor register", line)
            index, offset = register, self._plus()
        else:
            offset = self.tokens.integer()
        self.tokens.expect("]")
        return Address(Symbol(name), offset * scale, index, scale)

    def _element_size(self, name: str, line: int) -> int:
        local = self.function.variables.get(name) if self.function else None
        variable = local or self._result.variables.get(name)
        if variable is None:
            raise InvalidPtx(f"a subscript of {name}, which is no array", line)
        return variable.scalar.size

    def _plus(self) -> int:
        """Take ``+ number`` if it follows."""
        if self.tokens.current.text == "+" and self.tokens.following.kind == "integer":
            self.tokens.take()
            return self.tokens.integer()
        return 0
