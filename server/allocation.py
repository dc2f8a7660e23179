"""What a worker knows of a piece of device memory that its program has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allocation:
    """One live allocation of device memory."""

    address: int
    size: int  # bytes, as asked for
    context: int
    created_seq: int
