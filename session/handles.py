"""The handle table: virtual handles, what they stand for, and how to make them again."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class HandleKind(enum.StrEnum):
    """Kinds of opaque CUDA objects whose handles the client chooses."""

    CONTEXT = "context"
    MODULE = "module"
    FUNCTION = "function"
    STREAM = "stream"
    EVENT = "event"
    #: An image for any number of contexts; its modules are made from it and a context.
    LIBRARY = "library"
    #: A name in a library; the functions of modules are what the device knows.
    KERNEL = "kernel"
    #: An image that was linked and that the client has not read to its end.
    LINK = "link"

    @property
    def is_name(self) -> bool:
        """Whether the session alone knows it: the device has no object for it."""
        return self in (HandleKind.LIBRARY, HandleKind.KERNEL, HandleKind.LINK)


@dataclass(slots=True)
class Handle:
    """One live object."""

    id: int
    kind: HandleKind
    #: The device's own handle in this process; another one after a restore.
    real: int
    created_seq: int
    #: What makes it again: JSON values only.
    recipe: dict[str, Any] = field(default_factory=dict)
    #: Handles it was made from; they are restored before it and it dies with them.
    parents: tuple[int, ...] = ()


class HandleTable:
    """Live handles of a session, in the order they were made.

    Ids are never reused within a session, so an id names one object for ever; what the
    device reuses are its own handles.
    """

    def __init__(self) -> None:
        self._handles: dict[int, Handle] = {}
        #: Look-up for the executor: kind -> virtual id -> real handle.
        self.real: dict[HandleKind, dict[int, int]] = {kind: {} for kind in HandleKind}
        #: Ids whose creation failed; what uses them is skipped.
        self.dead: set[int] = set()
        self._children: dict[int, dict[int, None]] = {}
        self._highest = 0

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, handle: int) -> bool:
        return handle in self._handles

    def add(self, handle: Handle) -> None:
        """Enter a new object.

        Raises
        ------
        KeyError
            The id is in use or was dead from the start, or a parent does not live.
        """
        if handle.id in self._handles or handle.id in self.dead:
            raise KeyError(f"handle {handle.id:#x} is already in use")
        for parent in handle.parents:
            if parent not in self._handles:
                raise KeyError(f"handle {handle.id:#x} depends on {parent:#x}, which is gone")
        for parent in handle.parents:
            self._children.setdefault(parent, {})[handle.id] = None
        self.reserve(handle.id)
        self._handles[handle.id] = handle
        self.real[handle.kind][handle.id] = handle.real

    def get(self, kind: HandleKind, handle: int) -> Handle | None:
        """Return the live object of this kind and id."""
        found = self._handles.get(handle)
        return found if found is not None and found.kind is kind else None

    def remove(self, handle: int) -> list[Handle]:
        """Remove an object and all that were made from it; return them, dependants first."""
        found = self._handles.get(handle)
        if found is None:
            return []
        removed: list[Handle] = []
        for child in self._children.pop(handle, {}):
            removed.extend(self.remove(child))
        for parent in found.parents:
            self._children.get(parent, {}).pop(handle, None)
        del self._handles[handle]
        del self.real[found.kind][handle]
        return [*removed, found]

    def ordered(self) -> Iterator[Handle]:
        """Yield live objects so that each comes after what it was made from."""
        # Parents must live when a child is added, so insertion order is a valid one.
        yield from self._handles.values()

    def fail(self, handle: int) -> None:
        """Note that an id's creation has failed."""
        self.dead.add(handle)
        self.reserve(handle)

    def bury(self, handle: int) -> bool:
        """Forget an id whose creation failed, which is destroyed now; return whether it was."""
        dead = handle in self.dead
        self.dead.discard(handle)
        return dead

    def next_id(self, step: int) -> int:
        """Return the lowest id above every one that was ever used."""
        return max(self._highest, *self.dead, 0) + step

    def reserve(self, handle: int) -> None:
        """Note that ids up to ``handle`` have been used, whether they live or not."""
        self._highest = max(self._highest, handle)
