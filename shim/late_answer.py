"""What the program did not wait for: a copy to the host, or the end of some work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outlast.session.pending import Pending


class LateAnswer:
    """An answer in one piece or several; implements `outlast.shim.linkage.Landing`.

    Parameters
    ----------
    pieces
        What it comes in.
    wait
        Waits for a piece; raises what ended the link.
    """

    def __init__(self, pieces: Sequence[Pending], wait: Callable[[Pending], object]) -> None:
        self._pieces = pieces
        self._wait = wait

    @property
    def done(self) -> bool:
        """Whether all pieces have landed, or never will."""
        return all(piece.done for piece in self._pieces)

    @property
    def result(self) -> int:
        """First failure, as a ``CUresult`` value; 0 if the link itself has ended."""
        replies = [piece.reply for piece in self._pieces]
        return next((reply.result for reply in replies if reply and reply.result), 0)

    def wait(self) -> None:
        """Wait until it is done."""
        for piece in self._pieces:
            self._wait(piece)
