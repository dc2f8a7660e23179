"""Connections that come back and lead nowhere: when to try the next one, when to give up.

Attaching can succeed again and again although nothing ever moves: the same call may be
refused each time, or end its worker. Without a pause both sides would do nothing else.
"""

from __future__ import annotations

#: Wait before the second connection in a row without progress; it doubles from there.
FIRST_PAUSE = 0.05  # seconds
LONGEST_PAUSE = 1.0  # seconds


class Standstill:
    """Lost connections since a session moved on last.

    Parameters
    ----------
    short : float
        Seconds after which a connection was no failure, whatever it brought.
    """

    def __init__(self, short: float) -> None:
        self.losses = 0
        self._short = short
        self._furthest = -1
        self._began = 0.0

    def lost(self, progress: int, attached_at: float, now: float) -> float:
        """Note a lost connection; return how long to wait before the next one.

        Parameters
        ----------
        progress : int
            `ClientSession.progress`. What a new worker repeats is none.
        attached_at, now : float
            When the connection began and ended.
        """
        if progress > self._furthest or now - attached_at > self._short:
            self._furthest = max(progress, self._furthest)
            self.losses = 0
        if not self.losses:
            self._began = now
        self.losses += 1
        if self.losses == 1:
            return 0.0
        return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self.losses - 2)))

    def lasted(self, now: float) -> float:
        """Return for how many seconds connections have been lost without progress."""
        return now - self._began if self.losses > 1 else 0.0
