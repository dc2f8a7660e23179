"""When a client asks for an epoch, and what became of it."""

from __future__ import annotations

#: An epoch is asked for when the log has grown by this share of its limit.
EPOCH_SHARE = 0.4


class EpochRequest:
    """One request at a time, for each `EPOCH_SHARE` of the log's limit.

    Epochs that take longer than the log takes to grow are not asked for one upon another: the
    next request goes out when the server has answered the last.

    Parameters
    ----------
    limit : int
        The log's limit.
    """

    def __init__(self, limit: int) -> None:
        #: Seq of the newest epoch that this client was told of.
        self.newest = 0
        #: Why the last one failed; empty if it did not.
        self.failure = ""
        self.tighten(limit)
        self._asked_at = 0
        #: Seq that an epoch must hold to be the answer to the request under way.
        self._expected: int | None = None

    def tighten(self, limit: int) -> None:
        """Take in that the log has another limit."""
        self._step = limit * EPOCH_SHARE

    def due(self, size: int, applied: int) -> bool:
        """Return whether to ask now, in which case it is under way from now on.

        Parameters
        ----------
        size : int
            Bytes of the log.
        applied : int
            Seq that the server is known to have applied.
        """
        if self._expected is not None or size - self._asked_at < self._step:
            return False
        self._asked_at = size
        self._expected = applied
        return True

    def taken(self, seq: int, error: str) -> bool:
        """Take in that there is an epoch at ``seq``, or why there is none; return which it is."""
        self.failure = error
        if not error:
            self.newest = max(self.newest, seq)
        if error or (self._expected is not None and seq >= self._expected):
            self._expected = None
        return not error

    def ask_again(self) -> None:
        """Ask as soon as nothing is under way, whatever has been asked for."""
        self._asked_at = 0

    def attached(self) -> None:
        """Begin anew with another worker, which knows of no request."""
        self._asked_at = 0
        self._expected = None
        self.failure = ""

    def shrunk(self, size: int) -> None:
        """Count growth from here if the log is shorter than when it was asked last."""
        self._asked_at = min(self._asked_at, size)
