"""PTX text -> `Module`.

Names declared in nested scopes get unique names, so that a function has one flat table.
"""

from __future__ import annotations

from dataclasses import replace

from outlast.server.drivers.emulated.ptx.declarations import DeclarationParser
from outlast.server.drivers.emulated.ptx.nodes import (
    Call,
    Function,
    Instruction,
    Label,
    Module,
    Operand,
    Pair,
    Prototype,
    Register,
    Variable,
)
from outlast.server.drivers.emulated.ptx.operands import MAX_NESTING
from outlast.server.drivers.emulated.ptx.problems import (
    ImageError,
    InvalidPtx,
    UnsupportedPtx,
    UnsupportedVersion,
)

#: The newest PTX version this device reads.
MAX_VERSION = (9, 9)

#: Of one name; the largest kernels of libraries have a tenth of it.
MAX_REGISTERS = 1 << 17

_LINKING = (".visible", ".weak", ".extern", ".common")
_MODULE_SPACES = (".global", ".const", ".shared")
_LOCAL_SPACES = (".reg", ".local", ".shared", ".param", ".const", ".global")
_TARGET_LISTS = (".branchtargets", ".calltargets")


def parse(text: str) -> Module:
    """Parse a PTX file.

    Raises
    ------
    ImageError
        The text is no PTX (200), breaks its rules (218), is too new (222) or needs what
        the emulated device does not do (801).
    """
    if ".version" not in text:
        raise ImageError("the image is no PTX: it has no .version directive")
    return Parser(text).module()


