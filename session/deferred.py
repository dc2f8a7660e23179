"""Late failures that have landed: their repeats are to be known, and acknowledged.

A worker owes a late failure until it is acknowledged, and so does every epoch that was cut
before. A landed one is therefore remembered until no usable epoch can still owe it.
"""

from __future__ import annotations

from outlast.session.layout import MAX_LIST


class LandedFailures:
    """Seqs of the late failures that have landed."""

    def __init__(self) -> None:
        #: Last call made before the worker was told, by seq; None: it has not been told.
        self._told: dict[int, int | None] = {}

    def __contains__(self, seq: int) -> bool:
        return seq in self._told

    def __len__(self) -> int:
        return len(self._told)

    def add(self, seq: int) -> None:
        """Note that the failure of ``seq`` has landed; it is to be told (again)."""
        self._told[seq] = None

    def tell_all(self, last_seq: int) -> list[int]:
        """Return what an attachment tells; ``last_seq`` is the last call made by now.

        What does not fit is told by the acknowledgements that follow.
        """
        self._told = dict.fromkeys(self._told)
        return self.tell(last_seq)

    def tell(self, last_seq: int) -> list[int]:
        """Return what an acknowledgement tells: what this connection was not told yet."""
        telling = sorted(seq for seq, told in self._told.items() if told is None)[:MAX_LIST]
        self._told.update(dict.fromkeys(telling, last_seq))
        return telling

    @property
    def untold(self) -> bool:
        """Whether there is something to tell."""
        return None in self._told.values()

    def forget(self, recoverable: int) -> None:
        """Forget what no usable epoch owes; the oldest of them is at ``recoverable``.

        A call made after a failure was told is applied after that was heard, on this
        connection or a later one. So an epoch that holds such a call does not owe it.
        """
        self._told = {
            seq: told for seq, told in self._told.items() if told is None or recoverable <= told
        }
