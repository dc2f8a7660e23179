"""What a session has: objects, memory, images, and the journal of their coming and going."""

from __future__ import annotations

from typing import Any

from outlast.errors import ProtocolError
from outlast.server.allocation import Allocation
from outlast.session.handles import Handle, HandleKind, HandleTable

#: Streams 0, 1 and 2 are CUDA's special ones and stand for themselves.
SPECIAL_STREAMS = (0, 1, 2)


class Belongings:
    """The session's part of a worker's state."""

    def __init__(self) -> None:
        self.handles = HandleTable()
        self.handles.real[HandleKind.STREAM].update({s: s for s in SPECIAL_STREAMS})
        self.allocations: dict[int, Allocation] = {}
        #: Images of loaded modules, by digest.
        self.images: dict[str, bytes] = {}
        #: Pieces of images whose load has not come yet, by module handle.
        self.staged: dict[int, bytearray] = {}
        #: Retains of each device's primary context.
        self.retains: dict[int, int] = {}
        #: Journal entries not yet handed over.
        self.journal: list[dict[str, Any]] = []
        #: The call in hand, or the last one.
        self.seq = 0
        #: The bound context.
        self.context = 0

    def add_handle(
        self,
        kind: HandleKind,
        handle: int,
        real: int,
        recipe: dict[str, Any],
        parents: tuple[int, ...] = (),
    ) -> None:
        """Enter a new object and journal it.

        Raises
        ------
        ProtocolError
            The client chose a handle that is in use, or a parent that is gone.
        """
        try:
            self.handles.add(Handle(handle, kind, real, self.seq, recipe, parents))
        except KeyError as error:
            raise ProtocolError(f"call {self.seq}: {error.args[0]}") from error
        self.journal.append(
            {"what": "handle", "kind": kind, "id": handle, "recipe": recipe, "seq": self.seq}
        )

    def note_allocation(self, address: int, size: int, owner: int | None = None) -> None:
        """Enter a new allocation of a context, by default the bound one, and journal it."""
        owner = self.context if owner is None else owner
        self.allocations[address] = Allocation(address, size, owner, self.seq)
        self.journal.append(
            {
                "what": "allocated",
                "address": address,
                "size": size,
                "device": self.device(owner),
                "seq": self.seq,
            }
        )

    def forget_allocation(self, address: int) -> None:
        """Remove an allocation that was freed, and journal that."""
        del self.allocations[address]
        self.journal.append({"what": "freed", "address": address, "seq": self.seq})

    def device(self, owner: int | None = None) -> int:
        """Return the device of a context, by default the bound one."""
        owner = self.context if owner is None else owner
        context = self.handles.get(HandleKind.CONTEXT, owner)
        return int(context.recipe["device"]) if context is not None else 0

    def drop_handle(self, handle: int) -> list[Handle]:
        """Remove an object with all that was made from it, and journal that."""
        removed = self.handles.remove(handle)
        for gone in removed:
            self.journal.append(
                {"what": "destroyed", "kind": gone.kind, "id": gone.id, "seq": self.seq}
            )
        return removed
