"""PTX text cut into tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

from outlast.server.drivers.emulated.ptx.problems import InvalidPtx

_TOKEN = re.compile(
    r"""
  (?P<space>\s+|//[^\n]*|/\*.*?\*/)
| (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})
| (?P<decimal>\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)
| (?P<integer>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
| (?P<name>[.%$_]?[A-Za-z_$][\w$]*(?:(?:\.|::)[\w$]+)*|%[\w$.]+|_)
| (?P<string>"(?:[^"\\]|\\.)*")
| (?P<mark>[{}()\[\];,:@!|+\-<>=*])
""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Token(NamedTuple):
    """One token; the end of the text is a token of kind ``end``."""

    text: str
    kind: str
    line: int


def tokenize(text: str) -> list[Token]:
    """Cut ``text`` into tokens, without blanks and comments.

    Raises
    ------
    InvalidPtx
        A character begins no token.
    """
    tokens: list[Token] = []
    line, position, end = 1, 0, len(text)
    match = _TOKEN.match
    while position < end:
        found = match(text, position)
        if found is None:
            raise InvalidPtx(f"unexpected character {text[position]!r}", line)
        kind = found.lastgroup or ""
        if kind == "space":
            line += text.count("\n", position, found.end())
        elif kind == "name" and text[position] == ".":
            # Directives may stand without a blank between them: ``.reg.b32``.
            words = found.group()[1:].split(".")
            tokens += [Token(f".{word}", kind, line) for word in words]
        else:
            tokens.append(Token(found.group(), kind, line))
        position = found.end()
    tokens.append(Token("", "end", line))
    return tokens


class TokenStream:
    """Tokens with a position: the parser's input."""

    def __init__(self, text: str) -> None:
        self._tokens = tokenize(text)
        self._position = 0

    @property
    def current(self) -> Token:
        """The next token, not yet taken."""
        return self._tokens[self._position]

    @property
    def following(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        """Take the next token.

        Raises
        ------
        InvalidPtx
            The text has ended.
        """
        token = self._tokens[self._position]
        if token.kind == "end":
            raise InvalidPtx("the text ends in the middle of a statement", token.line)
        self._position += 1
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is ``text``."""
        if self.current.text == text and self.current.kind != "end":
            self._position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Take ``text``; anything else is an error."""
        token = self.take()
        if token.text != text:
            raise InvalidPtx(f"expected {text!r}, found {token.text!r}", token.line)

    def integer(self) -> int:
        """Take an integer with an optional sign."""
        negative = self.accept("-")
        token = self.take()
        if token.kind != "integer":
            raise InvalidPtx(f"expected a number, found {token.text!r}", token.line)
        value = integer_value(token)
        return -value if negative else value

    def name(self) -> str:
        """Take an identifier."""
        token = self.take()
        if token.kind != "name":
            raise InvalidPtx(f"expected a name, found {token.text!r}", token.line)
        return token.text

    def skip_line(self) -> None:
        """Drop the rest of the current line (debug directives end with it)."""
        line = self._tokens[self._position - 1].line
        while self.current.line == line and self.current.kind != "end" and self.current.text != "}":
            self._position += 1


def integer_value(token: Token) -> int:
    """Return the number that an ``integer`` token writes."""
    text = token.text.rstrip("U")
    octal = len(text) > 1 and text[0] == "0" and text.isdigit()
    try:
        value = int(text, 8 if octal else 0)
    except ValueError as error:  # no octal number, or one of thousands of digits
        raise InvalidPtx(f"bad number {text[:32]!r}", token.line) from error
    if value >> 64:
        raise InvalidPtx(f"{text[:32]} does not fit 64 bits", token.line)
    return value
