"""Variables, parameters and initial values."""

from __future__ import annotations

from dataclasses import replace

from outlast.server.drivers.emulated.ptx.nodes import (
    SCALARS,
    Immediate,
    Scalar,
    Symbol,
    Variable,
)
from outlast.server.drivers.emulated.ptx.operands import OperandParser
from outlast.server.drivers.emulated.ptx.problems import InvalidPtx

MAX_ELEMENTS = 1 << 40


class DeclarationParser(OperandParser):
    """Parses ``.space .type name[bounds] = initial`` in all its places."""

    def _variables(self) -> list[tuple[Variable, int | None]]:
        """Parse one declaration; a register range ``%r<7>`` comes with its count."""
        space = self.tokens.name()[1:]
        scalar, align, lanes = self._attributes()
        found: list[tuple[Variable, int | None]] = []
        while True:
            name = self.tokens.name()
            if self.tokens.accept("<"):
                count = self.tokens.integer()
                self.tokens.expect(">")
                found.append((Variable(name, space, scalar, align, scalar.size), count))
            else:
                found.append((self._variable(name, space, scalar, align, lanes), None))
            if not self.tokens.accept(","):
                break
        self.tokens.expect(";")
        return found

    def _variable(self, name: str, space: str, scalar: Scalar, align: int, lanes: int) -> Variable:
        size = lanes * self._bounds() * scalar.size
        initial: tuple[Immediate | Symbol, ...] = ()
        if self.tokens.accept("="):
            initial = tuple(self._initial())
        return Variable(name, space, scalar, align, size, initial)

    def _attributes(self) -> tuple[Scalar, int, int]:
        """Parse alignment, vector width and type."""
        align, lanes, scalar = 0, 1, None
        pointee = False
        while self.tokens.current.text.startswith("."):
            word = self.tokens.take().text
            if word == ".align":
                # After .ptr the alignment is the pointee's, not the variable's.
                value = self.tokens.integer()
                if value <= 0 or value & (value - 1):
                    raise InvalidPtx(f"alignment {value}", self.tokens.current.line)
                align = align if pointee else value
            elif word == ".ptr":
                pointee = True
            elif word in (".v2", ".v4"):
                lanes = int(word[2])
            elif word[1:] in SCALARS:
                scalar = SCALARS[word[1:]]
            elif word == ".attribute":
                self._skip_parentheses()
            elif not pointee and word not in (".managed", ".unified"):
                raise InvalidPtx(f"unexpected {word}", self.tokens.current.line)
        if scalar is None:
            raise InvalidPtx("a declaration has no type", self.tokens.current.line)
        return scalar, align or scalar.size * lanes, lanes

    def _bounds(self) -> int:
        count = 1
        while self.tokens.accept("["):
            bound = 0 if self.tokens.current.text == "]" else self.tokens.integer()
            if bound < 0:
                raise InvalidPtx(f"an array of {bound} elements", self.tokens.current.line)
            count *= bound
            self.tokens.expect("]")
        if count > MAX_ELEMENTS:
            raise InvalidPtx(f"an array of {count} elements", self.tokens.current.line)
        return count

    def _initial(self) -> list[Immediate | Symbol]:
        """Parse a value, or values in braces, which may be nested as dimensions are."""
        values: list[Immediate | Symbol] = []
        depth = 0
        while True:
            if self.tokens.accept("{"):
                depth += 1
                if not self.tokens.accept("}"):
                    continue
                depth -= 1
            else:
                values.append(self._constant())
            while depth and self.tokens.accept("}"):
                depth -= 1
            if not depth:
                return values
            self.tokens.expect(",")

    def _constant(self) -> Immediate | Symbol:
        line = self.tokens.current.line
        value = self._operand()
        if isinstance(value, Immediate) and value.value > 0 and self.tokens.accept("("):
            part = self._operand()
            self.tokens.expect(")")
            if isinstance(part, Symbol):
                return replace(part, mask=value.value)
        if not isinstance(value, Immediate | Symbol):
            raise InvalidPtx("an initial value is no constant", line)
        return value

    def _parameters(self) -> list[Variable]:
        found: list[Variable] = []
        self.tokens.expect("(")
        while not self.tokens.accept(")"):
            space = self.tokens.name()[1:]
            if space not in ("param", "reg"):
                raise InvalidPtx(f"a parameter in .{space}", self.tokens.current.line)
            scalar, align, lanes = self._attributes()
            variable = self._variable(self.tokens.name(), space, scalar, align, lanes)
            found.append(replace(variable, initial=()))
            if not self.tokens.accept(",") and self.tokens.current.text != ")":
                raise InvalidPtx("expected ',' between parameters", self.tokens.current.line)
        return found

    def _skip_parentheses(self) -> None:
        self.tokens.expect("(")
        while self.tokens.take().text != ")":
            pass