class Parser(DeclarationParser):
    """A recursive-descent parser of one file."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._renamed = 0
        self._labels: set[str] = set()

    def module(self) -> Module:
        """Parse the whole file."""
        self._header()
        while self.tokens.current.kind != "end":
            self._top_level()
        return self._result

    def _header(self) -> None:
        self.tokens.expect(".version")
        token = self.tokens.take()
        major, _, minor = token.text.partition(".")
        if token.kind != "decimal" or not minor.isdigit():
            raise InvalidPtx(f"bad version {token.text!r}", token.line)
        self._result.version = (int(major), int(minor))
        if self._result.version > MAX_VERSION:
            raise UnsupportedVersion(
                f"PTX version {token.text} is newer than {MAX_VERSION[0]}.{MAX_VERSION[1]}",
                token.line,
            )
        self.tokens.expect(".target")
        self._result.target = self.tokens.name()
        while self.tokens.accept(","):
            self.tokens.name()

    def _top_level(self) -> None:
        word = self.tokens.current.text
        if word == ".address_size":
            self.tokens.take()
            if self.tokens.integer() != 64:
                raise UnsupportedPtx("32-bit addresses", self.tokens.current.line)
        elif word in (".file", ".loc", ".section"):
            self._debug()
        elif word == ".pragma":
            self._pragma()
        elif word in (*_LINKING, *_MODULE_SPACES, ".entry", ".func"):
            self._declaration()
        elif word == ".alias":
            self._alias()
        elif word in (".texref", ".tex", ".surfref", ".samplerref"):
            raise UnsupportedPtx(f"directive {word}", self.tokens.current.line)
        else:
            raise InvalidPtx(f"unexpected {word!r}", self.tokens.current.line)

    def _alias(self) -> None:
        line = self.tokens.take().line
        name = self.tokens.name()
        self.tokens.expect(",")
        function = self._result.functions.get(self.tokens.name())
        if function is None or function.is_entry or function.body is None:
            raise InvalidPtx(f"{name} is the alias of no function", line)
        self.tokens.expect(";")
        self._result.functions[name] = function

    def _declaration(self) -> None:
        linking = set()
        while self.tokens.current.text in _LINKING:
            linking.add(self.tokens.take().text)
        if self.tokens.current.text in (".entry", ".func"):
            self._function()
            return
        for variable, count in self._variables():
            if count is not None or variable.space == "reg":
                raise InvalidPtx("a register outside a function", self.tokens.current.line)
            self._result.variables[variable.name] = replace(variable, extern=".extern" in linking)

    def _function(self) -> None:
        is_entry = self.tokens.take().text == ".entry"
        returns = self._parameters() if self.tokens.current.text == "(" else []
        function = Function(self.tokens.name(), is_entry, returns=returns)
        if self.tokens.current.text == "(":
            function.parameters = self._parameters()
        while self.tokens.current.text.startswith("."):
            self._directive(function)
        if self.tokens.accept(";"):
            self._result.functions.setdefault(function.name, function)
            return
        self._result.functions[function.name] = function
        function.body = []
        self._labels = set()
        self.function = function
        for variable in (*function.parameters, *function.returns):
            if variable.space == "reg":
                function.registers[variable.name] = variable.scalar
        self._block({v.name: v.name for v in (*function.parameters, *function.returns)})
        self.function, self.scope = None, {}

    def _directive(self, function: Function) -> None:
        name = self.tokens.take().text
        values: list[int] = []
        while self.tokens.current.kind == "integer":
            values.append(self.tokens.integer())
            if not self.tokens.accept(","):
                break
        function.directives[name] = tuple(values)

    def _block(self, outer: dict[str, str]) -> None:
        self.tokens.expect("{")
        self.scope = scope = dict(outer)
        while not self.tokens.accept("}"):
            word = self.tokens.current.text
            if word == "{":
                self._depth += 1
                if self._depth > MAX_NESTING:
                    raise InvalidPtx("blocks are nested too deeply", self.tokens.current.line)
                self._block(scope)
                self._depth -= 1
                self.scope = scope
            elif word in _LOCAL_SPACES:
                self._declare(scope)
            elif word in (".loc", ".file"):
                self._debug()
            elif word == ".pragma":
                self._pragma()
            elif self.tokens.following.text == ":":
                self._label()
            else:
                self._instruction()

    def _declare(self, scope: dict[str, str]) -> None:
        line = self.tokens.current.line
        for variable, count in self._variables():
            if count is None:
                self._declare_one(scope, variable)
            elif variable.space != "reg":
                raise InvalidPtx("a range of variables that are no registers", line)
            elif count > MAX_REGISTERS:
                raise InvalidPtx(f"{count} registers of one name", line)
            else:
                for number in range(count):
                    self._declare_one(scope, replace(variable, name=f"{variable.name}{number}"))

    def _declare_one(self, scope: dict[str, str], variable: Variable) -> None:
        function = self._inside()
        unique = variable.name
        if unique in function.registers or unique in function.variables:
            self._renamed += 1
            unique = f"{unique}~{self._renamed}"
        scope[variable.name] = unique
        if variable.space == "reg":
            function.registers[unique] = variable.scalar
        else:
            function.variables[unique] = replace(variable, name=unique)

    def _label(self) -> None:
        function = self._inside()
        name = self.tokens.name()
        self.tokens.expect(":")
        if self.tokens.current.text == ".callprototype":
            function.prototypes[name] = self._prototype()
            return
        if self.tokens.current.text not in _TARGET_LISTS:
            assert function.body is not None
            if name in self._labels:
                raise InvalidPtx(f"label {name} stands twice", self.tokens.current.line)
            self._labels.add(name)
            function.body.append(Label(name))
            return
        self.tokens.take()
        targets = []
        while not self.tokens.accept(";"):
            token = self.tokens.take()
            if token.kind == "name":
                targets.append(token.text)
        function.branch_targets[name] = tuple(targets)

    def _prototype(self) -> Prototype:
        self.tokens.take()
        returns = self._parameters() if self.tokens.current.text == "(" else []
        self.tokens.expect("_")
        parameters = self._parameters() if self.tokens.current.text == "(" else []
        while not self.tokens.accept(";"):  # .noreturn and its kin
            self.tokens.take()
        return Prototype(tuple(returns), tuple(parameters))

    def _instruction(self) -> None:
        guard, negated = None, False
        if self.tokens.accept("@"):
            negated = self.tokens.accept("!")
            name = self.tokens.name()
            guard = Register(self.scope.get(name, name))
        token = self.tokens.take()
        if token.kind != "name":
            raise InvalidPtx(f"expected an instruction, found {token.text!r}", token.line)
        opcode = tuple(token.text.split("."))
        operands: tuple[Operand, ...] = ()
        call = None
        if opcode[0] == "call":
            call = self._call()
        else:
            try:
                operands = tuple(self._operands())
            except UnsupportedPtx as error:  # operands that only such an instruction has
                raise UnsupportedPtx(f"instruction {token.text}", token.line) from error
        body = self._inside().body
        assert body is not None
        body.append(Instruction(opcode, operands, token.line, guard, negated, call))

    def _operands(self) -> list[Operand]:
        found: list[Operand] = []
        while not self.tokens.accept(";"):
            operand = self._operand()
            if self.tokens.accept("|"):
                operand = Pair(operand, self._operand())
            found.append(operand)
            if not self.tokens.accept(","):
                self.tokens.expect(";")
                break
        return found

    def _call(self) -> Call:
        returns: list[Operand] = []
        arguments: list[Operand] = []
        if self.tokens.accept("("):
            returns = self._list(")")
            self.tokens.expect(",")
        target = self._operand()
        if self.tokens.current.text == "," and self.tokens.following.text == "(":
            self.tokens.take()
            self.tokens.take()
            arguments = self._list(")")
        prototype: Prototype | None = None
        targets: tuple[str, ...] = ()
        if isinstance(target, Register):
            self.tokens.expect(",")
            prototype, targets = self._signature()
        self.tokens.expect(";")
        return Call(tuple(returns), target, tuple(arguments), prototype, targets)

    def _signature(self) -> tuple[Prototype | None, tuple[str, ...]]:
        """Parse the name of a prototype or of a list of functions, which stands before its use."""
        line, name = self.tokens.current.line, self.tokens.name()
        function = self._inside()
        prototype = function.prototypes.get(name)
        targets = function.branch_targets.get(name, ())
        if prototype is None and not targets:
            raise InvalidPtx(f"{name} names neither a prototype nor functions", line)
        return prototype, targets

    def _inside(self) -> Function:
        if self.function is None:
            raise InvalidPtx("a statement outside a function", self.tokens.current.line)
        return self.function

    def _pragma(self) -> None:
        self.tokens.take()
        token = self.tokens.take()
        if token.kind != "string":
            raise InvalidPtx(f"a pragma needs a string, not {token.text!r}", token.line)
        self.tokens.expect(";")

    def _debug(self) -> None:
        if self.tokens.take().text != ".section":
            self.tokens.integer()
            self.tokens.skip_line()
            return
        while self.tokens.take().text != "{":
            pass
        depth = 1
        while depth:
            text = self.tokens.take().text
            depth += (text == "{") - (text == "}")
