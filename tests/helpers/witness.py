"""What a session's device memory must hold, whatever its server goes through."""

from __future__ import annotations

from helpers.program import Program, tape_of

PIECE = 1 << 20  # bytes


class Witness:
    """A program that changes its memory in a way that shows a call lost or done twice.

    Parameters
    ----------
    program : Program
        It has to be the one in use at each call.
    pieces : int
        How many pieces of bulk there are: what saving takes its time for.
    """

    def __init__(self, program: Program, pieces: int) -> None:
        self.program = program
        self._kernel, self._target = program.new_tape()
        self._bulk = program.alloc(pieces * PIECE)
        self._digits: list[int] = []
        self._pieces = [0] * pieces

    def go_on(self, digit: int) -> None:
        """Append a digit to the tape and fill one of the pieces anew."""
        piece = len(self._digits) % len(self._pieces)
        self._digits.append(digit)
        self._pieces[piece] = (len(self._digits) - 1) % 255 + 1
        self.program.append(self._kernel, self._target, [digit])
        self.program.write(self._bulk + piece * PIECE, bytes([self._pieces[piece]]) * PIECE)

    def check(self) -> None:
        """Check everything."""
        assert self.program.number(self._target) == tape_of(self._digits)
        data = self.program.read(self._bulk, len(self._pieces) * PIECE)
        for number, content in enumerate(self._pieces):
            piece = data[number * PIECE : (number + 1) * PIECE]
            assert piece.count(content) == PIECE, f"piece {number}"
