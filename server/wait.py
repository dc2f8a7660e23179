"""What a worker owes an answer for, once the device is done with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outlast.session.schema import ReplyKind


@dataclass(slots=True)
class Wait:
    """A call or query that is answered once a ticket is done."""

    ticket: int
    kind: ReplyKind
    number: int
    data: memoryview | None = None
    #: Makes the answer when the ticket is done; without it the answer is success.
    finish: Callable[[], tuple[int, bytes]] | None = None
    #: When the answer is that the work is not done.
    until: float = float("inf")
    #: The device's descriptor will announce its end.
    watched: bool = False
