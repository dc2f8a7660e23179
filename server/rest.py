"""A session at rest, as the one who does its calls sees it."""

from __future__ import annotations

from collections.abc import Callable


class Rest:
    """Ends at the first call that could change the session; a look at it costs next to nothing."""

    def __init__(self) -> None:
        #: Batches so far, of calls or of queries alone.
        self.batches = 0
        #: Called before the session changes; None if nobody counts on it as it is.
        self.at_end: Callable[[], None] | None = None

    def batch(self, changes: bool) -> None:
        """Note that a batch is about to be done, and whether it could change the session."""
        self.batches += 1
        if changes and self.at_end is not None:
            self.at_end()

    def end(self) -> None:
        """Note that the session is about to change."""
        if self.at_end is not None:
            self.at_end()
